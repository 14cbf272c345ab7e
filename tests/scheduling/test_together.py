"""Requests that are submitted together fare as if they had come one after the other before anything was due."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from carpool import errors
from carpool.scheduling import adaptive, policy, window
from carpool.scheduling import limits as core_limits
from tests.scheduling.driven import DrivenScheduler
from tests.scheduling.test_asking_seldom import Site, World

TURNS = 60
TRAITS = {
    "content": lambda request: int(request.tag[1:]) % 7,
    "origin": lambda request: int(request.tag[1:]) % 3,
}


class HeldWindow(window.Window):
    """Allows no batch while it is held."""

    is_held = False

    @property
    def max_in_flight(self) -> float:
        return 0 if self.is_held else super().max_in_flight


class HeldAdaptive(adaptive.Adaptive):
    is_held = False

    @property
    def max_in_flight(self) -> float:
        return 0 if self.is_held else super().max_in_flight


class OneByOne(Site):
    """Submits them one by one, with a policy that is held meanwhile."""

    policy: Any

    def submit_all(self, *wanted: tuple[Any, ...]) -> None:
        self.policy.is_held = True
        refusals = [effect for about in wanted for effect in self.core.submit(self.make(*about))]
        self.policy.is_held = False
        is_any_taken = len(refusals) < len(wanted)
        self.do([*(self.core.reconsider() if is_any_taken else ()), *refusals])


def costs(rows: list[str], start: int, stop: int) -> list[int]:
    return [int(row.rpartition("/")[2]) % 3 for row in rows[start:stop]]


class Crowd(World):
    """Callers that come in groups, of few or many kinds, to a queue that may be full, costly or under suspicion."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        chance = self.chance
        self.limits |= {
            "max_queue_instances": chance.choice([10, 40, math.inf]),
            "max_queue_bytes": chance.choice([300, math.inf]),
            "slo": chance.choice([0.03, math.inf]),
            "timeout": chance.choice([0.2, 5.0, math.inf]),
            "max_batch_bytes": chance.choice([50, math.inf]),
            "traits": chance.choice([{}, TRAITS]),
        }
        if chance.random() < 0.3:
            self.limits |= {"row_costs": costs, "max_batch_cost": chance.choice([4, math.inf])}
        self._keys = chance.choice(["x", "xxxy", "xyz"])
        self._rows = chance.choice([[1], [1, 1, 1, 3], [1, 2, 5, 12]])
        self._priorities = chance.choice([[0], [0], [0, 0, 1, -1]])
        self._patience = chance.choice([[None], [None], [None, 0.02, 1.0]])

    def events(self) -> Iterator[tuple[Any, ...]]:
        chance, names, number = self.chance, [], 0
        for _ in range(TURNS):
            if chance.random() < 0.7:
                yield "pass_time", chance.choice([0.0, self.pace / 10, chance.expovariate(1 / self.pace)])
            if names and chance.random() < 0.2:
                yield "cancel", names.pop(chance.randrange(len(names)))
            wanted = []
            for _ in range(chance.choice([0, 1, 2, 5, 20])):
                number += 1
                names.append(f"r{number}")
                wanted.append(
                    (
                        names[-1], chance.choice(self._rows), chance.choice(self._keys), chance.choice(self._patience),
                        chance.choice([10, 10, 40]), math.inf, chance.choice(self._priorities),
                    )
                )  # fmt: skip
            yield "submit_all", *wanted
        yield "pass_time", 100.0


def held_window(limits: core_limits.Limits, tick: float) -> policy.Policy:
    return HeldWindow(limits)


@pytest.mark.parametrize("policy", [HeldAdaptive, held_window])
@given(seed=st.integers(0, 2**32))
def test_a_group_has_the_outcome_of_its_requests_one_by_one_while_nothing_was_due(policy, seed):
    crowd = Crowd(seed)
    together, one_by_one = Site(crowd, policy), OneByOne(crowd, policy)
    for event, *arguments in crowd.events():
        for site in (together, one_by_one):
            getattr(site, event)(*arguments)
        assert together.trace == one_by_one.trace, (event, arguments)
        for name, request in together.requests.items():
            other = one_by_one.requests[name]
            assert (request.deadline, request.goal, request.open) == (other.deadline, other.goal, other.open)
        assert together.core.next_deadline() == one_by_one.core.next_deadline()
    assert together.core.idle
    assert together.core.ledger.held == 0
    assert (
        set(together.answers) | set(together.refusals) | {name for name, r in together.requests.items() if not r.open}
    )


