"""Small requests go before larger ones, and high levels before low ones, for a while: who overtakes whom."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from carpool import errors
from carpool.scheduling import adaptive, backlog, limits, messages, tuning, window
from tests.scheduling.driven import DrivenScheduler


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
    busy.change(small_batch_threshold=0)
    busy.submit("large", rows=3)
    busy.submit("small")
    assert order(busy) == ["large", "small"]


def test_a_changed_threshold_is_for_those_who_come_later(busy):
    busy.submit("A", rows=3)
    busy.change(small_batch_threshold=3)
    busy.submit("B", rows=3)
    assert order(busy) == ["B", "A"]


def test_without_ageing_nobody_overtakes(busy):
    busy.change(priority_ageing=0.0)
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


# --- levels -------------------------------------------------------------------------------------------------------


@pytest.fixture
def levels(driven_of):
    """Batches of 1 for a predictor that is busy with one; a level is worth ten seconds."""
    driven = driven_of(max_batch_size=1, max_latency=0.0, level_ageing=10.0)
    driven.submit("busy", key="other")
    return driven


def test_a_higher_level_goes_first_and_a_lower_one_last(levels):
    for name, priority in [("low", -1), ("usual", 0), ("high", 1), ("higher", 2), ("also usual", 0), ("also high", 1)]:
        levels.submit(name, priority=priority)
        levels.pass_time(0.01)
    assert order(levels) == ["higher", "high", "also high", "usual", "also usual", "low"]


def test_requests_of_one_level_leave_in_order_of_arrival_in_groups_too(levels):
    levels.submit_all(*[(f"{level}{n}", 1, "key", None, 10, math.inf, level) for n in range(3) for level in (0, 1)])
    levels.submit("last", priority=1)
    assert order(levels) == ["10", "11", "12", "last", "00", "01", "02"]


def test_a_level_overtakes_those_below_that_came_less_than_its_ageing_before(levels):
    levels.submit("usual")
    levels.submit("high", priority=1)
    levels.pass_time(9.75)
    levels.submit("a level higher", priority=1)
    levels.pass_time(0.25)
    levels.submit("too late", priority=1)
    levels.submit("two levels higher", priority=2)
    assert order(levels) == ["high", "two levels higher", "a level higher", "usual", "too late"]


def test_no_stream_of_a_higher_level_starves_a_lower_one(levels):
    levels.answer()
    levels.submit("low", priority=-1)  # leaves at once, as nobody else is there
    levels.submit("waits", priority=-1)
    for number in range(400):
        levels.submit(str(number), priority=1)
        levels.pass_time(0.1)
        levels.answer()
    left = [levels.members(batch) for batch in levels.sent].index(["waits"])
    assert 1020.0 <= levels.sent[left].dispatched < 1020.3


def test_small_requests_go_first_within_their_level_only(driven_of):
    driven = driven_of(max_batch_size=4, max_latency=0.0, small_batch_threshold=1, priority_ageing=1.0)
    driven.submit("busy", rows=4, key="other")
    driven.submit("small")
    driven.submit("large", rows=4)
    driven.submit("high", rows=4, priority=1)
    driven.submit("high and small", priority=1)
    assert order(driven) == ["high and small", "high", "small", "large"]


def test_a_request_whose_first_rows_travel_is_not_overtaken_by_a_higher_level(busy):
    busy.submit("large", rows=6)
    busy.answer()
    busy.submit("high", rows=2, priority=5)
    assert order(busy) == ["large", "high"]


@pytest.mark.parametrize("policy", [window.Window, adaptive.Adaptive])
def test_levels_and_allowed_sizes_go_together(driven_of, policy):
    driven = driven_of(policy, max_batch_size=4, max_latency=0.0, max_in_flight=1, allowed_sizes=(1, 2, 4))
    driven.submit("busy", rows=4, key="other")
    for number in range(6):
        driven.submit(f"low {number}", priority=-1)
    driven.submit("high", priority=1)
    driven.answer()
    assert driven.members(driven.sent[1]) == ["high", "low 0", "low 1", "low 2"]


def test_a_batch_that_is_not_full_takes_lower_levels_along(driven):
    driven.submit("low", priority=-1)
    driven.submit("high", priority=1)
    driven.pass_time(0.5)
    assert driven.members(driven.sent[0]) == ["high", "low"]


def test_a_higher_level_waits_for_its_window_like_all(driven_of):
    driven = driven_of(max_batch_size=2, max_latency=0.5)
    driven.submit("a")
    driven.pass_time(0.4)
    driven.submit("high", key="other", priority=1)
    driven.pass_time(0.1)
    assert driven.members(driven.sent[0]) == ["a"]
    driven.answer()
    driven.pass_time(0.4)
    assert driven.members(driven.sent[1]) == ["high"]


def test_who_goes_before_a_long_queue_of_a_lower_level_is_not_refused_because_of_it(driven_of):
    driven = driven_of(adaptive.Adaptive, max_batch_size=4, max_in_flight=1, timeout=100.0)
    for number in range(tuning.ENOUGH):
        driven.submit(f"lesson-{number}", rows=4)
        driven.pass_time(1.0)
        driven.answer()
    driven.submit("busy", rows=4)
    for number in range(3):
        driven.submit_all(*[(f"{number} {n}", 1, "key", None, 10, math.inf, -1) for n in range(4)])
    driven.change(slo=2.5)
    driven.submit("usual")
    driven.submit("low", priority=-1)
    assert [type(error) for error in (driven.refusals.get("usual"), driven.refusals["low"])] == [
        type(None), errors.WouldBeLate,
    ]  # fmt: skip
    driven.pass_time(1.0)
    driven.answer()
    assert driven.members(driven.sent[-1])[0] == "usual"


def test_room_that_lower_levels_take_is_not_counted_against_a_higher_one(driven_of):
    driven = driven_of(max_batch_size=1, max_latency=0.0, max_queue_instances=3)
    for number in range(5):
        driven.submit(f"low {number}", priority=-1)
    assert list(driven.refusals) == ["low 4"]
    for number in range(4):
        driven.submit(f"high {number}", priority=1)
    driven.submit("usual")
    assert list(driven.refusals) == ["low 4", "high 3", "usual"]


class TestShortBatches:
    """While requests of several levels leave, what a higher one may have to wait for is kept short."""

    @pytest.fixture
    def taught(self, driven_of):
        """Batches of up to 32 take 10 ms and 0.5 ms for each row, one after the other."""
        driven = driven_of(adaptive.Adaptive, max_batch_size=32, max_in_flight=8, learns_in_flight=True)
        driven.policy.predictor.hint_overhead(0.0)
        for number, rows in enumerate([1, 8, 16, 32, 1, 8]):
            driven.submit(f"lesson-{number}", rows=rows, priority=-1)
            driven.pass_time(0.010 + 0.0005 * rows)
            driven.answer()
            driven.pass_time(0.5)
        driven.policy.predictor._judged = tuning.JUDGED_ENOUGH
        driven.sent.clear()
        return driven

    def bulk(self, driven, name, count=64):
        driven.submit_all(*[(f"{name} {number}", 1, "key", None, 10, math.inf, -1) for number in range(count)])

    def test_lower_levels_fill_a_batch_up_to_twice_the_time_of_one_instance(self, taught):
        taught.submit("high", priority=1)
        self.bulk(taught, "bulk")
        taught.pass_time(0.0105)
        taught.answer()
        assert taught.sizes == [1, 22]

    def test_no_second_batch_leaves_before_the_first_is_nearly_done(self, taught):
        taught.submit("high", priority=1)
        taught.pass_time(0.0105)
        taught.answer()
        self.bulk(taught, "bulk")
        assert taught.sizes == [1, 22]
        taught.submit("also high", priority=1)
        taught.pass_time(0.021)
        assert "also high" in taught.members(taught.sent[2])

    def test_a_request_of_a_lower_level_that_has_more_rows_travels_all_the_same(self, taught):
        taught.submit("high", priority=1)
        taught.submit("bulk", rows=30, priority=-1)
        taught.pass_time(0.0105)
        taught.answer()
        assert taught.sizes == [1, 30]

    def test_batches_are_full_again_ten_seconds_after_the_last_of_a_higher_level(self, taught):
        taught.submit("high", priority=1)
        taught.pass_time(0.0105)
        taught.answer()
        taught.pass_time(tuning.LEVEL_SECONDS)
        self.bulk(taught, "bulk")
        assert taught.sizes == [1, 32, 32]

    def test_one_level_alone_has_full_batches(self, taught):
        self.bulk(taught, "bulk")
        assert taught.sizes == [32, 32]


def test_levels_leave_nothing_behind(driven):
    for priority in range(1000):
        driven.submit(str(priority), priority=priority)
        driven.cancel(str(priority))
    assert len(driven.core.backlog._tiers) <= 4


# --- several keys -------------------------------------------------------------------------------------------------

BOUNDS = limits.Limits(max_batch_size=8, small_batch_threshold=2, priority_ageing=1.0, level_ageing=1.5)


def waiting_of(arrivals):
    """A backlog and its requests, from (gap in seconds, key, rows, and priority)."""
    waiting, requests, now = backlog.Backlog(BOUNDS), [], 0.0
    for sequence, (gap, key, rows, *priority) in enumerate(arrivals):
        now += gap
        request = messages.Request(key, rows, priority=sum(priority))
        request.sequence, request.arrived, request.goal = sequence, now, now + 1.0
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
    return request.arrived + ageing - request.priority * BOUNDS.level_ageing, request.sequence


ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        st.sampled_from("xyz"),
        st.integers(1, 20),
        st.sampled_from([0, 0, 1, -1]),
    ),
    max_size=30,
)
STEPS = st.lists(st.none() | st.integers(0, 40), max_size=30)


@given(arrivals=ARRIVALS, steps=STEPS, age=st.sampled_from([0.0, 0.5, 2.0]))
def test_the_backlog_answers_as_a_plain_list_scan_does(arrivals, steps, age):
    """After any departures (a step with a number) and batches (a step without)."""
    waiting, requests = waiting_of(arrivals)
    now = requests[-1].arrived if requests else 0.0
    for step in steps:
        left = [request for request in requests if request.is_queued]
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
        for level in (-2, -1, 0, 1, 2):
            expected = sum(request.rows_queued for request in requests if request.priority >= level)
            assert waiting.ahead_of(level) == expected
    assert waiting.rows == sum(request.rows_queued for request in requests)
    assert bool(waiting) == bool(waiting.rows)


# --- any history --------------------------------------------------------------------------------------------------

TURNS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.01, 0.5]), st.sampled_from("xy"), st.sampled_from([1, 1, 5]), st.integers(-2, 2)),
    min_size=1,
    max_size=60,
)


@pytest.mark.parametrize("policy", [window.Window, adaptive.Adaptive])
@given(turns=TURNS, threshold=st.sampled_from([0, 1]), latency=st.sampled_from([0.0, 0.2]))
def test_who_overtakes_has_a_higher_rank_and_nobody_is_overtaken_for_ever(policy, turns, threshold, latency):
    """Inside a key; a batch takes a second, and nobody who is taken is forgotten."""
    driven = DrivenScheduler(
        policy, max_batch_size=3, max_latency=latency, max_in_flight=1, timeout=math.inf,
        small_batch_threshold=threshold, priority_ageing=0.3, level_ageing=1.0,
    )  # fmt: skip
    for number, (gap, key, rows, priority) in enumerate(turns):
        driven.pass_time(gap)
        driven.submit(str(number), rows, key, priority=priority)
        if number % 3 == 2:
            driven.answer_all() if number % 2 else driven.out and driven.answer()
    driven.do(driven.core.drain())
    driven.answer_all()
    assert len(driven.answers) == len(turns)
    began: dict[str, int] = {}
    for name in (name for batch in driven.sent for name in driven.members(batch)):
        began.setdefault(name, len(began))
    left = {name: next(batch.dispatched for batch in driven.sent if name in driven.members(batch)) for name in began}
    for early, first in driven.requests.items():
        for late, second in driven.requests.items():
            was_there = second.key == first.key and first.sequence < second.sequence and left[early] >= second.arrived
            if not was_there or began[early] < began[late]:
                continue
            # Overtaken: by who has so many levels more, or is small.
            size = 0.3 * ((first.rows > threshold) - (second.rows > threshold))
            assert second.arrived - first.arrived < 1.0 * (second.priority - first.priority) + size
