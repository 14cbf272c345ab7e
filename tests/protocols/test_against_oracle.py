"""Of v1 and of lists by any rule: who shares a call, and that each caller gets what it would have got alone."""

from __future__ import annotations

import fractions
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, steps, v1
from carpool_sidecar.protocols.lists import codec, rules
from tests.examples import examples
from tests.protocols import oracle, scenes, texts

pytestmark = pytest.mark.timeout(300)  # thousands of messages

TARGET = "/x?y=z"
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
MOST_ROWS = 100
Part = tuple[int, int, int]
"""Whose rows, from which, to before which."""


def spoken(rule: oracle.Rule, clock: Callable[[], float] = lambda: 0.0) -> interface.Codec:
    if rule is scenes.V1:
        return v1.Codec()
    return codec.Codec(rules.load([json.dumps({"rule": rule}, ensure_ascii=False)]), clock)


class Verdict(NamedTuple):
    """What codec and oracle make of a body: both have it batched, or `payload` is None."""

    body: bytes
    payload: Any
    request: Any


class Desk:
    """A codec as the sidecar uses it, in steps or at once, with the oracle beside it."""

    def __init__(self, rule: oracle.Rule, in_steps: bool = False, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.rule = rule
        self.codec = spoken(rule, clock)
        self.in_steps = in_steps

    def parse(self, body: bytes, most: int = MOST_ROWS) -> Any:
        if self.in_steps:
            return steps.at_once(self.codec.parse_in_steps(body, most))
        return self.codec.parse(body, most)

    def judge(self, body: bytes, is_good: bool = False) -> Verdict:
        """What is made of a body; one that is good has to be batched if the oracle says so."""
        payload, outcome = None, ""
        try:
            payload = self.parse(body)
        except errors.PayloadTooLarge:
            outcome = "too large"
        except errors.BadRequest:
            outcome = "refused"
        except errors.Unbatchable:
            outcome = "passed"
        expected, request = "", None
        try:
            request = scenes.understand(self.rule, body)
        except oracle.Refused:
            expected = "refused"
        except oracle.Passed:
            expected = "passed"
        # Lists with half a character in them may also be passed on.
        must_agree = is_good and (self.rule is scenes.V1 or not _HALF.search(body))
        if payload is not None or must_agree:
            assert outcome == expected, (self.rule, body, outcome, expected)
        if payload is not None and request is not None:
            assert payload.row_count == request.rows
            sizes, lengths = payload.row_sizes(0, request.rows), payload.row_lengths(0, request.rows)
            assert len(sizes) == len(lengths) == request.rows
        return Verdict(body, payload, request if payload is not None else None)

    def call(self, verdicts: Sequence[Verdict], parts: Sequence[Part]) -> interface.UpstreamRequest:
        told = []
        for who, start, stop in parts:
            payload = verdicts[who].payload
            told.append(messages.Part(messages.Request(payload.key, payload.row_count, payload=payload), start, stop))
        return self.codec.merge("the-batch", TARGET, told)

    def exchange(self, verdicts: Sequence[Verdict], parts: Sequence[Part], answer: bytes) -> list[messages.Piece]:
        """Each part's share of what a call is answered."""
        call = self.call(verdicts, parts)
        response = interface.UpstreamResponse(answer, {b"content-type": b"application/json"})
        found = call.read(response)
        assert len(found.rows) == sum(stop - start for _, start, stop in parts)
        pieces, at = [], 0
        for _, start, stop in parts:
            share: Any = found.rows[at : at + stop - start]
            if self.rule is scenes.V1:
                share = (found.list_name, share)
            pieces.append(messages.Piece(start, "b", share))
            at += stop - start
        return pieces

    def render(self, verdict: Verdict, pieces: Sequence[messages.Piece]) -> tuple[bytes, Mapping[str, str]]:
        """What the caller is answered, and headers by their names in lower case."""
        if self.rule is scenes.V1:
            names = {name for name, _ in (piece.predictions for piece in pieces)}
            return v1.render("b", names.pop(), [rows for _, rows in (piece.predictions for piece in pieces)]), {}
        shown = verdict.payload.response_format.render(pieces)
        return b"".join(shown.body), {name.lower(): value for name, value in shown.headers}


def is_whole(verdicts: Sequence[Verdict], parts: Sequence[Part]) -> bool:
    return len(parts) == 1 and parts[0][2] - parts[0][1] == verdicts[parts[0][0]].request.rows


@st.composite
def batches(draw: st.DrawFn, verdicts: Sequence[Verdict], group: Sequence[int]) -> list[list[Part]]:
    """The rows of requests that share a key in up to three calls. Only requests of one form are split."""
    found: list[list[Part]] = [[], [], []]
    for who in group:
        request = verdicts[who].request
        may_split = request.rows > 1 and has_one_form(request)
        cuts = {0, request.rows, *(draw(st.lists(st.integers(0, request.rows), max_size=2)) if may_split else [])}
        order = (
            draw(st.just([0, 1, 2]) | st.permutations(range(3))) if may_split else [draw(st.sampled_from([0, 0, 1]))]
        )
        ends = sorted(cuts)
        for at, start, stop in zip(order, ends, ends[1:], strict=False):
            found[at].append((who, start, stop))
    return [each for each in found if each]


def has_one_form(request: oracle.Request) -> bool:
    return all(len(oracle.forms_of(rows)) == 1 and not oracle.has_large(rows) for rows in request.lists.values())


def is_plain(rule: oracle.Rule, verdict: Verdict) -> bool:
    return not (rule.get("same_members") or any(map(oracle.has_large, verdict.request.lists.values())))


def groups(verdicts: Sequence[Verdict]) -> list[list[int]]:
    """The requests that share a key, by their numbers."""
    found: dict[Any, list[int]] = {}
    for who, verdict in enumerate(verdicts):
        if verdict.payload is not None:
            found.setdefault(verdict.payload.key, []).append(who)
    return list(found.values())


# --- who shares a call ------------------------------------------------------------------------------------------


@examples(120)
@given(scenes.scenes(least=2), st.booleans())
def test_requests_share_a_call_if_the_oracle_says_so_and_only_then(scene: scenes.Scene, in_steps: bool) -> None:
    desk = Desk(scene.rule, in_steps)
    verdicts = [desk.judge(body, origin >= 0) for body, origin in zip(scene.bodies, scene.origins, strict=True)]
    batched = [(origin, each) for origin, each in zip(scene.origins, verdicts, strict=True) if each.payload is not None]
    for origin, one in batched:
        for other_origin, other in batched:
            share = one.payload.key == other.payload.key
            if share:
                assert one.request.key == other.request.key, (one.body, other.body)
            elif origin == other_origin and is_plain(scene.rule, one) and is_plain(scene.rule, other):
                # Else white space may keep them apart, signs and sizes of large numbers, and what else a table has.
                assert one.request.key != other.request.key, (one.body, other.body)
            event("share" if share and one is not other else "apart" if not share else "one")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":{"x":1}}', '{"a":{"y":"s"}}'),
        ('{"a":{"x":1,"y":2}}', '{"a":{"y":2,"x":1}}'),
        ('[[1,"a"],[1]]', '[[1],[1,"a"]]'),
        ("[[1,[2]]]", "[[[1],2]]"),
    ],
)
@pytest.mark.parametrize("rule", [scenes.V1, scenes.BUILT_IN["mlflow"]], ids=["v1", "mlflow"])
def test_rows_that_differ_deep_inside_share_no_call(rule: oracle.Rule, one: str, other: str) -> None:
    desk = Desk(rule)
    verdicts = [desk.judge(f'{{"instances":[{row}]}}'.encode(), is_good=True) for row in (one, other)]
    assert verdicts[0].request.key != verdicts[1].request.key
    assert verdicts[0].payload.key != verdicts[1].payload.key


