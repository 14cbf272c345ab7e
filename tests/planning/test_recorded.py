"""Recorded arrivals as a workload: as they were, thinned out, laid over each other, and round after round."""

from __future__ import annotations

import itertools
import math

import pytest

from carpool.scheduling import own_time, tuning
from carpool_sidecar.planning import fitting, recorded, replay, service_times, traffic
from carpool_sidecar.recording import document
from tests.planning import recordings

WINDOW = document.Setting(policy="window", max_latency=10.0, max_batch_size=8)
THREE = recorded.Arrivals(
    [0.0, 1.0, 3.0], [traffic.RequestKind(rows=1), traffic.RequestKind(rows=2), traffic.RequestKind(rows=3)], 4.0
)


def taken(stream, count: int) -> list[tuple[float, int]]:
    return [(time, kind.rows) for time, kind in itertools.islice(stream, count)]


def test_what_came_comes_again_round_after_round():
    assert taken(THREE.stream(), 5) == [(0.0, 1), (1.0, 2), (3.0, 3), (4.0, 1), (5.0, 2)]


def test_before_it_begins_its_end_is_played():
    assert taken(THREE.stream(before=1.5), 4) == [(0.5, 3), (1.5, 1), (2.5, 2), (4.5, 3)]
    assert taken(THREE.stream(before=5.0), 5) == [(0.0, 3), (1.0, 1), (2.0, 2), (4.0, 3), (5.0, 1)]


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("factor", [0.01, 0.3, 0.5, 1.0, 1.4, 2.0, 5.25])
def test_so_many_times_the_arrivals_come_in_order_and_with_the_rows_they_had(factor, in_turn):
    span = 40_000.0
    found = list(itertools.takewhile(lambda arrival: arrival[0] < span, THREE.stream(factor, 1, 0.0, in_turn)))
    times = [time for time, _ in found]
    assert times == sorted(times)
    assert times[0] >= 0
    expected = factor * 30_000
    assert len(found) == pytest.approx(expected, abs=4 * math.sqrt(expected))
    assert sum(kind.rows for _, kind in found) / len(found) == pytest.approx(2, rel=0.1)


def test_a_copy_is_shifted_and_does_not_double_each_request():
    times = [time for time, _ in itertools.islice(THREE.stream(3.0), 300)]
    assert len(set(times)) == 300


def test_blocks_are_put_in_the_order_in_which_their_requests_came():
    whole = recordings.recording(WINDOW, rate=100, seconds=2)
    [(_, block)] = whole.blocks
    mixed = [*block.at]
    mixed[3], mixed[10] = mixed[10], mixed[3]
    block.at[:] = mixed
    found = recorded.arrivals([block])
    assert list(found.times) == sorted(found.times)
    assert found.times[0] == 0
    assert found.rate == pytest.approx(100, rel=0.15)
    assert found.kinds[0] == traffic.RequestKind(1, None, 100, 1)


def test_the_latest_blocks_are_taken_and_at_least_one():
    blocks = [recordings.recording(WINDOW, rate=100, seconds=1).blocks[0][1] for _ in range(3)]
    each = len(blocks[0].at)
    assert recorded.latest(blocks, 2 * each) == blocks[1:]
    assert recorded.latest(blocks, 1) == blocks[2:]
    assert recorded.latest(blocks, 10**6) == blocks


def test_the_predictor_is_learned_from_the_batches_that_were_recorded():
    found = recordings.recording(document.Setting(policy="window", max_latency=5.0, max_in_flight=2), rate=150)
    model = fitting.model(found, found.present)
    service = model.predictor.service
    assert service.seconds(0, 0.0) == pytest.approx(0.010, rel=0.15)
    assert service.seconds(20, 0.0) - service.seconds(0, 0.0) == pytest.approx(0.010, rel=0.3)
    assert model.predictor.workers == 1
    assert model.is_varied
    assert service_times.parse(model.predictor.words).seconds(8, 0.0) == pytest.approx(
        service.seconds(8, 0.0), rel=0.01
    )


LEARNED = {
    "service_fixed_seconds": 0.02, "service_instance_seconds": 0.001, "overhead_seconds": 0.003, "workers": 2.0,
}  # fmt: skip


def test_what_the_policy_learned_counts_where_batches_are_too_much_alike_to_tell():
    alike = document.Setting(policy="window", max_latency=50.0, max_batch_size=1)
    found = recordings.recording(alike, rate=20, learned=LEARNED)
    predictor = fitting.model(found, found.present).predictor
    assert predictor.workers == 2
    fixed = predictor.service.seconds(0, 0.0)
    assert predictor.service.seconds(10, 0.0) == pytest.approx(1.5 * fixed)
    assert predictor.overhead == pytest.approx(0.15 * fixed)
    # How long a batch takes was recorded, and counts for more than what was learned.
    measured = replay.measured(found.present, recorded.arrivals(found.present))
    figures = replay.replay(alike, predictor, recorded.arrivals(found.present))
    assert figures.everybody.mean == pytest.approx(measured.everybody.mean, rel=0.1)


@pytest.mark.parametrize("variation", [0.1, 0.3])
def test_how_much_the_predictor_varies_is_seen_where_all_batches_are_of_one_size(variation):
    alike = document.Setting(policy="window", max_latency=50.0, max_batch_size=1)
    varied = recordings.TEN._replace(variation=variation)
    found = recordings.recording(alike, rate=40, predictor=varied)
    assert fitting.model(found, found.present).predictor.variation == pytest.approx(variation, rel=0.4)