# --- what that means ---------------------------------------------------------------------------------------------


def test_a_group_that_comes_to_an_idle_predictor_travels_in_one_batch():
    driven = DrivenScheduler(adaptive.Adaptive, max_batch_size=8)
    driven.submit_all(("a",), ("b",), ("c",))
    assert [driven.members(batch) for batch in driven.sent] == [["a", "b", "c"]]


def test_a_group_larger_than_a_batch_leaves_in_full_batches_as_far_as_there_are_slots(driven_of):
    driven = driven_of(max_batch_size=2, max_in_flight=2, max_latency=10.0)
    driven.submit_all(*[(name,) for name in "abcdef"])
    assert [driven.members(batch) for batch in driven.sent] == [["a", "b"], ["c", "d"]]
    assert driven.core.waiting_rows == 2


def test_no_requests_have_no_effects(driven):
    assert list(driven.core.submit_all([])) == []
    assert driven.core.next_deadline() is None


def test_of_a_group_that_does_not_fit_those_that_fit_are_taken(driven_of):
    driven = driven_of(max_batch_size=9, max_latency=0.5, max_queue_instances=4)
    driven.submit_all(("a", 2), ("too many", 3), ("b", 1), ("c", 1), ("one too many", 1), ("never", 5))
    assert {name: type(error) for name, error in driven.refusals.items()} == {
        "too many": errors.Overloaded, "one too many": errors.Overloaded, "never": errors.PayloadTooLarge,
    }  # fmt: skip
    driven.pass_time(0.5)
    assert driven.members(driven.sent[0]) == ["a", "b", "c"]


def test_batches_leave_before_refusals_are_told(driven_of):
    driven = driven_of(max_batch_size=2, max_latency=0.5, max_queue_instances=2)
    effects = driven.core.submit_all([driven.make("a"), driven.make("b"), driven.make("c")])
    assert [type(effect).__name__ for effect in effects] == ["Dispatch", "Refuse"]


def test_a_group_that_comes_while_draining_is_refused(driven):
    driven.do(driven.core.drain())
    driven.submit_all(("a",), ("b",))
    assert {type(error) for error in driven.refusals.values()} == {errors.Draining}


def test_each_of_a_group_has_the_deadline_that_it_asked_for(driven_of):
    driven = driven_of(max_latency=100.0, timeout=10.0, slo=5.0)
    driven.submit_all(("usual",), ("hasty", 1, "key", 1.0), ("greedy", 1, "key", 99.0), ("patient", 1, "key", 7.0))
    found = [(request.deadline - 1000, request.goal - 1000) for request in driven.requests.values()]
    assert found == [(10.0, 5.0), (1.0, 1.0), (10.0, 5.0), (7.0, 5.0)]
    driven.pass_time(1.0)
    assert [*driven.refusals] == ["hasty"]


def test_a_group_reads_the_clock_once(driven):
    readings = []
    driven.core._clock = lambda: readings.append(None) or 1000.0
    driven.submit_all(("a",), ("b",), ("c",))
    assert len(readings) == 1


def test_what_leaves_of_a_turn_that_does_not_all_fit_makes_room_for_the_next(driven_of):
    driven = driven_of(max_batch_size=2, max_latency=0.5, max_in_flight=1, max_queue_instances=2)
    driven.do(driven.core.submit_turn([driven.make(name) for name in "abcde"]))
    assert driven.members(driven.out[0]) == ["a", "b"]
    assert list(driven.refusals) == ["e"]


def test_a_turn_that_fits_travels_together(driven_of):
    driven = driven_of(max_batch_size=4, max_latency=0.0, max_in_flight=1, max_queue_instances=4)
    driven.do(driven.core.submit_turn([driven.make(name) for name in "abcd"]))
    assert driven.sizes == [4]