@pytest.mark.parametrize(
    "body",
    [
        b'{"dataframe_records":[true],"dataframe_split":{"data":["",[]]}}',
        b'{"instances":[1],"dataframe_records":[{"a":1},{"b":1}]}',
    ],
)
def test_uneven_rows_are_passed_on_though_another_list_has_rows_that_could_be_cut(body: bytes) -> None:
    verdict = Desk(scenes.BUILT_IN["mlflow"]).judge(body, is_good=True)
    assert verdict.request is None
    assert verdict.payload is None


# --- what each gets ---------------------------------------------------------------------------------------------


@examples(120)
@given(scenes.scenes(least=2), st.booleans(), st.data())
def test_each_caller_gets_byte_for_byte_what_it_would_get_alone(
    scene: scenes.Scene, in_steps: bool, data: st.DataObject
) -> None:
    desk = Desk(scene.rule, in_steps)
    verdicts = [desk.judge(body) for body in scene.bodies]
    for group in groups(verdicts):
        pieces: dict[int, list[messages.Piece]] = {who: [] for who in group}
        calls = data.draw(batches(verdicts, group))
        for parts in calls:
            call = b"".join(desk.call(verdicts, parts).body)
            check_call(scene.rule, verdicts, parts, call)
            rows = sum(stop - start for _, start, stop in parts)
            order = data.draw(st.permutations(range(rows))) if not is_whole(verdicts, parts) else None
            shares = desk.exchange(verdicts, parts, scene.server.answer(call, order))
            for (who, _, _), piece in zip(parts, shares, strict=True):
                pieces[who].append(piece)
        for who in group:
            got, _ = desk.render(verdicts[who], sorted(pieces[who], key=lambda each: each.start))
            alone = scene.server.answer(scene.bodies[who])
            if scene.rule is scenes.V1:
                alone = oracle.v1_answer(*oracle.understand_v1_answer(alone))
            if len(pieces[who]) == 1:
                assert got == alone
            else:
                assert oracle.squeezed(got.decode()) == oracle.squeezed(alone.decode())
            event(f"in {len(pieces[who])} of {len(calls)} calls")


