"""Small requests go before larger ones, for a while: who overtakes whom, and who cannot."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from carpool.scheduling import backlog, limits, messages


@pytest.fixture
def busy(driven_of):
    """Batches of 4 for a predictor that is busy with one; up to 1 instance is small; ageing takes a second."""
    driven = driven_of(max_batch_size=4, max_latency=0.0, small_batch_threshold=1, priority_ageing=1.0)
    driven.submit("busy", rows=4, key="other")
    return driven


def order(driven):
    """Names in the order in which their first rows left, without the one that keeps the predictor busy."""
    driven.answer_all()
    return list(dict.fromkeys(name for batch in driven.sent[1:] for name in driven.members(batch)))


def test_a_small_request_overtakes_a_larger_one(busy):
    busy.submit("large", rows=3)
    busy.submit("small")
    assert order(busy) == ["small", "large"]


def test_requests_of_one_priority_leave_in_order_of_arrival(busy):
    for name, rows in [("A", 2), ("a", 1), ("B", 3), ("b", 1), ("C", 2), ("c", 1)]:
        busy.submit(name, rows)
        busy.pass_time(0.01)
    assert order(busy) == ["a", "b", "c", "A", "B", "C"]


def test_a_larger_request_is_not_overtaken_by_one_that_came_a_whole_ageing_later(busy):
    busy.submit("large", rows=3)
    busy.pass_time(0.75)
    busy.submit("in time", rows=1)
    busy.pass_time(0.25)
    busy.submit("too late", rows=1)
    assert order(busy) == ["in time", "large", "too late"]


def test_no_stream_of_small_requests_starves_a_larger_one(busy):
    busy.submit("large", rows=4)
    for i in range(400):
        busy.submit(f"s{i}")
        busy.pass_time(0.01)
        if i % 4 == 3:
            busy.answer()
    left = [busy.members(batch) for batch in busy.sent].index(["large"])
    assert 1001.0 <= busy.sent[left].dispatched < 1001.1


def test_a_request_whose_first_rows_travel_is_not_overtaken_any_more(busy):
    busy.submit("large", rows=6)
    busy.answer()
    busy.submit("small")
    assert order(busy) == ["large", "small"]
    assert busy.members(busy.sent[2]) == ["large", "small"]


def test_without_a_threshold_size_does_not_matter(busy):
    busy.limits.small_batch_threshold = 0
    busy.submit("large", rows=3)
    busy.submit("small")
    assert order(busy) == ["large", "small"]


def test_a_changed_threshold_is_for_those_who_come_later(busy):
    busy.submit("A", rows=3)
    busy.limits.small_batch_threshold = 3
    busy.do(busy.core.limits_changed())
    busy.submit("B", rows=3)
    assert order(busy) == ["B", "A"]


def test_without_ageing_nobody_overtakes(busy):
    busy.limits.priority_ageing = 0.0
    busy.submit("large", rows=3)
    busy.submit("small")
    assert order(busy) == ["large", "small"]


def test_age_counts_from_arrival_whatever_the_priority(driven_of):
    driven = driven_of(max_batch_size=4, max_latency=0.5, small_batch_threshold=1)
    driven.submit("large", rows=2)
    driven.pass_time(0.4)
    driven.submit("small")
    driven.pass_time(0.1)
    assert [driven.members(batch) for batch in driven.sent] == [["small", "large"]]


# --- several keys -------------------------------------------------------------------------------------------------

BOUNDS = limits.Limits(max_batch_size=8, small_batch_threshold=2, priority_ageing=1.0)


def waiting_of(arrivals):
    """A backlog and its requests, from (gap in seconds, key, rows)."""
    waiting, requests, now = backlog.Backlog(BOUNDS), [], 0.0
    for sequence, (gap, key, rows) in enumerate(arrivals):
        now += gap
        request = messages.Request(key, rows)
        request.sequence, request.arrived = sequence, now
        requests.append(request)
        waiting.add(request)
    return waiting, requests


def test_a_small_request_goes_before_a_larger_one_of_another_key():
    waiting, _ = waiting_of([(0, "x", 5), (0.5, "y", 1)])
    assert waiting.oldest().key == "x"
    assert waiting.due(math.inf, 0.0).key == "y"


def test_a_larger_request_that_aged_goes_before_a_small_one_of_another_key():
    waiting, _ = waiting_of([(0, "x", 5), (1.0, "y", 1)])
    assert waiting.due(math.inf, 0.0).key == "x"


def test_a_request_that_is_not_due_overtakes_nobody_of_another_key():
    waiting, _ = waiting_of([(0, "x", 5), (0.5, "y", 1)])
    assert waiting.due(now=0.9, latency=1.0) is None
    assert waiting.due(now=1.0, latency=1.0).key == "x"
    assert waiting.due(now=1.5, latency=1.0).key == "y"


def rank(request):
    ageing = 0.0 if request.rows <= BOUNDS.small_batch_threshold else BOUNDS.priority_ageing
    return request.arrived + ageing, request.sequence


ARRIVALS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from("xyz"), st.integers(1, 20)), max_size=30
)
STEPS = st.lists(st.none() | st.integers(0, 40), max_size=30)


@given(arrivals=ARRIVALS, steps=STEPS, age=st.sampled_from([0.0, 0.5, 2.0]))
def test_the_backlog_answers_as_a_plain_list_scan_does(arrivals, steps, age):
    """After any departures (a step with a number) and batches (a step without)."""
    waiting, requests = waiting_of(arrivals)
    now = requests[-1].arrived if requests else 0.0
    for step in steps:
        left = [request for request in requests if request.rows_queued]
        if not left:
            break
        if step is not None:
            gone = left[step % len(left)]
            waiting.remove(gone)
            requests.remove(gone)
            continue
        assert waiting.oldest().oldest is min(left, key=lambda request: request.sequence)
        key = min(left, key=rank).key
        assert waiting.due(math.inf, 0.0).key == key
        due = [request for request in left if request.arrived + age <= now]
        found = waiting.due(now, age)
        assert (found and found.key) == (min(due, key=rank).key if due else None)
        queue = waiting.due(math.inf, 0.0)
        expected = sorted((r for r in left if r.key == key), key=lambda r: (not r.rows_taken, rank(r)))
        assert list(queue) == expected
        assert queue.first is expected[0]
        parts = waiting.take(queue)
        assert [part.request for part in parts] == expected[: len(parts)]
    assert waiting.rows == sum(request.rows_queued for request in requests)
    assert bool(waiting) == bool(waiting.rows)
