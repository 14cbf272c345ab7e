"""Snapshots: counts as they are, rates and quantiles of the last seconds, queues by length."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from carpool.scheduling import limits, messages, scheduler, window
from carpool_sidecar import config, metrics
from carpool_sidecar.batching import calls
from carpool_sidecar.live import recorder, snapshots


class Stand:
    """A scheduler without a predictor, at a time that the test sets."""

    def __init__(self, **chosen):
        self.now = 100.0
        self.settings = config.Settings(policy="window", **chosen)
        self.counters = metrics.Metrics()
        bounds = limits.Limits(max_batch_size=32, max_latency=5.0, max_in_flight=1)
        ids = map(str, itertools.count())
        self.core = scheduler.Scheduler(bounds, window.Window(bounds), lambda: self.now, lambda: next(ids))
        sources = snapshots.Sources(
            self.core, self.counters, lambda: self.settings, lambda: "serving", lambda: 3, lambda: self.now,
            lambda: self.now + 1000.0,
        )  # fmt: skip
        self.snapshots = snapshots.Snapshots(sources, recorder.Keys())

    def submit(self, target, rows):
        request = messages.Request((target, (), b""), rows, 10 * rows, None, calls.Head(None, target))
        return self.core.submit(request)

    def take(self):
        return self.snapshots.take(1)


def test_counts_are_those_of_the_metrics_page():
    stand = Stand()
    stand.counters.predicted(200, 0.01)
    stand.counters.answered("passthrough", 404)
    stand.counters.rpc_answered("batched", 0, 2)
    stand.counters.refused.labels("queue_full").inc()
    stand.counters.batches.labels(messages.Reason.FULL).inc(4)
    stand.counters.batch_size.observe_all((8, 8))
    totals = stand.take().totals
    assert totals.answers == {"batched": 3, "passthrough": 1}
    assert totals.codes == {"200": 1, "404": 1, "OK": 2}
    assert (totals.refused, totals.batches, totals.rows) == ({"queue_full": 1}, {"full": 4}, 16)
    assert (totals.unbatched, totals.predictor_errors) == ({}, {})


def test_the_largest_batch_is_the_last_of_the_allowed_sizes_where_those_end_before_the_setting():
    stand = Stand(max_batch_size=64, allowed_batch_sizes="1,8,32")
    assert stand.take().largest_batch == stand.settings.scheduler_limits.max_batch_size == 32


def test_rates_are_those_of_the_last_two_seconds():
    stand = Stand()
    assert stand.take().rates is None
    for answers in (100, 10, 20, 30):
        stand.now += 1.0
        for _ in range(answers):
            stand.counters.predicted(200, 0.01)
        shot = stand.take()
    assert (shot.rates.answers, shot.rates.arrivals) == (25.0, 25.0)


def test_who_is_still_open_has_arrived_and_was_not_answered():
    stand = Stand()
    stand.take()
    stand.now += 2.0
    stand.core.ledger.reserve(requests=8)
    rates = stand.take().rates
    assert (rates.arrivals, rates.answers) == (4.0, 0.0)


def test_quantiles_are_those_of_the_last_ten_seconds_and_none_where_nothing_happened():
    stand = Stand()
    stand.counters.queue_seconds.observe(30.0)  # long ago
    assert stand.take().wait == snapshots.Quantiles(0, None, None)
    stand.now += 1.0
    stand.counters.queue_seconds.observe_all([0.002] * 100)
    wait = stand.take().wait
    assert wait.count == 100
    assert 1.0 <= wait.p50 <= 2.5
    for _ in range(60):
        stand.now += 0.25
        shot = stand.take()
    assert shot.wait.count == 0
    assert shot.window == pytest.approx(10.0)


def test_history_does_not_grow():
    stand = Stand()
    for _ in range(1000):
        stand.now += 0.25
        stand.take()
    assert len(stand.snapshots._samples) <= 42


def test_forgetting_makes_a_new_beginning():
    stand = Stand()
    stand.take()
    stand.now += 3600.0
    stand.counters.predicted(200, 0.01)
    stand.snapshots.forget()
    assert stand.take().rates is None


def test_queues_are_told_longest_first_and_only_some_of_them():
    stand = Stand()
    for number in range(40):
        stand.submit(f"/m{number}?secret=1", 1 + number % 30)
    stand.now += 0.5
    shot = stand.take()
    assert shot.keys == 40
    assert len(shot.queues) == snapshots.MOST_QUEUES
    rows = [queue.rows for queue in shot.queues]
    assert rows == sorted(rows, reverse=True)
    assert shot.queues[0].path == "/m29"
    assert (shot.queues[0].cap, shot.queues[0].waited, shot.queues[0].bytes) == (32, 500.0, 300)
    assert shot.queued_rows == stand.core.waiting_rows


def test_batches_at_the_predictor_are_told_with_how_long_they_have_been_there():
    stand = Stand()
    stand.submit("/m", 40)  # the rest of it waits
    stand.now += 0.02
    shot = stand.take()
    (out,) = shot.out
    assert (out.reason, out.rows, out.cap, out.requests, out.out, out.path) == ("full", 32, 32, 1, 20.0, "/m")
    assert (shot.in_flight, shot.in_flight_limit, shot.queued_rows) == (1, 1, 8)


def test_moments_are_unix_times():
    stand = Stand()
    stand.now += 5.5
    shot = stand.take()
    assert (shot.at, shot.uptime) == (1105.5, 5.5)


def test_a_snapshot_is_small_however_many_keys_wait():
    stand = Stand(max_queue_instances=100_000)
    for number in range(5000):
        stand.submit(f"/{'x' * 300}{number}", 1)
    assert len(msgspec.json.encode(stand.take())) < 12_000


def test_a_sidecar_that_batches_nothing_says_so():
    assert Stand(enable_batcher=False).take().sentences == ["Nothing is batched: --enable-batcher is false."]