def check_call(rule: oracle.Rule, verdicts: Sequence[Verdict], parts: Sequence[Part], body: bytes) -> None:
    """A call is a request of the same key with all rows in order; one of a whole request is that request."""
    if is_whole(verdicts, parts):
        assert body == verdicts[parts[0][0]].body
        return
    call = scenes.understand(rule, body)
    requests = [verdicts[who].request for who, _, _ in parts]
    assert {each.key for each in requests} == {call.key}
    for place, rows in call.lists.items():
        expected = [
            row.text
            for each, (_, start, stop) in zip(requests, parts, strict=True)
            for row in each.lists[place][start:stop]
        ]
        assert [row.text for row in rows] == expected


@examples(120)
@given(scenes.scenes(least=2, origins_=1) | scenes.scenes("shared", least=3, origins_=1), st.booleans(), st.data())
def test_any_answer_is_shared_out_as_it_says_or_is_the_servers_fault(
    scene: scenes.Scene, in_steps: bool, data: st.DataObject
) -> None:
    desk = Desk(scene.rule, in_steps)
    verdicts, parts = a_call(data, desk, scene)
    body = b"".join(desk.call(verdicts, parts).body)
    good = scene.server.answer(body)
    if data.draw(st.booleans()):
        desk.exchange(verdicts, parts, good)  # what an answer looks like is remembered
    gaps = [place for each in scene.server.template if isinstance(each, tuple) for place in each]
    told = {place: data.draw(scenes.counts) for place in gaps if place not in scene.server.lists}
    answer = scene.server.answer(body, counts=told)
    is_good = data.draw(st.integers(0, 2)) > 0
    if not is_good:
        answer = data.draw(texts.garbled(answer))
    try:
        pieces = desk.exchange(verdicts, parts, answer)
    except errors.UpstreamBroken:
        assert not is_good
        event("the server's fault")
        return
    event("shared out")
    check_shares(desk, verdicts, parts, answer, pieces)


def a_call(data: st.DataObject, desk: Desk, scene: scenes.Scene) -> tuple[list[Verdict], list[Part]]:
    """A call that is not one whole request."""
    verdicts = [desk.judge(body) for body in scene.bodies]
    calls = [call for group in groups(verdicts) for call in data.draw(batches(verdicts, group))]
    merged = [parts for parts in calls if not is_whole(verdicts, parts)]
    assume(merged)
    return verdicts, data.draw(st.sampled_from(merged))


