"""The simulator obeys the laws of queues: if it did not, nothing it says about policies would count."""

from __future__ import annotations

import itertools
import math

import pytest

from benchmarks.sim import variants
from carpool.scheduling import limits, messages, scheduler, window
from carpool_sidecar.planning import engine, service_times, traffic

ALWAYS_10_MS = service_times.Predictor(service_times.Affine(0.010, 0.0), variation=0.0)
GPU = service_times.Predictor(service_times.Affine(0.010, 0.0005), overhead=0.004)


def full_or_old(size: int = 32, max_latency: float = 0.0, in_flight: int = 1, **more: float) -> engine.MakeScheduler:
    def make(clock: engine.Clock) -> engine.Scheduler:
        ids = itertools.count()
        bounds = limits.Limits(max_batch_size=size, max_latency=max_latency, max_in_flight=in_flight, **more)
        return scheduler.Scheduler(bounds, window.Window(bounds), clock, lambda: str(next(ids)))

    return make


def poisson(rate: float, seconds: float, timeout: float | None = None, seed: int = 3) -> traffic.Open:
    return traffic.Open(traffic.poisson(rate, seed), seconds, traffic.RequestKind(timeout=timeout))


def at(*times: float, timeout: float | None = None) -> traffic.Open:
    return traffic.Open(times, 1.0, traffic.RequestKind(timeout=timeout))


def callers(count: int, seconds: float, think: float = 0.0) -> variants.Closed:
    return variants.Closed(count, seconds, variants.constant_think(think), seed=3)


# --- theory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("variation", [0.0, 0.5])
def test_single_requests_on_one_worker_wait_as_pollaczek_and_khinchine_say(load: float, variation: float) -> None:
    predictor = ALWAYS_10_MS._replace(variation=variation)
    found = engine.simulate(full_or_old(size=1), predictor, poisson(load / 0.010, 600)).summary()
    wait = load * 0.010 * (1 + variation**2) / (2 * (1 - load))
    assert found.mean == pytest.approx(0.010 + wait, rel=0.04)
    assert found.utilisation == pytest.approx(load, rel=0.02)


def test_requests_in_the_house_are_throughput_times_latency() -> None:
    found = engine.simulate(full_or_old(), GPU, callers(20, 60)).summary()
    assert found.throughput * found.mean == pytest.approx(20, rel=0.01)


def test_one_caller_gets_one_answer_each_round_trip() -> None:
    predictor = ALWAYS_10_MS._replace(overhead=0.004)
    found = engine.simulate(full_or_old(), predictor, callers(1, 20, think=0.006)).summary()
    assert found.throughput == pytest.approx(50, rel=0.01)
    assert (found.p50, found.p99) == pytest.approx((0.014, 0.014))


def test_a_saturated_predictor_reaches_its_capacity_when_the_overhead_is_hidden() -> None:
    found = engine.simulate(full_or_old(in_flight=2), GPU, callers(256, 30)).summary()
    assert found.throughput == pytest.approx(GPU.capacity(32), rel=0.02)
    assert found.mean_batch == 32
    assert found.utilisation == pytest.approx(1, rel=0.02)


def test_noise_has_the_variation_and_the_mean_it_is_given() -> None:
    device = service_times.SimulatedPredictor(ALWAYS_10_MS._replace(variation=0.5), "any")
    times = [batch.ended - batch.started for batch in (device.serve(1, float(i)) for i in range(40_000))]
    mean = sum(times) / len(times)
    deviation = math.sqrt(sum((seconds - mean) ** 2 for seconds in times) / len(times))
    assert mean == pytest.approx(0.010, rel=0.02)
    assert deviation / mean == pytest.approx(0.5, rel=0.04)


def test_in_stages_a_batch_is_read_while_the_one_before_it_is_computed() -> None:
    stages = [service_times.Affine(0.010, 0.0), service_times.Affine(0.030, 0.0), service_times.Affine(0.020, 0.0)]
    predictor = ALWAYS_10_MS._replace(overhead=0.002, later=tuple(stages[1:]))
    device = service_times.SimulatedPredictor(predictor, "any")
    back = [device.serve(1, 0.0).returned for _ in range(3)]
    assert back == pytest.approx([0.062, 0.092, 0.122])
    assert device.serve(1, 1.0).returned == pytest.approx(1.062)
    assert predictor.capacity(32) == pytest.approx(32 / 0.030)


def test_bursts_keep_their_mean_rate_and_come_in_bursts() -> None:
    times = list(itertools.takewhile(lambda time: time < 500, variants.bursts(250, 50, 0.050, 0.150, seed=1)))
    assert len(times) / 500 == pytest.approx(100, rel=0.03)
    counts = [0] * 10_000
    for time in times:
        counts[int(time / 0.050)] += 1
    mean = sum(counts) / len(counts)
    assert sum((count - mean) ** 2 for count in counts) / len(counts) > 2 * mean  # Poisson: equal to the mean


# --- the engine --------------------------------------------------------------------------------------------------


def test_every_request_is_answered_or_refused_once() -> None:
    make = full_or_old(max_latency=0.005, max_queue_instances=40)
    result = engine.simulate(make, GPU, poisson(1.5 * GPU.capacity(32), 5, timeout=0.060))
    reasons = {outcome.refused for outcome in result.outcomes}
    assert reasons == {None, "queue_full", "deadline"}
    assert all(math.isfinite(outcome.finished) for outcome in result.outcomes)
    answered = [outcome for outcome in result.outcomes if outcome.refused is None]
    assert all(outcome.finished <= outcome.deadline and 1 <= outcome.batch_rows <= 32 for outcome in answered)
    assert len(answered) <= sum(batch.rows for batch in result.batches)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    def run(seed: int) -> engine.Summary:
        return engine.simulate(full_or_old(), GPU, poisson(800, 5), pods=3, seed=seed).summary()

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_lone_request_leaves_exactly_when_its_window_ends() -> None:
    result = engine.simulate(full_or_old(max_latency=0.020), ALWAYS_10_MS, at(0.5))
    assert [batch.sent for batch in result.batches] == [0.520]


