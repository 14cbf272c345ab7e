"""Limits of a rule in bytes, characters and tokens: how much of one call each row takes up."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import messages, packing
from carpool_sidecar import config
from carpool_sidecar.protocols import v1
from carpool_sidecar.protocols.lists import codec, room, rules


def rule(limits: str, more: str = "") -> str:
    return f"{{it: {{path: /x, list: texts, answers: $, token_ids: true, scalar: wrapped, {more} {limits}}}}}"


def calls(limits: str, *bodies: Any, more: str = "", **given: Any) -> list[list[int]]:
    """How many rows of which request each call has, in order, if requests wait with nothing else."""
    settings = config.Settings(lists=(rule(limits, more),), **given)
    obeyed = settings.scheduler_limits
    by = codec.Codec(rules.load(settings.lists), lambda: 0.0)
    waiting = []
    for body in bodies:
        payload = by.parse(json.dumps(body, ensure_ascii=False).encode(), 10_000)
        made = messages.Request(payload.key, payload.row_count, len(payload.body), payload)
        made.rows_taken, made.size_queued = 0, made.size
        made.cost_queued = sum(obeyed.row_costs(payload, 0, payload.row_count)) if obeyed.row_costs else 0
        waiting.append(made)
    found = []
    while waiting:
        parts = packing.pack(waiting, obeyed.max_batch_size, obeyed, obeyed.max_batch_size, math.inf)
        found.append([stop - start for _, start, stop in parts])
        for request, start, stop in parts:
            request.size_queued, request.cost_queued = packing.rest(request, start, stop, obeyed, math.inf)
            request.rows_taken = stop
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


def test_bytes_are_those_of_rows_as_they_were_written() -> None:
    assert calls("max_bytes: 8", {"texts": ["é", "é", "é"]}) == [[2], [1]]
    assert calls("max_characters: 3", {"texts": ["é", "é", "é"]}) == [[3]]


def test_tokens_are_characters_over_a_factor_and_lengths_of_lists_of_token_ids() -> None:
    limits = "max_tokens: 4, characters_a_token: 3"
    assert calls(limits, {"texts": ["abcd", "abc", "abc", "a"]}) == [[3], [1]]
    assert calls(limits, {"texts": [[1, 2, 3], [4], [5]]}) == [[2], [1]]


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


@given(text=st.text(), is_ascii=st.booleans())
def test_characters_are_never_fewer_than_a_text_has(text: str, is_ascii: bool) -> None:
    written = json.dumps(text, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    count = room.characters(written)
    surrogates = sum(ord(each) > 0xFFFF for each in text) if is_ascii else 0
    assert count == len(text) + surrogates


@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=40), most=st.integers(1, 200))
def test_rows_fit_a_call_together_exactly_if_their_sum_does(counts: list[int], most: int) -> None:
    [made] = rules.load([rule(f"max_characters: {most}")])
    taken = room.taken(made, [b'"%b"' % (b"x" * count) for count in counts], False)
    assert (sum(taken) <= room.WHOLE) == (sum(counts) <= most)