def check_shares(
    desk: Desk, verdicts: Sequence[Verdict], parts: Sequence[Part], answer: bytes, pieces: Sequence[messages.Piece]
) -> None:
    """Each part gets its own rows of an answer, what is said beside them, and its share of what is counted."""
    shown = [desk.render(verdicts[who], [piece]) for (who, _, _), piece in zip(parts, pieces, strict=True)]
    ends = list(itertools.accumulate([stop - start for _, start, stop in parts], initial=0))
    if desk.rule is scenes.V1:
        name, rows = oracle.understand_v1_answer(answer)
        for (got, _), start, stop in zip(shown, ends, ends[1:], strict=False):
            assert got == oracle.v1_answer(name, rows[start:stop])
        return
    told = oracle.understand_answer(desk.rule, answer, ends[-1])
    numbers = []
    for (who, _, _), (got, _), start, stop in zip(parts, shown, ends, ends[1:], strict=False):
        rows_of = {place: oracle.numbered(desk.rule, rows[start:stop]) for place, rows in told.lists.items()}
        node = oracle.read(got, has_words=True)
        found = {place: oracle.find(node, place) for place in told.numbers}
        numbers.append({place: int(each.text) for place, each in found.items() if each is not None})
        one = verdicts[who].request.one
        assert oracle.squeezed(got.decode()) == oracle.written(told, one, rows_of, numbers[-1])
        for place, expected in rows_of.items():  # with their white space
            value = oracle.find(node, place)
            assert value is not None
            assert expected == [value.text] or expected == [row.text for row in value.elements or ()]
    weights, are_exact = weights_of(desk.rule, verdicts, parts, told)
    for place, whole in told.numbers.items():
        mine = [each[place] for each in numbers]
        assert sum(mine) == whole
        for each, weight in zip(mine, weights, strict=True):
            assert not sum(weights) or abs(each - fractions.Fraction(whole * weight, sum(weights))) < 1
    said = {headers.get("carpool-usage") for _, headers in shown}
    if are_exact is not None:
        assert said == {None if are_exact else "prorated"}


def weights_of(
    rule: oracle.Rule, verdicts: Sequence[Verdict], parts: Sequence[Part], told: oracle.Answer
) -> tuple[list[int], bool | None]:
    """What numbers are shared out by, and whether the callers are told that it is exact; None if either will do."""
    found = [oracle.weight(rule, verdicts[who].request, start, stop) for who, start, stop in parts]
    weights, are_tokens = [weight for weight, _ in found], all(each for _, each in found)
    if not told.numbers or len(parts) == 1 or (are_tokens and {*told.numbers.values()} == {sum(weights)}):
        return weights, True
    return weights, False if not are_tokens and any(told.numbers.values()) else None


@given(scenes.scenes(least=2, origins_=1), st.sampled_from([-1, 1, 2]), st.data())
def test_key_whose_answer_has_other_rows_than_the_batch_is_not_batched_for_a_minute(
    scene: scenes.Scene, more: int, data: st.DataObject
) -> None:
    times = [1000.0]
    desk = Desk(scene.rule, clock=lambda: times[-1])
    verdicts, parts = a_call(data, desk, scene)
    answer = scene.server.answer(b"".join(desk.call(verdicts, parts).body), more=more)
    first = verdicts[parts[0][0]]
    if scene.rule is scenes.V1:
        with pytest.raises(AssertionError):  # the core compares the numbers of rows
            desk.exchange(verdicts, parts, answer)
        return
    with pytest.raises(errors.Uneven):
        desk.exchange(verdicts, parts, answer)
    for seconds in (0, 59):
        times.append(1000.0 + seconds)
        with pytest.raises(errors.Unbatchable) as caught:
            desk.parse(first.body)
        assert caught.value.reason is errors.NotBatched.OUTPUTS
    times.append(1061.0)
    assert desk.parse(first.body).key == first.payload.key


@given(scenes.scenes("index", least=2, origins_=1), st.data())
def test_indexes_that_do_not_count_the_rows_are_the_servers_fault(scene: scenes.Scene, data: st.DataObject) -> None:
    desk = Desk(scene.rule)
    verdicts, parts = a_call(data, desk, scene)
    rows = sum(stop - start for _, start, stop in parts)
    order = data.draw(st.lists(st.integers(0, rows - 1), min_size=rows, max_size=rows))
    assume(len({*order}) < rows)
    answer = scene.server.answer(b"".join(desk.call(verdicts, parts).body), order)
    with pytest.raises(errors.UpstreamBroken):
        desk.exchange(verdicts, parts, answer)


@given(scenes.scenes(origins_=1, has_garbage=False), st.data())
def test_answers_to_parts_of_a_request_are_joined_only_if_they_are_of_one_form(
    scene: scenes.Scene, data: st.DataObject
) -> None:
    """One answer of a server may have a column or another list than its others."""
    desk = Desk(scene.rule)
    verdicts = [desk.judge(body) for body in scene.bodies]
    split = [
        who
        for who, each in enumerate(verdicts)
        if each.request and each.request.rows > 1 and has_one_form(each.request)
    ]
    assume(split and scene.rule is not scenes.V1)
    who = split[0]
    pieces, told = [], []
    for start, stop in ((0, 1), (1, verdicts[who].request.rows)):
        server = scene.server if start else data.draw(scenes.servers(scene.rule))
        answer = server.answer(b"".join(desk.call(verdicts, [(who, start, stop)]).body))
        told.append(oracle.understand_answer(scene.rule, answer, stop - start))
        pieces += desk.exchange(verdicts, [(who, start, stop)], answer)
    if told[0].form == told[1].form:
        oracle.read(desk.render(verdicts[who], pieces)[0], has_words=True)
    else:
        with pytest.raises(errors.UpstreamBroken):
            desk.render(verdicts[who], pieces)