def test_half_of_the_overhead_is_before_the_device_and_half_after() -> None:
    result = engine.simulate(full_or_old(), ALWAYS_10_MS._replace(overhead=0.004), at(0.5))
    (batch,) = result.batches
    assert batch == pytest.approx((0.500, 0.502, 0.512, 0.514, 1))
    assert result.outcomes[0].finished == batch.returned


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_device_works_on_as_many_batches_as_it_has_workers(workers: int) -> None:
    predictor = GPU._replace(workers=workers)
    result = engine.simulate(full_or_old(size=4, in_flight=8), predictor, callers(64, 5))
    changes = [(batch.started, 1) for batch in result.batches] + [(batch.ended, -1) for batch in result.batches]
    busy = list(itertools.accumulate(change for _, change in sorted(changes)))
    assert max(busy) == workers


def test_a_drifting_predictor_is_slow_from_begin_to_end() -> None:
    drifting = variants.Drifting(service_times.Affine(0.010, 0.0), factor=3.0, begin=0.3, end=0.6)
    result = engine.simulate(full_or_old(), ALWAYS_10_MS._replace(service=drifting), at(0.1, 0.4, 0.7))
    assert [outcome.finished - outcome.arrived for outcome in result.outcomes] == pytest.approx([0.010, 0.030, 0.010])


@pytest.mark.parametrize(("rows", "cost"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16), (32, 32)])
def test_padded_batches_cost_as_much_as_the_next_power_of_two(rows: int, cost: int) -> None:
    affine = service_times.Affine(0.010, 0.001)
    assert variants.Padded(affine).seconds(rows, 0.0) == affine.seconds(cost, 0.0)


def test_callers_that_are_refused_pause_and_ask_again() -> None:
    result = engine.simulate(full_or_old(max_queue_instances=1), ALWAYS_10_MS, callers(3, 1))
    assert {outcome.refused for outcome in result.outcomes} == {None, "queue_full"}
    assert len(result.outcomes) > 150


def test_a_scheduler_that_wants_to_be_polled_for_ever_is_an_error() -> None:
    class Spinning:
        def __init__(self, clock: engine.Clock) -> None:
            self._clock = clock

        def submit(self, request: messages.Request) -> list[messages.Effect]:
            return []

        def done(self, batch: messages.Batch, predictions: object) -> list[messages.Effect]:
            return []

        def poll(self) -> list[messages.Effect]:
            return []

        def next_deadline(self) -> float:
            return self._clock()

    with pytest.raises(engine.EndlessPolling, match="again"):
        engine.simulate(Spinning, ALWAYS_10_MS, at(0.5))


# --- many pods ---------------------------------------------------------------------------------------------------


def test_round_robin_gives_every_pod_the_same() -> None:
    result = engine.simulate(full_or_old(), GPU, poisson(2000, 1), pods=5, make_balancer=variants.RoundRobin)
    counts = [sum(outcome.pod == pod for outcome in result.outcomes) for pod in range(5)]
    assert max(counts) - min(counts) <= 1


def test_least_loaded_always_picks_a_pod_with_the_fewest_open_requests() -> None:
    balancer = traffic.LeastLoaded(7, seed=1)
    loads = [0] * 7
    source = iter(traffic.poisson(1.0, seed=5))
    for _ in range(5_000):
        if next(source) % 1 < 0.55:
            pod = balancer.pick()
            assert loads[pod] == min(loads)
            loads[pod] += 1
        elif any(loads):
            pod = loads.index(max(loads))
            balancer.left(pod)
            loads[pod] -= 1


def test_a_thousand_pods_share_a_load_and_the_least_loaded_is_quicker_than_a_random_one() -> None:
    def run(make_balancer: engine.MakeBalancer) -> engine.Result:
        return engine.simulate(
            full_or_old(size=1), ALWAYS_10_MS, poisson(70_000, 0.2), pods=1000, make_balancer=make_balancer
        )

    blind, seeing = run(variants.Random), run(traffic.LeastLoaded)
    assert len({outcome.pod for outcome in blind.outcomes}) == 1000
    assert seeing.summary(0.2).p99 < 0.6 * blind.summary(0.2).p99


# --- figures -----------------------------------------------------------------------------------------------------


def test_the_figures_of_a_small_run_are_what_one_counts_by_hand() -> None:
    result = engine.simulate(full_or_old(), ALWAYS_10_MS, at(0.2, 0.205, 0.4, 0.6, timeout=0.012))
    found = result.summary(warm_up=0.1)
    assert found.requests == 4
    assert found.mean == pytest.approx(0.010)  # the one at 0.205 cannot be back by 0.217
    assert found.refused == 0.25
    assert found.throughput == pytest.approx(3 / 0.9)
    assert found.goodput == pytest.approx(3 / 0.9)
    assert found.utilisation == pytest.approx(0.040 / 0.9)  # late work is work


def test_quantiles_are_values_that_occurred() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    assert [engine.quantile(values, share) for share in (0.0, 0.25, 0.5, 0.99, 1.0)] == [1, 1, 2, 4, 4]
    assert engine.quantile([], 0.5) == math.inf
