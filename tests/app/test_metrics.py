"""Counters and histograms of our own tell a scraper the same as the client library's would."""

from __future__ import annotations

import prometheus_client as prometheus
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool import measures
from carpool.scheduling import messages
from carpool_sidecar import metrics
from carpool_sidecar.batching import executor
from carpool_sidecar.recording import ring

BOUNDS = (0.5, 1, 2.5, 1024)
VALUES = st.lists(st.sampled_from([0.0, *BOUNDS]) | st.floats(0, 2000))


prometheus.disable_created_metrics()  # as the sidecar does


def page(*collectors) -> bytes:
    registry = prometheus.CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return prometheus.generate_latest(registry)


@given(one_by_one=VALUES, at_once=VALUES)
def test_a_histogram_reads_like_the_librarys_own(one_by_one, at_once):
    ours = measures.Histogram(BOUNDS)
    theirs = prometheus.Histogram("seconds", "Some time.", buckets=BOUNDS, registry=None)
    for value in one_by_one:
        ours.observe(value)
    ours.observe_all(at_once)
    for value in [*one_by_one, *at_once]:
        theirs.observe(value)
    shown = metrics.HistogramFamily("seconds", "Some time.", ours)
    lines = zip(page(shown).splitlines(), page(theirs).splitlines(), strict=True)
    for our, their in lines:
        if b"_sum" in our:  # which may add up in another order
            assert float(our.split()[1]) == pytest.approx(float(their.split()[1]))
        else:
            assert our == their


@given(st.lists(st.tuples(st.sampled_from(["a", 'b"\n\\']), st.integers(200, 202), st.integers(1, 3))))
def test_a_counter_reads_like_the_librarys_own(events):
    ours = metrics.Counter("things", "Some things.", ("lane", "code"))
    theirs = prometheus.Counter("things", "Some things.", ("lane", "code"), registry=None)
    for lane, code, amount in events:
        ours.labels(lane, code).inc(amount)
        theirs.labels(lane, str(code)).inc(amount)
    assert page(ours) == page(theirs)


def test_label_values_that_read_the_same_are_counted_together():
    ours = metrics.Counter("things", "Some things.", ("code",))
    ours.labels(200).inc()
    ours.labels("200").inc()
    assert b'things_total{code="200"} 2.0' in page(ours)


def test_a_missing_label_is_an_error():
    with pytest.raises(ValueError, match="things has the labels"):
        metrics.Counter("things", "Some things.", ("lane", "code")).labels("batched")


def value(counters: metrics.Metrics, name: str, **labels: str) -> float | None:
    return counters.registry.get_sample_value(f"carpool_{name}", labels)


def test_predictions_count_as_answers_of_the_batched_lane_with_their_time():
    counters = metrics.Metrics()
    counters.predicted(200, 0.25)
    counters.batched_ok.value += 2
    counters.request_seconds.observe_all([0.5, 0.75])
    counters.predicted(503, 1.0)
    assert value(counters, "requests_total", lane="batched", code="200") == 3
    assert value(counters, "requests_total", lane="batched", code="503") == 1
    assert value(counters, "request_seconds_count") == 4
    assert value(counters, "request_seconds_sum") == 2.5


@pytest.mark.parametrize(
    ("reason", "waits", "retries"), [(messages.Reason.FULL, 1, None), (messages.Reason.ISOLATE, 0, 1)]
)
def test_a_request_has_waited_when_its_first_rows_leave_for_the_first_time(reason, waits, retries):
    counters = metrics.Metrics()
    request = messages.Request("key", 5)
    request.arrived = 1.0
    for start, stop in [(0, 2), (2, 5)]:
        batch = messages.Batch("id", "key", [messages.Part(request, start, stop)], messages.Reason(reason))
        batch.dispatched = 1.5
        executor.Observer(counters).sent(batch)
    assert value(counters, "queue_wait_seconds_count") == waits
    assert value(counters, "queue_wait_seconds_sum") == waits * 0.5
    assert value(counters, "batch_size_sum") == 5
    assert value(counters, "retries_total", reason=reason) == (retries and 2)


def test_who_goes_again_among_suspects_has_waited_and_come_once():
    counters = metrics.Metrics()
    kept = ring.Ring(lambda: ring.Measures(*[counters.queue_seconds.read()] * 4), lambda: 2.0)
    observer, request = executor.Observer(counters, kept=kept), messages.Request("key", 5)
    request.arrived = 1.0
    for reason in (messages.Reason.FULL, messages.Reason.SUSPECT, messages.Reason.FULL):
        batch = messages.Batch("id", "key", [messages.Part(request, 0, 5)], reason)
        batch.dispatched = 1.5
        observer.sent(batch)
        request.take_back()  # as the scheduler does when it puts it among suspects
    assert value(counters, "queue_wait_seconds_count") == 1
    assert [time for block in kept.blocks() for time in block.times] == [1.0]
