"""How far apart batches leave while others are out: found by what callers get."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import tuning
from carpool.scheduling.adaptive import Adaptive
from carpool.scheduling.messages import Batch, Part, Reason, Request
from carpool.scheduling.spacing import Spacing
from carpool_sidecar import errors
from tests.scheduling.driven import DrivenScheduler

ALONE, SHARES = 0.010, (0.0, 0.4, 0.55, 0.7)


def batch_of(requests: int, arrived: float, reason: Reason = Reason.JUST_IN_TIME) -> Batch:
    made = [Request("key", 1) for _ in range(requests)]
    for request in made:
        request.arrived = arrived
    return Batch("id", "key", [Part(request, 0, 1) for request in made], reason)


class Callers:
    """Batches one after another, of callers who are answered after `seconds` for the share in use."""

    def __init__(self, seconds: Callable[[float], float], natural: float = 0.8, noise: float = 0.0) -> None:
        self.spacing = Spacing()
        self.seconds = seconds
        self.natural = natural  # how far apart batches are that nobody holds back
        self.noise = noise
        self.chance = random.Random(5)
        self.now = 1.0
        self.used: list[float] = []

    def run(self, batches: int, requests: int = 20, beside: int = 1, reason: Reason = Reason.JUST_IN_TIME) -> Callers:
        for _ in range(batches):
            sent = batch_of(requests, 0.0, reason)
            self.spacing.sent(sent, self.now, ALONE, beside)
            share = (self.spacing.next_at - self.now) / ALONE
            self.used.append(min(SHARES, key=lambda each: abs(each - share)))
            took = self.seconds(self.used[-1]) * self.chance.lognormvariate(0, self.noise)
            self.now += max(self.natural, self.used[-1]) * ALONE
            for part in sent.parts:
                part.request.arrived = self.now - took
            self.spacing.completed(sent, self.now, beside)
        return self


def quickest_at(best: float) -> Callable[[float], float]:
    return lambda share: 0.010 * (1 + abs(share - best))


def test_before_anything_is_measured_batches_are_not_kept_apart():
    assert Spacing().share == 0.0
    assert set(Callers(quickest_at(0.7)).run(tuning.SPACING_FIRST - 1).used) == {0.0}


@given(best=st.sampled_from(SHARES), noise=st.sampled_from([0.0, 0.05]), natural=st.sampled_from([0.75, 1.0, 3.0]))
def test_the_distance_is_found_at_which_callers_are_answered_soonest(best, noise, natural):
    callers = Callers(quickest_at(best), natural, noise).run(1500)
    assert abs(callers.spacing.share - best) <= (0.15 if noise else 0.0)


@given(best=st.sampled_from(SHARES), then=st.sampled_from(SHARES))
def test_another_load_is_measured_anew(best, then):
    callers = Callers(quickest_at(best)).run(4000)
    callers.seconds = quickest_at(then)
    assert callers.run(1000, requests=60).spacing.share == then


@pytest.mark.parametrize("mean", [1.0, 2.0, 5.0])
def test_small_batches_whose_mean_only_wanders_are_no_other_load(mean):
    callers, chance = Callers(lambda share: 0.010), random.Random(7)
    for _ in range(20_000):
        callers.run(1, requests=1 + int(chance.expovariate(1 / mean)))
    assert sum(share > 0 for share in callers.used) <= 0.03 * len(callers.used)


def test_what_makes_no_difference_is_hardly_tried():
    callers = Callers(lambda share: 0.010).run(20_000)
    assert callers.spacing.share == 0.0
    assert sum(share > 0 for share in callers.used) <= 0.02 * len(callers.used)


def test_times_that_vary_by_themselves_are_seldom_taken_for_a_gain():
    settled = 0
    for seed in range(100):
        callers = Callers(lambda share: 0.010, noise=1.0)
        callers.chance.seed(seed)
        settled += callers.run(1000).spacing.share > 0
    assert settled <= 10


def test_a_distance_that_is_clearly_worse_is_left_after_two_turns():
    callers = Callers(lambda share: 0.010 if not share else 0.020).run(10_000)
    trials = math.log2(len(callers.used) / tuning.SPACING_FIRST)
    assert 0 < sum(share > 0 for share in callers.used) <= trials * (tuning.SPACING_TURN + 3)


@pytest.mark.parametrize(("natural", "tried"), [(0.3, {0.0}), (0.4, {0.0, 0.4}), (0.55, {0.0, 0.4, 0.55})])
def test_no_distance_is_tried_that_would_keep_the_predictor_waiting(natural, tried):
    assert set(Callers(lambda share: 0.010, natural).run(3000).used) == tried


@pytest.mark.parametrize(("beside", "reason"), [(0, Reason.IDLE), (2, Reason.FULL)])
def test_batches_that_no_distance_can_hold_back_begin_no_trial(beside, reason):
    callers = Callers(quickest_at(0.7)).run(1000, beside=beside, reason=reason)
    assert set(callers.used) == {0.0}


def test_a_mean_counts_callers_and_not_batches():
    """Large batches that are answered a little later outweigh small ones that are answered far sooner."""
    spacing = Spacing()
    now = 1.0
    for turn in range(2000):
        is_large = turn % 2
        sent = batch_of(40 if is_large else 1, 0.0)
        spacing.sent(sent, now, ALONE, 1)
        is_apart = spacing.next_at > now + ALONE / 10
        took = (0.012 if is_apart else 0.010) if is_large else (0.001 if is_apart else 0.010)
        now += ALONE
        for part in sent.parts:
            part.request.arrived = now - took
        spacing.completed(sent, now, 1)
    assert spacing.share == 0.0


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 10.0), st.floats(0.0, 1.0), st.integers(0, 4), st.integers(1, 300), st.sampled_from(Reason)
        ),
        max_size=300,
    )
)
def test_nobody_waits_longer_than_the_batch_before_takes(events):
    spacing, now = Spacing(), 0.0
    for passed, alone, beside, requests, reason in events:
        now += passed
        sent = batch_of(requests, now, reason)
        spacing.sent(sent, now, alone, beside)
        assert now <= spacing.next_at <= now + max(SHARES) * alone
        assert spacing.share in SHARES
        spacing.completed(sent, now + alone, beside)


def in_a_trial() -> Callers:
    callers = Callers(quickest_at(0.4))
    while not any(callers.used):
        callers.run(1)
    return callers


@pytest.mark.parametrize("further", [0, 5, 15])
def test_a_failed_batch_ends_the_trial(further):
    """What callers get from a predictor that fails tells nothing about distances, and its trial would never end."""
    callers = in_a_trial().run(further)
    callers.spacing.failed()
    assert callers.spacing.next_at <= callers.now
    used = len(callers.used)
    assert set(callers.run(tuning.SPACING_FIRST - 1).used[used:]) == {0.0}
    assert callers.run(200).spacing.share == 0.4


class Beside:
    """A known predictor with two places, where a batch takes 10 ms: one is out, and the next may leave 9 ms later."""

    def __init__(self, **limits: float) -> None:
        self.driven = DrivenScheduler(Adaptive, max_batch_size=32, max_in_flight=2, **limits)
        self.policy = self.driven.core.policy
        assert isinstance(self.policy, Adaptive)
        self.policy.predictor.hint_overhead(0.006)
        for number in range(10):
            self.driven.submit(f"lesson{number}")
            self.driven.pass_time(0.010)
            self.driven.answer()
        self.driven.submit("out")
        self.policy.spacing.next_at = self.driven.now + 0.009

    @property
    def sent(self) -> list[list[str]]:
        return [self.driven.members(batch) for batch in self.driven.out]


def test_a_goal_ends_the_wait():
    beside = Beside()
    beside.driven.submit("waits", timeout=0.0155)
    beside.driven.pass_time(0.0060)
    assert beside.sent == [["out"], ["waits"]]


@pytest.mark.parametrize("together", [False, True])
def test_the_goal_of_whoever_comes_later_ends_the_wait_too(together):
    beside = Beside()
    beside.driven.submit("has time")
    if together:
        beside.driven.submit_all(("has time too",), ("hurries", 1, "key", 0.0155), ("has time as well",))
    else:
        beside.driven.submit("hurries", timeout=0.0155)
    beside.driven.pass_time(0.0060)
    assert "hurries" in beside.sent[1]


def test_a_goal_that_left_ends_no_wait():
    beside = Beside()
    beside.driven.submit("has time")
    beside.driven.core.cancel(beside.driven.submit("hurries", timeout=0.0155))
    beside.driven.pass_time(0.0060)
    assert beside.sent == [["out"]]


@pytest.mark.parametrize(("bound", "waited"), [(0.0, 0.0), (0.004, 0.004), (0.5, 0.009)])
def test_no_request_waits_longer_than_max_latency(bound, waited):
    beside = Beside(max_latency=bound)
    beside.driven.submit("waits")
    beside.driven.pass_time(waited - 0.0005 if waited else 0.0)
    assert len(beside.sent) == (1 if waited else 2)
    beside.driven.pass_time(0.0005)
    assert beside.sent == [["out"], ["waits"]]


def test_no_request_waits_for_others_longer_than_20_milliseconds():
    beside = Beside()
    beside.policy.spacing.next_at = math.inf
    beside.driven.submit("waits")
    beside.driven.pass_time(0.0195)
    assert beside.sent == [["out"]]
    beside.driven.pass_time(0.0005)
    assert beside.sent == [["out"], ["waits"]]


def test_a_bound_that_changes_holds_for_those_who_wait_already():
    beside = Beside()
    beside.driven.submit("waits")
    assert beside.sent == [["out"]]
    beside.driven.change(max_latency=0.0)
    assert beside.sent == [["out"], ["waits"]]


def test_a_batch_that_fails_ends_the_trial_of_the_policy():
    beside = Beside()
    callers = in_a_trial()
    beside.policy.spacing = callers.spacing
    beside.driven.fail(errors.UpstreamTimeout())
    assert callers.spacing.next_at <= callers.now
