"""A model in stages: calls overlap, stay in their order, and fail alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from carpool_predictor import stages


def through(made: list[Callable[[Any], Any]], calls: list[Any]) -> list[stages.Outcome]:
    answered: list[stages.Outcome] = []
    with stages.Stages(made, answered.append) as under_way:
        for call in calls:
            under_way.call(call)
    return answered


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_calls_are_answered_in_their_order_with_what_all_stages_made_of_them(count: int) -> None:
    outcomes = through([lambda text: text + "."] * count, [str(each) for each in range(50)])
    assert outcomes == [stages.Outcome(f"{each}" + "." * count, None) for each in range(50)]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_stage_that_raises_fails_its_own_call_alone(failing: int) -> None:
    seen: list[tuple[int, int]] = []

    def stage(place: int) -> Callable[[int], int]:
        def run(call: int) -> int:
            seen.append((call, place))
            if call == 1 and place == failing:
                raise ValueError(f"call {call}")
            return call

        return run

    outcomes = through([stage(place) for place in range(3)], [0, 1, 2])
    assert [outcome.value for outcome in outcomes] == [0, None, 2]
    assert str(outcomes[1].error) == "call 1"
    assert [place for call, place in seen if call == 1] == list(range(failing + 1))


def test_each_stage_works_on_a_call_of_its_own_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=10)

    # Calls 2, 1 and 0 meet in stages 0, 1 and 2: each waits there for the others.
    def stage(place: int) -> Callable[[int], int]:
        def run(call: int) -> int:
            if call == 2 - place:
                meeting.wait()
            return call

        return run

    outcomes = through([stage(place) for place in range(3)], [0, 1, 2])
    assert [outcome.value for outcome in outcomes] == [0, 1, 2]


def test_a_call_waits_while_the_next_stage_has_enough_to_do() -> None:
    go_on = threading.Event()
    read: list[int] = []

    def first(call: int) -> int:
        read.append(call)
        return call

    def second(call: int) -> int:
        go_on.wait(10)
        return call

    answered: list[stages.Outcome] = []
    with stages.Stages([first, second], answered.append) as under_way:

        def send() -> None:
            for call in range(9):
                under_way.call(call)

        sender = threading.Thread(target=send)
        sender.start()
        sender.join(0.2)
        assert len(read) <= 3  # one in the second stage, one between, one that waits
        go_on.set()
        sender.join()
    assert [outcome.value for outcome in answered] == list(range(9))


def test_all_calls_are_answered_at_the_end() -> None:
    go_on = threading.Event()
    answered: list[stages.Outcome] = []

    def slow(call: int) -> int:
        go_on.wait(10)
        return call

    with stages.Stages([lambda call: call, slow, slow], answered.append) as under_way:
        under_way.call(1)
        under_way.call(2)
        go_on.set()
    assert [outcome.value for outcome in answered] == [1, 2]


def test_last_steps_are_taken_in_order_whichever_thread_takes_them() -> None:
    answered: list[stages.Outcome] = []
    threads: set[int] = set()

    def last(call: int) -> int:
        threads.add(threading.get_ident())
        if call % 3 == 1:
            raise ValueError(f"call {call}")
        return call * 10

    with stages.Behind(last, answered.append) as behind:
        for call in range(60):
            take = behind.later if call % 4 else behind.now
            take(stages.Outcome(call, None))
    assert [outcome.value for outcome in answered] == [None if call % 3 == 1 else call * 10 for call in range(60)]
    assert len(threads) == 2


def test_what_failed_before_passes_the_last_step_as_it_is() -> None:
    answered: list[stages.Outcome] = []
    failed = stages.Outcome(None, ValueError("no"))
    with stages.Behind(lambda call: 1 / 0, answered.append) as behind:
        behind.later(failed)
        behind.now(failed)
    assert answered == [failed, failed]


def test_a_last_step_that_is_taken_at_once_starts_no_thread() -> None:
    answered: list[stages.Outcome] = []
    before = threading.active_count()
    with stages.Behind(lambda call: call, answered.append) as behind:
        behind.now(stages.Outcome(1, None))
        assert threading.active_count() == before