def test_all_batches_count_even_if_the_last_ones_had_one_size():
    found = recordings.recording(WINDOW, rate=200)
    batches = found.present[0].batches
    for number in range(len(batches.rows) - 100, len(batches.rows)):
        batches.rows[number], batches.took[number] = 8, 15_000
    service = fitting.model(found, found.present).predictor.service
    assert service.seconds(32, 0.0) == pytest.approx(0.010 + 32 * 0.0005, rel=0.2)


QUICK = service_times.Predictor(service_times.Affine(0.0005, 0.00001), 0.0, 1, 0.05)
BUSY = own_time.OwnTime(0.0002, 0.00002)


@pytest.mark.parametrize("rate", [8_000, 20_000, 30_000])
def test_what_the_sidecar_takes_itself_is_told_apart_from_the_predictors_time(rate):
    """At 30,000 a second the core does four fifths of what it can, and round trips are twice the predictor's time."""
    setting = document.Setting(policy="window", max_latency=0.0, max_in_flight=2)
    found = recordings.recording(setting, rate=rate, seconds=0.7, predictor=QUICK, own=BUSY)
    model = fitting.model(found, found.present)
    assert model.own == BUSY
    assert model.predictor.service.seconds(16, 0.0) == pytest.approx(QUICK.service.seconds(16, 0.0), rel=0.1)
    arrivals = recorded.arrivals(found.present)
    measured = replay.measured(found.present, arrivals)
    figures = replay.replay(setting, model.predictor, arrivals, own=model.own)
    assert figures.everybody.mean == pytest.approx(measured.everybody.mean, rel=0.1)
    assert figures.mean_batch == pytest.approx(measured.mean_batch, rel=0.1)


_STAGE = service_times.Affine(0.004, 0.0001)
STAGES = service_times.Predictor(_STAGE, 0.001, 1, 0.05, (_STAGE,))
SEEN_OF_STAGES = {
    "service_fixed_seconds": 0.004, "service_instance_seconds": 0.00015, "overhead_seconds": 0.005, "workers": 1.0,
}  # fmt: skip


def test_batches_that_follow_each_other_sooner_than_they_take_show_a_predictor_in_stages():
    """One worker that took as long as both stages do would be busy for 1.4 times as long as there is."""
    setting = document.Setting(policy="adaptive", max_latency=None, max_batch_size=128)
    found = recordings.recording(setting, 5320, 1.5, STAGES, learned=SEEN_OF_STAGES, after=1.0)
    fitted = fitting.model(found, found.present).predictor
    assert fitted.later
    assert fitted.words.count(", then ") == len(fitted.later)
    arrivals = recorded.arrivals(found.present)
    measured = replay.measured(found.present, arrivals)
    figures = replay.replay(setting, fitted, arrivals)
    assert figures.everybody.mean == pytest.approx(measured.everybody.mean, rel=0.1)
    assert figures.mean_batch == pytest.approx(measured.mean_batch, rel=0.1)


def test_each_replay_is_told_and_so_many_workers_as_are_said_have_no_stages():
    setting = document.Setting(policy="adaptive", max_latency=None, max_batch_size=128)
    found = recordings.recording(setting, 5320, 1.0, STAGES, learned=SEEN_OF_STAGES, after=1.0)
    told: list[str] = []
    predictor = fitting.model(found, found.present, 2, told.append).predictor
    assert (predictor.workers, predictor.later) == (2, ())
    assert told
    assert all(label.startswith("a predictor that takes ") for label in told)


@pytest.mark.parametrize("workers", [0.0, -3.0, 1e9, math.inf, math.nan])
def test_numbers_that_cannot_have_been_learned_count_for_nothing(workers):
    learned = {"workers": workers, "own_batch_seconds": -1.0, "service_fixed_seconds": -1.0, "overhead_seconds": -1.0}
    found = recordings.recording(WINDOW, learned=learned)
    model = fitting.model(found, found.present)
    assert 1 <= model.predictor.workers <= tuning.MOST_WORKERS
    assert model.own == own_time.NO_TIME
    assert 0 < model.predictor.alone(1) < 0.1


def test_replays_that_refuse_nearly_all_do_not_change_what_batches_showed():
    found = recordings.recording(WINDOW)
    hasty = document.Recording(
        document.Head(version="1", settings=document.changed(WINDOW, {"slo": 0.001}), learned={}), found.blocks, 0
    )
    blocks = [block for _, block in found.blocks]
    assert fitting.model(hasty, blocks).predictor.alone(1) == pytest.approx(recordings.TEN.alone(1), rel=0.3)


def test_batches_that_took_no_time_are_refused():
    found = recordings.recording(WINDOW)
    batches = found.present[0].batches
    batches.took = [0] * len(batches.took)
    with pytest.raises(replay.Nothing, match="within a microsecond"):
        fitting.model(found, found.present)


def test_without_a_batch_there_is_nothing_to_replay():
    found = recordings.recording(WINDOW)
    batches = found.present[0].batches
    batches.sent, batches.rows, batches.took = [], [], []
    with pytest.raises(replay.Nothing, match="no batch came back"):
        fitting.model(found, found.present)
