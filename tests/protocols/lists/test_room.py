"""Limits of a rule in bytes, characters and tokens: how much of one call each row takes up."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import messages, packing
from carpool_sidecar import config
from carpool_sidecar.protocols import steps, v1
from carpool_sidecar.protocols.lists import codec, room, rules


def rule(limits: str, more: str = "token_ids: true,") -> str:
    return f"{{it: {{path: /x, list: texts, answers: $, {more} scalar: wrapped, {limits}}}}}"


def parsed(by: codec.Codec, body: bytes, how: str) -> codec.Payload:
    return by.parse(body, 10_000) if how == "parse" else steps.at_once(by.parse_in_steps(body, 10_000))


def calls(limits: str, *bodies: Any, more: str = "token_ids: true,", **given: Any) -> list[list[int]]:
    """How many rows of which request each call has, in order, if requests wait with nothing else."""
    settings = config.Settings(lists=(rule(limits, more),), **given)
    obeyed = settings.scheduler_limits
    by = codec.Codec(rules.load(settings.lists), lambda: 0.0)
    waiting = []
    for body in bodies:
        written = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        payload = by.parse(written.encode(), 10_000)
        made = messages.Request(payload.key, payload.row_count, len(payload.body), payload)
        made.size_queued = made.size
        made.cost_queued = sum(obeyed.row_costs(payload, 0, payload.row_count)) if obeyed.row_costs else 0
        waiting.append(made)
    found = []
    while waiting:
        parts = packing.pack(waiting, obeyed.max_batch_size, obeyed, obeyed.max_batch_size, math.inf)
        found.append([stop - start for _, start, stop in parts])
        for request, start, stop in parts:
            request.size_queued, request.cost_queued = packing.rest(request, start, stop, obeyed, math.inf)
            request.take(stop)
        waiting = [each for each in waiting if each.rows_taken < each.rows]
    return found


def test_a_list_is_cut_where_a_call_would_have_too_many_characters() -> None:
    texts = ["aaaa", "bbbb", "cc", "dddddddddddddd", "e"]
    assert calls("max_characters: 10", {"texts": texts}) == [[3], [1], [1]]


def test_a_call_that_is_full_to_the_last_character_is_not_cut() -> None:
    for most in (3, 7, 999, 2**31):
        assert calls(f"max_characters: {most}", {"texts": ["a"] * min(most, 30)}) == [[min(most, 30)]]


def test_callers_share_a_call_as_far_as_there_is_room() -> None:
    bodies = [{"texts": ["a" * 4]}, {"texts": ["b" * 4]}, {"texts": ["c" * 4]}]
    assert calls("max_characters: 8", *bodies) == [[1, 1], [1]]


def test_bytes_are_those_of_rows_as_they_were_written_and_of_the_commas_between() -> None:
    assert calls("max_bytes: 9", {"texts": ["é", "é", "é"]}) == [[2], [1]]
    assert calls("max_bytes: 8", {"texts": ["é", "é"]}) == [[1], [1]]
    assert calls("max_bytes: 7", {"texts": ["a"]}, {"texts": ["b"]}) == [[1, 1]]
    assert calls("max_bytes: 6", {"texts": ["a"]}, {"texts": ["b"]}) == [[1], [1]]
    assert calls("max_characters: 3", {"texts": ["é", "é", "é"]}) == [[3]]


@pytest.mark.parametrize("how", ["parse", "parse_in_steps"])
@pytest.mark.parametrize("between", [b",", b", ", b",\n        ", b" ,\t"])
def test_white_space_between_rows_makes_no_call_larger_than_its_limit(between: bytes, how: str) -> None:
    obeyed = config.Settings(lists=(rule("max_bytes: 1000", ""),)).scheduler_limits
    for rows, around in ((900, b""), (80, b" "), (2, b" " * 3000)):
        body = b'{"texts":[%b%b%b]}' % (around, (between + around).join([b"12"] * rows), around)
        payload = parsed(codec.Codec(rules.load([rule("max_bytes: 1000", "")]), lambda: 0.0), body, how)
        assert obeyed.row_costs is not None
        is_whole = sum(obeyed.row_costs(payload, 0, rows)) <= obeyed.max_batch_cost
        assert is_whole <= (len(payload.cut(0, 0, rows)) <= 1000)
        fit = next(count for count in range(rows, -1, -1) if sum(payload.row_room(0, count)) <= room.WHOLE)
        assert len(payload.cut(0, 0, fit)) <= 1000


def test_a_list_that_is_as_large_as_a_call_may_be_is_not_cut() -> None:
    by = codec.Codec(rules.load([rule("max_bytes: 1000", "")]), lambda: 0.0)
    for between, around in ((b", ", b""), (b",\n  ", b"\n"), (b",", b"    ")):
        text = between.join([b"12"] * 150).join([around, around])
        for size in (1000, 1001):
            payload = by.parse(b'{"texts":[%b%b]}' % (text, b" " * (size - len(text))), 1000)
            assert (sum(payload.row_room(0, 150)) <= room.WHOLE) == (size == 1000)


def test_tokens_are_characters_over_a_factor_and_lengths_of_lists_of_token_ids() -> None:
    limits = "max_tokens: 4, characters_a_token: 3"
    assert calls(limits, {"texts": ["abcd", "abc", "abc", "a"]}) == [[3], [1]]
    assert calls(limits, {"texts": [[1, 2, 3], [4], [5]]}) == [[2], [1]]


def test_lists_of_whole_numbers_count_by_their_lengths_whatever_else_the_rule_says() -> None:
    limits = "max_tokens: 110, characters_a_token: 4"
    for more in ("", "along: queries,", "token_ids: true,"):
        assert calls(limits, {"texts": [[7] * 100, [8] * 100]}, more=more) == [[1], [1]]
    assert calls(limits, {"texts": ["aaaa", [7] * 109, [8]]}) == [[2], [1]]
    assert calls(limits, {"texts": [[[7] * 100, [8] * 100]] * 2}) == [[1], [1]]  # 800 characters, so 200 tokens
    assert calls("max_tokens: 1, characters_a_token: 100", {"texts": [[1.5] * 9, [], [-1]]}) == [[2], [1]]


def test_several_limits_hold_together_and_with_the_cost_that_is_set() -> None:
    texts = {"texts": ["aaaaa", "aaaaa", "a", "a"]}
    assert calls("max_characters: 10", texts) == [[2], [2]]
    assert calls("max_characters: 10, max_bytes: 100", texts) == [[2], [2]]
    assert calls("max_characters: 1000", texts, instance_cost="bytes", max_batch_cost=14) == [[2], [2]]


def test_lists_along_the_rows_take_their_part() -> None:
    pairs = {"texts": ["aa", "bb"], "queries": ["cc", "dd"]}
    assert calls("max_characters: 4", pairs, more="along: queries,") == [[1], [1]]


def test_requests_of_other_protocols_and_rules_take_nothing() -> None:
    obeyed = config.Settings(lists=(rule("max_characters: 1"),)).scheduler_limits
    assert obeyed.row_costs is not None
    assert obeyed.row_costs(v1.parse_request(b'{"instances":["abc","d"]}', 10), 0, 2) == [0, 0]
    other = codec.Codec([rules.built_in()["openai-embeddings"]], lambda: 0.0).parse(b'{"input":["abc"]}', 10)
    assert obeyed.row_costs(other, 0, 1) == [0]


def test_without_such_rules_nothing_is_counted() -> None:
    assert config.Settings(lists=("tei-embed",)).scheduler_limits.row_costs is None
    assert config.Settings(max_batch_cost=7, instance_cost="bytes").scheduler_limits.max_batch_cost == 7


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ("max_tokens: 5", "rule 'it': 'max_tokens' and 'characters_a_token'"),
        ("characters_a_token: 4", "go together"),
        ("max_bytes: 0", "rule 'it': field 'max_bytes': Input should be greater than or equal to 1; given: 0"),
        ("max_characters: x", "rule 'it': field 'max_characters'"),
        ("max_tokens: 5, characters_a_token: 0", "rule 'it': field 'characters_a_token'"),
        ("max_tokens: 5, characters_a_token: true", "field 'characters_a_token': Input should be a valid number"),
        ("max_tokens: 5, characters_a_token: '4'", "field 'characters_a_token': Input should be a valid number"),
    ],
)
def test_limits_that_are_none_are_told_by_rule_and_field(limits: str, words: str) -> None:
    with pytest.raises(ValueError, match="the YAML of --lists") as caught:
        rules.load([rule(limits)])
    assert words in str(caught.value)


def test_parts_are_counted_by_their_rule_and_whole_requests_are_not() -> None:
    told: list[str] = []
    by = codec.Codec([rules.built_in()["tei-embed"]], lambda: 0.0, on_part=told.append)
    payload = by.parse(b'{"inputs":["a","b","c"]}', 10)
    request = messages.Request(payload.key, 3, payload=payload)
    for parts in ([(0, 3)], [(0, 2)], [(2, 3), (0, 3)]):
        by.merge("b", "/embed", [messages.Part(request, start, stop) for start, stop in parts])
    assert told == ["tei-embed", "tei-embed"]


def as_json(text: str, is_ascii: bool) -> bytes:
    return json.dumps(text, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")


SLASHES = st.text(st.sampled_from('\\\\u"\né\x00e9a😀'))


@given(text=st.text() | SLASHES, is_ascii=st.booleans())
def test_characters_are_never_fewer_than_a_text_has(text: str, is_ascii: bool) -> None:
    count = room.characters(as_json(text, is_ascii))
    surrogates = sum(ord(each) > 0xFFFF for each in text) if is_ascii else 0
    assert count == len(text) + surrogates


@given(text=SLASHES, is_ascii=st.booleans(), size=st.integers(65_500, 65_560), is_last=st.booleans())
def test_characters_of_a_long_text_are_those_of_all_of_it(text: str, is_ascii: bool, size: int, is_last: bool) -> None:
    for filling in ("x", "\\", "\n", "é"):
        whole = filling * (size // len(as_json(filling, is_ascii)[1:-1])) + text + filling * 70_000 * is_last
        surrogates = sum(ord(each) > 0xFFFF for each in whole) if is_ascii else 0
        assert room.characters(as_json(whole, is_ascii)) == len(whole) + surrogates


def test_a_row_of_many_escapes_is_measured_in_steps_and_without_a_copy_of_it() -> None:
    limited = rules.load([rule("max_characters: 10, max_tokens: 10, characters_a_token: 1")])[0]
    for row in (b'"%b"' % (b"\\n" * 1_500_000), b"[%b7]" % (b"7," * 1_500_000)):
        tracemalloc.start()
        count = sum(1 for _ in room.taken(limited, [row], len(row)))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert count > 40
        assert most < 500_000


@pytest.mark.parametrize("limit", ["max_bytes: 9", "max_characters: 9"])
def test_a_large_request_is_measured_in_steps_before_it_waits(limit: str) -> None:
    by = codec.Codec(rules.load([rule(limit)]), lambda: 0.0)
    plain = codec.Codec(rules.load([rule("max_batch_size: 9")]), lambda: 0.0)
    body = json.dumps({"texts": ["say \\"] * 9000}).encode()
    counts = [sum(1 for _ in each.parse_in_steps(body, 10_000)) for each in (by, plain)]
    assert counts[0] > counts[1] + 20


@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=40), most=st.integers(1, 200))
def test_rows_fit_a_call_together_exactly_if_their_sum_does(counts: list[int], most: int) -> None:
    [made] = rules.load([rule(f"max_characters: {most}")])
    taken = steps.at_once(room.taken(made, [b'"%b"' % (b"x" * count) for count in counts], 0))
    assert (sum(taken) <= room.WHOLE) == (sum(counts) <= most)
