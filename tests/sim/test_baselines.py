"""The baselines do what the programs they stand for do; else we would beat men of straw."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.sim import baselines, contenders
from carpool_sidecar.planning import engine, service_times, traffic

TEN_MS = service_times.Predictor(service_times.Affine(0.010, 0.0), variation=0.0)


def run(make: engine.MakeScheduler, *times: float, rows: int = 1, timeout: float | None = None) -> engine.Result:
    return engine.simulate(make, TEN_MS, traffic.Open(times, 10.0, traffic.RequestKind(rows, timeout)))


def kserve(size: int, window: float) -> engine.MakeScheduler:
    return lambda clock: baselines.KServe(clock, size, window)


def sizes(result: engine.Result) -> list[int]:
    return [batch.rows for batch in result.batches]


def sent(result: engine.Result) -> list[float]:
    return [round(batch.sent, 6) for batch in result.batches]


def test_kserve_makes_a_lone_request_wait_for_the_whole_window() -> None:
    assert sent(run(kserve(32, 0.020), 1.0)) == [1.020]


def test_kserve_starts_the_window_when_its_loop_is_free_and_not_when_the_request_came() -> None:
    # The second one comes during the call of the first (1.020 to 1.030) and waits the window from its end.
    assert sent(run(kserve(32, 0.020), 1.0, 1.021)) == [1.020, 1.050]


def test_kserve_sends_more_than_its_batch_size_when_the_last_request_brings_more() -> None:
    assert sizes(run(kserve(32, 0.020), 1.0, 1.001, rows=24)) == [48]


def test_kserve_sends_a_full_batch_at_once_and_one_at_a_time() -> None:
    result = run(kserve(2, 0.020), 1.0, 1.001, 1.002, 1.003)
    assert sent(result) == [1.001, 1.011]


def test_an_eager_window_seals_batches_while_the_predictor_is_busy() -> None:
    result = run(lambda clock: baselines.EagerWindow(clock, 32, 0.002), 1.0, 1.003, 1.006)
    assert sent(result) == [1.002, 1.005, 1.008]
    assert [round(batch.started, 6) for batch in result.batches] == [1.002, 1.012, 1.022]


def test_clipper_grows_its_cap_by_one_while_the_objective_is_met() -> None:
    result = run(lambda clock: baselines.Clipper(clock, 32, 0.1), *[1.0] * 10)
    assert sizes(result) == [1, 2, 3, 4]


def test_clipper_shrinks_its_cap_by_a_tenth_when_it_is_not() -> None:
    made: list[baselines.Clipper] = []

    def make(clock: Callable[[], float]) -> baselines.Clipper:
        made.append(baselines.Clipper(clock, 32, 0.005))
        made[0]._cap = 20.0
        return made[0]

    run(make, 1.0)
    assert made[0]._cap == pytest.approx(18.0)


def test_clipper_drops_what_has_expired() -> None:
    result = run(lambda clock: baselines.Clipper(clock, 1, 0.1), 1.0, 1.0, 1.0, timeout=0.015)
    assert [outcome.refused for outcome in result.outcomes] == [None, None, "deadline"]


def test_bentoml_looks_again_a_tick_after_the_predictor_became_free() -> None:
    result = run(lambda clock: baselines.BentoML(clock, 32, 1.0), 1.0, 1.0005)
    assert sent(result) == [1.0, 1.0105]


def test_bentoml_sheds_heads_that_its_model_says_are_late() -> None:
    times = [1 + 0.2 * i for i in range(20)] + [7.0] * 60
    result = run(lambda clock: baselines.BentoML(clock, 8, 0.030), *times)
    assert {outcome.refused for outcome in result.outcomes[:20]} == {None}
    assert "queue_full" in {outcome.refused for outcome in result.outcomes[20:]}


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_hindsight_may_choose_any_window_with_any_sensible_number_in_flight(workers: int) -> None:
    names = contenders.fixed_settings((0, 5, 20), workers)
    assert len(names) == len(set(names)) == 3 * len({1, 2, workers, workers + 1})
    assert all(contenders.is_fixed(name) for name in names)
