"""The list codec does what its rules say, whatever the rule, the texts and the batches: see `oracle`."""

from __future__ import annotations

import fractions
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface
from carpool_sidecar.protocols.lists import codec, rules
from tests.examples import examples
from tests.protocols.lists import oracle, texts, worlds

TARGET = "/x?y=z"
MOST_ROWS = 100


def spoken(*told: dict[str, Any], clock: Callable[[], float] = lambda: 0.0) -> codec.Codec:
    text = json.dumps({f"rule-{number}": each for number, each in enumerate(told)}, ensure_ascii=False)
    return codec.Codec(rules.load([text]), clock, mixes=True)


def reply(body: bytes) -> interface.UpstreamResponse:
    return interface.UpstreamResponse(body, {b"content-type": b"application/json"})


class Exchange(NamedTuple):
    """A batch that was sent, what the server said, and each member's rows in it."""

    parts: Sequence[oracle.Part]
    answer: oracle.Answer
    pieces: Sequence[messages.Piece]


class Played:
    """A world's requests in the codec and as the oracle reads them."""

    def __init__(self, world: worlds.World, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.world = world
        self.rule = world.rule
        self.codec = spoken(world.rule, clock=clock)
        self.payloads = [self.codec.parse(body, MOST_ROWS) for body in world.bodies]
        self.readings = []
        for body in world.bodies:
            reading = oracle.understand(world.rule, body)
            assert reading is not None
            self.readings.append(reading)

    def call(self, batch: Sequence[tuple[int, int, int]]) -> interface.UpstreamRequest:
        parts = []
        for who, start, stop in batch:
            payload = self.payloads[who]
            parts.append(messages.Part(messages.Request(payload.key, payload.row_count, payload=payload), start, stop))
        return self.codec.merge("the-batch", TARGET, parts)

    def is_whole(self, batch: Sequence[tuple[int, int, int]]) -> bool:
        return len(batch) == 1 and batch[0][2] - batch[0][1] == self.readings[batch[0][0]].rows

    def parts(self, batch: Sequence[tuple[int, int, int]]) -> list[oracle.Part]:
        return [(self.readings[who], start, stop) for who, start, stop in batch]

    def exchange(self, number: int, answer: bytes) -> Exchange:
        """Have a batch answered that is not one whole request."""
        batch = self.world.batches[number]
        parts = self.parts(batch)
        rows = self.call(batch).read(reply(answer)).rows
        assert len(rows) == sum(stop - start for _, start, stop in parts)
        pieces, at = [], 0
        for _, start, stop in parts:
            pieces.append(messages.Piece(start, f"b{number}", rows[at : at + stop - start]))
            at += stop - start
        return Exchange(parts, oracle.understand_answer(self.rule, answer, len(rows)), pieces)

    def render(self, who: int, pieces: Sequence[messages.Piece]) -> tuple[bytes, dict[str, str]]:
        shown = self.payloads[who].response_format.render(pieces)
        return b"".join(shown.body), {name.lower(): value for name, value in shown.headers}

    def view(self, who: int, like: oracle.Answer, body: bytes) -> oracle.Answer:
        return oracle.view_answer(self.rule, like, self.readings[who].form, body)


# --- requests ---------------------------------------------------------------------------------------------------


@given(worlds.worlds())
def test_requests_that_differ_in_their_rows_alone_share_a_batch(world: worlds.World) -> None:
    played = Played(world)
    assert len({payload.key for payload in played.payloads}) == 1
    for payload, reading in zip(played.payloads, played.readings, strict=True):
        assert payload.row_count == reading.rows
        assert len(payload.row_sizes(0, reading.rows)) == len(payload.row_lengths(0, reading.rows)) == reading.rows


@given(worlds.worlds())
def test_call_has_all_rows_in_order_and_the_rest_as_it_was_written(world: worlds.World) -> None:
    played = Played(world)
    for batch in world.batches:
        call = played.call(batch)
        body = b"".join(call.body)
        assert call.target == TARGET
        if played.is_whole(batch):
            assert body == world.bodies[batch[0][0]]
        else:
            expected = oracle.merge(played.parts(batch))
            assert oracle.view(expected, body) == expected


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[dict[str, Any], list[bytes]]:
    """A rule, and requests of it that may differ in anything."""
    rule = draw(worlds.rules())
    bodies = draw(worlds.requests(rule, most=1)) + draw(worlds.requests(rule, most=1))
    bodies.append(draw(texts.garbled(bodies[0])))
    return rule, bodies


def checked(rule: dict[str, Any], at: codec.Codec, body: bytes) -> tuple[interface.Payload, oracle.Reading] | None:
    """What the codec made of a body that may be anything; None if it is passed on."""
    try:
        payload = at.parse(body, MOST_ROWS)
    except (errors.Unbatchable, errors.PayloadTooLarge):
        return None
    reading = oracle.understand(rule, body)
    assert reading is not None
    assert reading.rows == payload.row_count
    return payload, reading


@given(neighbours())
def test_requests_share_a_batch_only_if_all_but_their_rows_agrees(case: tuple[dict[str, Any], list[bytes]]) -> None:
    rule, bodies = case
    at = spoken(rule)
    found = [each for body in bodies if (each := checked(rule, at, body))]
    for payload, reading in found:
        for other, beside in found:
            if payload.key == other.key:
                event("equal" if payload is other else "two of one key")
                assert oracle.may_share(reading, beside)


@given(worlds.worlds(), st.data())
def test_garbled_request_is_passed_on_or_stays_within_its_own_rows(world: worlds.World, data: st.DataObject) -> None:
    body = world.bodies[0]
    at = spoken(world.rule)
    good, bad = checked(world.rule, at, body), checked(world.rule, at, data.draw(texts.garbled(body)))
    assert good is not None
    if bad is None:
        event("passed on")
        return
    if good[0].key != bad[0].key:
        event("of another key")
        return
    event("in one batch")
    for pair in ([good, bad], [bad, good]):
        parts = [
            messages.Part(messages.Request(payload.key, payload.row_count, payload=payload), 0, payload.row_count)
            for payload, _ in pair
        ]
        call = at.merge("the-batch", TARGET, parts)
        expected = oracle.merge([(reading, 0, reading.rows) for _, reading in pair])
        assert oracle.view(expected, b"".join(call.body)) == expected


@given(st.binary(max_size=40) | texts.values.map(str.encode), worlds.rules())
def test_anything_at_all_is_passed_on_or_understood(body: bytes, rule: dict[str, Any]) -> None:
    checked(rule, spoken(rule), body)


@pytest.mark.parametrize("opening", [b"[", b'{"input":', b'{"input":[', b'{"a":', b'{"cols":{"c1":[', b"[[1],"])
@pytest.mark.parametrize("is_closed", [False, True])
@examples(10)
@given(rule=worlds.rules())
def test_body_that_is_nested_without_end_is_passed_on(opening: bytes, is_closed: bool, rule: dict[str, Any]) -> None:
    closing = opening[::-1].translate(bytes.maketrans(b"[{", b"]}"), b'"abcdefghijklmnopqrstuvwxyz:,0123456789')
    body = opening * 50_000 + (b"1" + closing * 50_000 if is_closed else b"")
    with pytest.raises(errors.Unbatchable):
        spoken(rule).parse(body, MOST_ROWS)


@given(worlds.worlds())
def test_more_rows_than_allowed_are_too_large(world: worlds.World) -> None:
    at = spoken(world.rule)
    for body, reading in zip(world.bodies, Played(world).readings, strict=True):
        assert at.parse(body, reading.rows).row_count == reading.rows
        if reading.rows > 1:
            with pytest.raises(errors.PayloadTooLarge):
                at.parse(body, reading.rows - 1)


# --- answers ----------------------------------------------------------------------------------------------------


def tokens_of(part: oracle.Part) -> int | None:
    """How many token ids the rows of a part have; None if they are no lists of those."""
    reading, start, stop = part
    rows = [row for listed in reading.lists.values() for row in listed[start:stop]]
    if all(row.elements and all(each.is_integer for each in row.elements) for row in rows):
        return sum(len(row.elements or ()) for row in rows)
    return None


def tokens_in(rule: dict[str, Any], parts: Sequence[oracle.Part]) -> list[int] | None:
    counts = [tokens_of(part) for part in parts]
    known = [each for each in counts if each is not None]
    return known if rule.get("token_ids") and len(known) == len(counts) else None


def bytes_of(part: oracle.Part) -> int:
    reading, start, stop = part
    lists = [*reading.lists.values(), *reading.along.values()]
    return sum(len(row.text.encode()) for listed in lists for row in listed[start:stop])


def forms_of(answer: oracle.Answer) -> tuple[frozenset[oracle.Place], frozenset[oracle.Place]]:
    """What answers have to agree in to be joined."""
    return frozenset(answer.lists), frozenset(answer.numbers)


@given(worlds.worlds() | worlds.worlds(least=3), st.data())
def test_each_member_is_answered_its_own_rows_and_what_the_server_said_beside(
    world: worlds.World, data: st.DataObject
) -> None:
    played = Played(world)
    shares: dict[int, list[tuple[oracle.Answer, int, int, messages.Piece]]] = {}
    for number, batch in enumerate(world.batches):
        rows = sum(stop - start for _, start, stop in batch)
        answer = data.draw(worlds.answers(world, number, rows))
        if played.is_whole(batch):
            event("a lone request")
            got = played.call(batch).read(reply(answer)).rows
            body, headers = played.render(batch[0][0], [messages.Piece(0, "b", got[0:rows])])
            assert (body, headers) == (answer, {"content-type": "application/json"})
            continue
        exchange, at = played.exchange(number, answer), 0
        for (who, start, stop), piece in zip(batch, exchange.pieces, strict=True):
            end = at + stop - start
            shares.setdefault(who, []).append((exchange.answer, at, end, piece))
            at = end
            assert piece.start == start
    for who, found in shares.items():
        found.sort(key=lambda each: each[3].start)
        pieces = [piece for *_, piece in found]
        if len({forms_of(answer) for answer, *_ in found}) > 1:
            event("of answers with different numbers")
            with pytest.raises(errors.UpstreamBroken):
                played.render(who, pieces)
            continue
        event(f"joined of {len(found)}")
        body, headers = played.render(who, pieces)
        assert headers["content-type"] == "application/json"
        expected = list(oracle.share(world.rule, [each[:3] for each in found]))
        told = played.view(who, expected[0], body)
        assert told.lists == expected[0].lists
        assert told.others in [each.others for each in expected]


@given(worlds.worlds("shared", least=2), st.data())
def test_shares_of_a_number_add_up_and_are_within_one_of_what_they_should_be(
    world: worlds.World, data: st.DataObject
) -> None:
    played = Played(world)
    joined: dict[int, list[tuple[messages.Piece, oracle.Answer, int]]] = {}
    prorated = set()
    for number, batch in enumerate(world.batches):
        if played.is_whole(batch):
            continue
        rows = sum(stop - start for _, start, stop in batch)
        tokens = tokens_in(world.rule, played.parts(batch))
        exchange = played.exchange(number, data.draw(worlds.answers(world, number, rows, tokens and sum(tokens))))
        weights = tokens or [bytes_of(part) for part in exchange.parts]
        told, are_prorated, at = [], set(), 0
        for (who, start, stop), piece in zip(batch, exchange.pieces, strict=True):
            body, headers = played.render(who, [piece])
            (expected,) = oracle.share(world.rule, [(exchange.answer, at, at := at + stop - start)])
            told.append(played.view(who, expected, body).numbers)
            are_prorated.add(headers.get("carpool-usage"))
            prorated |= {who} if "carpool-usage" in headers else set()
            joined.setdefault(who, []).append((piece, expected._replace(numbers=told[-1]), stop - start))
        for place, whole in exchange.answer.numbers.items():
            found = [each[place] for each in told]
            assert sum(found) == whole
            for each, weight in zip(found, weights, strict=True):
                assert abs(each - fractions.Fraction(whole * weight, sum(weights))) < 1
        are_exact = not exchange.answer.numbers or len(batch) == 1
        if are_exact or (tokens and set(exchange.answer.numbers.values()) == {sum(tokens)}):
            event("exact")
            assert are_prorated == {None}
        elif not tokens and any(whole > 0 for whole in exchange.answer.numbers.values()):
            event("prorated")
            assert are_prorated == {"prorated"}
    for who, found in joined.items():
        found.sort(key=lambda each: each[0].start)
        is_all = sum(rows for *_, rows in found) == played.readings[who].rows  # else one of its parts was alone
        if is_all and len({frozenset(answer.numbers) for _, answer, _ in found}) == 1:
            event(f"joined of {len(found)}")
            body, headers = played.render(who, [piece for piece, *_ in found])
            assert ("carpool-usage" in headers) == (who in prorated)
            numbers = played.view(who, found[0][1], body).numbers
            for place in numbers:
                assert numbers[place] == sum(answer.numbers[place] for _, answer, _ in found)


@given(worlds.worlds(least=2), st.data())
def test_garbled_answer_is_the_servers_fault_or_shared_out_as_it_says(world: worlds.World, data: st.DataObject) -> None:
    played = Played(world)
    number = data.draw(st.sampled_from(range(len(world.batches))))
    batch = world.batches[number]
    assume(not played.is_whole(batch))
    rows = sum(stop - start for _, start, stop in batch)
    good = data.draw(worlds.answers(world, number, rows))
    if data.draw(st.booleans()):
        played.exchange(number, good)  # what an answer looks like is remembered
    answer = data.draw(texts.garbled(good))
    try:
        exchange = played.exchange(number, answer)
    except errors.UpstreamBroken:
        event("refused")
        return
    event("shared out")
    at = 0
    for (who, start, stop), piece in zip(batch, exchange.pieces, strict=True):
        end = at + stop - start
        body, _ = played.render(who, [piece])
        (expected,) = oracle.share(world.rule, [(exchange.answer, at, end)])
        told = played.view(who, expected, body)
        assert (told.others, told.lists) == (expected.others, expected.lists)
        at = end


@pytest.mark.parametrize(
    ("told", "first", "second"),
    [
        ("$", b"[1,2]", b"[3,4] "),
        ("$", b"[1,2]", b"\n[3, 4]"),
        ("data", b'{"data":[1,2]}', b'{"data": [3,4]}'),
        ("data", b'{"data":[1, 2]}', b'{"data":[3,4]\n}'),
        ("data", b'{"data":[1,2],"n":5}', b'{"data":[3,4],"n":-5}'),
        ("data", b'{"data":[1,2],"n":5}', b'{"data":[3,4],"n":1.5}'),
    ],
)
def test_answer_with_other_blanks_or_numbers_than_the_last_is_shared_out_in_json(
    told: str, first: bytes, second: bytes
) -> None:
    rule = {"path": "/x", "list": "input", "answers": told} | ({"shared": ["n"]} if told != "$" else {})
    world = worlds.World(rule, [b'{"input":["a"]}'] * 2, [[(0, 0, 1), (1, 0, 1)]], oracle.places(told))
    played = Played(world)
    played.exchange(0, first)
    for who, piece in enumerate(played.exchange(0, second).pieces):
        answer = json.loads(played.render(who, [piece])[0])
        assert (answer if told == "$" else answer["data"]) == [3 + who]


def merged_batch(data: st.DataObject, played: Played) -> tuple[int, int]:
    """The number of a batch that is not one whole request, and its rows."""
    merged = [number for number, batch in enumerate(played.world.batches) if not played.is_whole(batch)]
    assume(merged)
    number = data.draw(st.sampled_from(merged))
    return number, sum(stop - start for _, start, stop in played.world.batches[number])


@given(worlds.worlds(least=2), st.data(), st.sampled_from([-1, 1, 2]))
def test_key_whose_answer_has_other_rows_than_the_batch_is_not_batched_for_a_minute(
    world: worlds.World, data: st.DataObject, more: int
) -> None:
    times = [1000.0]
    played = Played(world, lambda: times[-1])
    number, rows = merged_batch(data, played)
    answer = data.draw(worlds.answers(world, number, max(0, rows + more)))
    with pytest.raises(errors.Uneven):
        played.call(world.batches[number]).read(reply(answer))
    for seconds in (0, 59):
        times.append(1000.0 + seconds)
        with pytest.raises(errors.Unbatchable) as caught:
            played.codec.parse(world.bodies[0], MOST_ROWS)
        assert caught.value.reason is errors.NotBatched.OUTPUTS
    times.append(1061.0)
    assert played.codec.parse(world.bodies[0], MOST_ROWS).key == played.payloads[0].key


@given(worlds.worlds("index", least=2), st.data())
def test_indexes_that_do_not_count_the_rows_are_the_servers_fault(world: worlds.World, data: st.DataObject) -> None:
    played = Played(world)
    number, rows = merged_batch(data, played)
    wrong = data.draw(st.lists(st.integers(-1, rows), min_size=rows, max_size=rows))
    assume(sorted(wrong) != list(range(rows)))
    answer = data.draw(worlds.answers(world, number, rows, order=wrong))
    with pytest.raises(errors.UpstreamBroken):
        played.call(world.batches[number]).read(reply(answer))


@given(worlds.worlds(least=2), st.data())
def test_answers_to_parts_of_a_request_are_joined_only_if_they_are_of_one_form(
    world: worlds.World, data: st.DataObject
) -> None:
    """One answer of a server may have a column or another list than its others."""
    played = Played(world)
    found: dict[int, list[tuple[oracle.Answer, messages.Piece]]] = {}
    for number, batch in enumerate(world.batches):
        if played.is_whole(batch):
            continue
        other = world._replace(answer_lists=data.draw(worlds.answer_places(world.rule)))
        answer = data.draw(worlds.answers(other, number, sum(stop - start for _, start, stop in batch)))
        exchange = played.exchange(number, answer)
        for (who, _, _), piece in zip(batch, exchange.pieces, strict=True):
            found.setdefault(who, []).append((exchange.answer, piece))
    for who, answered in found.items():
        pieces = sorted([piece for _, piece in answered], key=lambda each: each.start)
        if len({forms_of(answer) for answer, _ in answered}) > 1:
            with pytest.raises(errors.UpstreamBroken):
                played.render(who, pieces)
        else:
            oracle.read(b"".join(played.payloads[who].response_format.render(pieces).body))


# --- what is remembered -----------------------------------------------------------------------------------------


@given(worlds.rules(), st.data())
def test_what_was_seen_before_changes_nothing(rule: dict[str, Any], data: st.DataObject) -> None:
    """Texts around rows are remembered; a body that is like one of them is what it is to a codec without memory."""
    bodies = data.draw(worlds.requests(rule, most=2)) + data.draw(worlds.requests(rule, most=2))
    bodies += [data.draw(texts.garbled(data.draw(st.sampled_from(bodies)))) for _ in range(4)]
    bodies += [data.draw(texts.values).encode()]
    used, seen = spoken(rule), []
    for body in data.draw(st.permutations(bodies)):
        told, alone = [checked(rule, at, body) for at in (used, spoken(rule))]
        assert (told is None) == (alone is None)
        if told is not None and alone is not None:
            assert told[0].row_count == alone[0].row_count
            assert told[0].response_format == alone[0].response_format
            seen.append(told)
    for payload, reading in seen:
        for other, beside in seen:
            assert payload.key != other.key or oracle.may_share(reading, beside)
