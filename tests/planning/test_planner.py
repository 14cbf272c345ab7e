"""A plan is the smallest that keeps the objective, and it agrees with simulating the whole fleet."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import pytest

from benchmarks.sim import variants
from carpool_sidecar.planning import engine, planner, service_times, traffic

# Small batches, so that a short run sees many of them.
QUICK = planner.Effort(short=1_000, long=4_000)
PREDICTOR = service_times.Predictor(service_times.parse("10+1n"), overhead=0.001)
QUESTION = planner.Question(rate=2000, slo=0.040, predictor=PREDICTOR, max_batch_size=4)


@functools.cache
def quick_plan(**changes: object) -> planner.Plan:
    return planner.plan(dataclasses.replace(QUESTION, **changes), effort=QUICK)


def fleet(question: planner.Question, pods: int, requests: int, make: engine.MakeBalancer) -> planner.Forecast:
    """All pods and their balancer, with other arrivals than the planner's."""
    workload = traffic.Open(traffic.poisson(question.rate, seed=5), requests / question.rate)
    bounds, overhead = planner.limits_of(question), question.predictor.overhead
    make_scheduler = planner.make_scheduler(bounds, "adaptive", overhead)
    return planner.judge(question, pods, engine.simulate(make_scheduler, question.predictor, workload, pods, make))


# --- the search --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("balancer", planner.Balancing)
def test_the_plan_keeps_the_objective_and_one_pod_fewer_does_not(balancer: planner.Balancing) -> None:
    plan = quick_plan(balancer=balancer)
    assert plan.fewer is not None
    assert (plan.fewer.pods, plan.step) == (plan.chosen.pods - 1, 1)
    assert plan.fewer.in_time < QUESTION.share <= plan.chosen.in_time
    assert plan.more.pods >= 1.25 * plan.chosen.pods


def test_a_load_that_one_pod_carries_needs_one_pod() -> None:
    plan = quick_plan(rate=10)
    assert (plan.chosen.pods, plan.fewer, plan.more.pods) == (1, None, 2)


def test_no_plan_is_below_what_full_batches_can_do() -> None:
    plan = quick_plan(slo=1.0)
    assert plan.chosen.pods >= QUESTION.share * QUESTION.rate / QUESTION.capacity
    assert plan.chosen.load > 0.9


def test_more_requests_never_need_fewer_pods() -> None:
    plans = [quick_plan(rate=rate).chosen.pods for rate in (50, 400, 1000)]
    assert plans == sorted(plans)
    assert plans[-1] > plans[0]


def test_a_tighter_objective_never_needs_fewer_pods() -> None:
    plans = [quick_plan(slo=slo).chosen.pods for slo in (0.100, 0.040, 0.035)]
    assert plans == sorted(plans)
    assert plans[-1] > plans[0]


def test_large_fleets_are_planned_to_half_a_percent() -> None:
    plan = quick_plan(rate=90_000)
    assert plan.fewer is not None
    assert 1 <= plan.step <= plan.chosen.pods / 200
    assert plan.fewer.in_time < QUESTION.share <= plan.chosen.in_time


def test_two_workers_need_about_half_of_the_pods() -> None:
    one, two = (quick_plan(rate=1000, predictor=PREDICTOR._replace(workers=workers)).chosen.pods for workers in (1, 2))
    assert 0.3 * one <= two <= 0.7 * one


def test_each_run_is_told_before_it_starts_and_the_same_question_gets_the_same_answer() -> None:
    told: list[tuple[int, int]] = []
    plan = planner.plan(
        dataclasses.replace(QUESTION, rate=50), lambda pods, requests: told.append((pods, requests)), QUICK
    )
    assert len(told) == len(set(told))
    assert sum(requests for _, requests in told) == pytest.approx(plan.simulated, rel=0.05)
    assert plan == quick_plan(rate=50)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"slo": 0.0119}, "one instance alone takes 12 ms .* no number of pods helps"),
        ({"slo": 0.0121}, "even a pod with nothing else to do answers only .* no number of pods helps"),
    ],
)
def test_an_objective_that_no_number_of_pods_keeps_is_refused(changes: dict[str, float], complaint: str) -> None:
    with pytest.raises(planner.Infeasible, match=complaint):
        quick_plan(**changes)


# --- against whole fleets ----------------------------------------------------------------------------------------

# The forecast is of pods that have learned. A whole fleet can be simulated only for so long, so its pods are young, and
# as they all start at once they probe their predictors at once, around their 24th and 72nd batch. In this cell that and
# chance stay within a point; with larger batches nearer to capacity a young fleet falls short by more for a moment.
TOLERANCE = 0.01
FLEETS = [(10, 600), (100, 60), (1000, 24)]  # pods, requests for each
LOAD = 0.7


def question_for(pods: int, balancer: planner.Balancing) -> planner.Question:
    return dataclasses.replace(QUESTION, rate=LOAD * QUESTION.capacity * pods, balancer=balancer)


@functools.cache
def foretold(pods: int, balancer: planner.Balancing) -> planner.Forecast:
    return planner.forecast(question_for(pods, balancer), pods, 16_000)


def test_behind_a_random_balancer_only_the_rate_of_a_pod_matters() -> None:
    few, many = (foretold(pods, planner.Balancing.RANDOM) for pods in (10, 1000))
    assert few.in_time == pytest.approx(many.in_time, abs=0.001)


@pytest.mark.parametrize(("pods", "each"), FLEETS)
def test_a_random_fleet_does_what_one_pod_foretold(pods: int, each: int) -> None:
    expected = foretold(1000, planner.Balancing.RANDOM)
    found = fleet(question_for(pods, planner.Balancing.RANDOM), pods, pods * each, variants.Random)
    assert 0.97 < expected.in_time < 0.999
    assert found.in_time == pytest.approx(expected.in_time, abs=TOLERANCE)
    assert found.p50 == pytest.approx(expected.p50, rel=0.05)
    assert found.mean_batch == pytest.approx(expected.mean_batch, rel=0.05)


@pytest.mark.parametrize(("pods", "each"), FLEETS)
def test_a_least_loaded_fleet_does_no_worse_than_foretold_for_either_balancer(pods: int, each: int) -> None:
    random, least_loaded = foretold(1000, planner.Balancing.RANDOM), foretold(1000, planner.Balancing.LEAST_LOADED)
    found = fleet(question_for(pods, planner.Balancing.LEAST_LOADED), pods, pods * each, traffic.LeastLoaded)
    assert found.in_time >= max(random.in_time, least_loaded.in_time - TOLERANCE)


def test_a_fleet_served_in_turn_does_what_one_pod_with_every_nth_request_foretold() -> None:
    expected = foretold(100, planner.Balancing.ROUND_ROBIN)
    found = fleet(question_for(100, planner.Balancing.ROUND_ROBIN), 100, 10_000, variants.RoundRobin)
    assert found.in_time == pytest.approx(expected.in_time, abs=TOLERANCE)
    assert found.p50 == pytest.approx(expected.p50, rel=0.05)


def test_margins_cover_what_other_arrivals_would_have_shown() -> None:
    question = question_for(1, planner.Balancing.RANDOM)
    runs = [fleet(question, 1, 6_000, variants.Random)]
    runs += [planner.forecast(question, 1, requests) for requests in (6_000, 16_000)]
    for one, other in itertools.combinations(runs, 2):
        assert abs(one.in_time - other.in_time) <= 2 * (one.margin + other.margin)
    assert runs[2].margin < runs[1].margin