# --- odd requests -----------------------------------------------------------------------------------------------


@given(st.binary(max_size=40) | texts.values.map(str.encode), scenes.any_rule, st.booleans())
def test_anything_at_all_is_passed_on_refused_or_understood(body: bytes, rule: oracle.Rule, in_steps: bool) -> None:
    verdict = Desk(rule, in_steps).judge(body)
    assert (verdict.payload is None) == (verdict.request is None)


@pytest.mark.parametrize("opening", [b"[", b'{"input":', b'{"input":[', b'{"a":', b'{"cols":{"c1":[', b"[[1],"])
@pytest.mark.parametrize("is_closed", [False, True])
@examples(10)
@given(rule=scenes.any_rule)
def test_body_that_is_nested_without_end_is_no_request(opening: bytes, is_closed: bool, rule: oracle.Rule) -> None:
    closing = opening[::-1].translate(bytes.maketrans(b"[{", b"]}"), b'"abcdefghijklmnopqrstuvwxyz:,0123456789')
    body = opening * 50_000 + (b"1" + closing * 50_000 if is_closed else b"")
    with pytest.raises((errors.Unbatchable, errors.BadRequest)):
        Desk(rule).parse(body)


@given(scenes.scenes(has_garbage=False), st.booleans())
def test_more_rows_than_allowed_are_too_large(scene: scenes.Scene, in_steps: bool) -> None:
    desk = Desk(scene.rule, in_steps)
    for body in scene.bodies:
        request = desk.judge(body).request
        if request is not None:
            assert desk.parse(body, request.rows).row_count == request.rows
            if request.rows > 1:
                with pytest.raises(errors.PayloadTooLarge):
                    desk.parse(body, request.rows - 1)


# --- what is remembered -----------------------------------------------------------------------------------------


@given(scenes.scenes(least=2), st.data(), st.booleans())
def test_what_was_seen_before_changes_nothing(scene: scenes.Scene, data: st.DataObject, in_steps: bool) -> None:
    """Texts around rows are remembered; a body that is like one of them is what it is to a codec without memory."""
    bodies = [*scene.bodies, *(data.draw(texts.garbled(data.draw(st.sampled_from(scene.bodies)))) for _ in range(3))]
    used = Desk(scene.rule, in_steps)
    seen = []
    for body in data.draw(st.permutations(bodies)):
        told, anew = used.judge(body), Desk(scene.rule).judge(body)
        assert (told.payload is None) == (anew.payload is None)
        if told.payload is not None:
            assert told.payload.row_count == anew.payload.row_count
            assert told.payload.response_format == anew.payload.response_format
            seen.append(told)
    for one in seen:
        assert all(one.request.key == other.request.key for other in seen if one.payload.key == other.payload.key)


@pytest.mark.parametrize(
    ("place", "first", "second"),
    [
        ("$", b"[1,2]", b"[3,4] "),
        ("$", b"[1,2]", b"\n[3, 4]"),
        ("data", b'{"data":[1,2]}', b'{"data": [3,4]}'),
        ("data", b'{"data":[1, 2]}', b'{"data":[3,4]\n}'),
        ("data", b'{"data":[1,2],"n":5}', b'{"data":[3,4],"n":-5}'),
        ("data", b'{"data":[1,2],"n":5}', b'{"data":[3,4],"n":1.5}'),
    ],
)
def test_answer_with_other_blanks_or_numbers_than_the_last_is_shared_out(
    place: str, first: bytes, second: bytes
) -> None:
    rule = {"path": "/x", "list": "input", "answers": place} | ({"shared": ["n"]} if place != "$" else {})
    desk = Desk(rule)
    verdicts, parts = [desk.judge(b'{"input":["a"]}')] * 2, [(0, 0, 1), (1, 0, 1)]
    for answer in (first, second):
        check_shares(desk, verdicts, parts, answer, desk.exchange(verdicts, parts, answer))
