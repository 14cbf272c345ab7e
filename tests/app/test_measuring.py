"""What `probe` and `doctor` measure of a predictor: which calls are made, and which of their times count."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from carpool_sidecar.app import measuring
from carpool_sidecar.protocols import interface, v1


def payload(text: str) -> interface.Payload:
    return measuring.payload(v1.Codec(), "a body", text.encode())


class Caller:
    """Notes how many requests and rows each call has; a call takes `seconds(rows)`, and answers each row with 1."""

    def __init__(self, seconds: Callable[[int], float] = lambda rows: 0.5) -> None:
        self.seconds = seconds
        self.calls: list[list[interface.Payload]] = []
        self.most = 1000
        self.answer: Callable[[int], Any] = lambda call: 1

    async def call(self, members: Sequence[interface.Payload]) -> measuring.Answer:
        self.calls.append(list(members))
        rows = sum(each.row_count for each in members)
        if rows > self.most:
            raise measuring.Problem(f"more than {self.most}")
        value = self.answer(len(self.calls))
        bodies = [json.dumps({"predictions": [value] * each.row_count}).encode() for each in members]
        return measuring.Answer(self.seconds(rows), bodies)


async def measure(
    caller: Caller, *texts: str, largest: int = 4, seconds: float = 60.0, said: list[str] | None = None
) -> measuring.probing.Probed:
    say = (said if said is not None else []).append
    return await measuring.measure(
        cast(measuring.Caller, caller), [payload(text) for text in texts], largest, seconds, say
    )


async def test_sizes_double_and_count_the_rows_of_all_their_requests() -> None:
    caller, said = Caller(), []
    found = await measure(caller, '{"instances":[1,2,3]}', '{"instances":[4]}', largest=5, said=said)
    assert [each.rows for each in found.sizes] == [3, 4, 8]
    assert said == ["3 instances …", "4 instances …", "8 instances …"]
    assert max(map(len, caller.calls)) == 4
    longest = next(members for members in caller.calls if len(members) == 4)
    assert [each.row_count for each in longest] == [3, 1, 3, 1]
    assert found.limit is None
    assert found.is_steady


async def test_the_smallest_size_is_measured_again_and_the_faster_time_counts() -> None:
    times = iter([9.0] * 3 + [5.0] * 5 + [1.0] * 5 + [2.0] * 5)  # warm up, one, two, one again
    found = await measure(Caller(lambda rows: next(times)), '{"instances":[1]}', largest=2)
    assert [each.median for each in found.sizes] == [2.0, 1.0]
    times = iter([9.0] * 3 + [2.0] * 5 + [1.0] * 5 + [5.0] * 5)
    found = await measure(Caller(lambda rows: next(times)), '{"instances":[1]}', largest=2)
    assert [each.median for each in found.sizes] == [2.0, 1.0]


async def test_one_size_is_measured_once() -> None:
    caller = Caller()
    found = await measure(caller, '{"instances":[1]}', largest=1)
    assert len(found.sizes) == 1
    assert len(caller.calls) == 3 + 5


async def test_a_failure_when_the_smallest_size_is_measured_again_changes_nothing() -> None:
    caller = Caller()

    def seconds(rows: int) -> float:
        caller.most = 0 if [len(members) for members in caller.calls].count(2) == 5 else 1000
        return 0.5

    caller.seconds = seconds
    found = await measure(caller, '{"instances":[1]}', largest=2)
    assert [each.rows for each in found.sizes] == [1, 2]
    assert found.limit is None
    assert len(caller.calls[-1]) == 1


async def test_no_larger_size_is_begun_when_the_time_is_over_and_the_first_always_is() -> None:
    found = await measure(Caller(), '{"instances":[1]}', largest=64, seconds=-1.0)
    assert [each.rows for each in found.sizes] == [1]
    assert found.limit is None


async def test_the_first_size_that_fails_is_narrowed_down() -> None:
    caller = Caller()
    caller.most = 5
    found = await measure(caller, '{"instances":[1]}', largest=64)
    assert [each.rows for each in found.sizes] == [1, 2, 4]
    assert found.limit == measuring.probing.Limit(6, "more than 5")


async def test_where_a_request_alone_fails_nothing_is_measured() -> None:
    caller = Caller()
    caller.most = 0
    found = await measure(caller, '{"instances":[1]}')
    assert found == measuring.probing.Probed((), measuring.probing.Limit(0, "more than 0"))


async def test_other_answers_to_the_same_request_are_told_as_unsteady() -> None:
    caller = Caller()
    caller.answer = lambda call: call
    found = await measure(caller, '{"instances":[1]}', largest=1)
    assert not found.is_steady
    assert found.sizes[0].difference == pytest.approx(1.0)


async def test_requests_that_never_share_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in more than their instances"):
        await measure(Caller(), '{"instances":[1]}', '{"instances":[{"a":1}]}')
