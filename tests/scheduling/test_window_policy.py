"""When a batch leaves under the window policy."""

import time

from carpool.scheduling import messages


def test_full_batch_leaves_without_waiting_for_the_deadline(driven):
    for name in "abcd":
        driven.submit(name)
    assert driven.sizes == [4]
    assert driven.reasons == ["full"]
    assert driven.now == 1000.0


def test_deadline_counts_from_the_oldest_request(driven):
    driven.submit("old")
    driven.pass_time(0.4)
    driven.submit("young")
    assert driven.core.next_deadline() == 1000.5
    driven.pass_time(0.1)
    assert driven.members(driven.sent[0]) == ["old", "young"]
    assert driven.reasons == ["due"]


def test_lone_request_leaves_exactly_at_max_latency(driven):
    driven.submit("lone")
    driven.pass_time(0.499)
    assert driven.sent == []
    driven.pass_time(0.001)
    assert driven.sent[0].dispatched == 1000.5


def test_a_due_batch_keeps_filling_while_the_predictor_is_busy(driven):
    driven.submit("first")
    driven.pass_time(0.5)
    driven.submit("a")
    driven.pass_time(2.0)
    driven.submit("b")
    assert driven.sizes == [1]
    driven.answer()
    assert driven.members(driven.sent[1]) == ["a", "b"]


def test_age_counts_while_the_predictor_is_busy_so_nobody_waits_twice(driven):
    driven.submit("first")
    driven.pass_time(0.5)
    driven.submit("waiting")
    driven.pass_time(0.6)
    driven.answer()
    assert driven.members(driven.sent[1]) == ["waiting"]
    assert driven.sent[1].dispatched == driven.now


def test_zero_latency_never_waits_for_an_idle_predictor_and_batches_behind_a_busy_one(driven_of):
    driven = driven_of(max_batch_size=4, max_latency=0.0)
    driven.submit("a")
    assert driven.reasons == ["idle"]
    for name in "bcdef":
        driven.submit(name)
    driven.answer()
    assert driven.members(driven.sent[1]) == ["b", "c", "d", "e"]
    assert driven.reasons == ["idle", "full"]


def test_in_flight_limit_is_never_exceeded_and_freed_slots_are_used_at_once(driven_of):
    driven = driven_of(max_batch_size=1, max_in_flight=2)
    for name in "abcd":
        driven.submit(name)
    assert len(driven.out) == 2
    driven.answer(driven.out[1])
    assert [driven.members(batch) for batch in driven.out] == [["a"], ["c"]]


def test_reserved_capacity_counts_as_used_before_the_upstream_call_starts(driven_of):
    """The effects of the first submit are not carried out yet when the second comes."""
    core = driven_of(max_batch_size=1).core
    first = core.submit(messages.Request("key", 1, payload=["x"]))
    second = core.submit(messages.Request("key", 1, payload=["y"]))
    assert [type(effect) for effect in first] == [messages.Dispatch]
    assert list(second) == []


def test_what_is_out_is_known_in_the_order_in_which_it_left(driven_of):
    driven = driven_of(max_batch_size=1, max_latency=0.0, max_in_flight=50)
    for number in range(100):
        driven.submit(f"r{number}")
    for _ in range(25):
        driven.answer(driven.out[len(driven.out) // 2])
    assert [*driven.core.in_flight] == driven.out


def test_batches_never_mix_keys(driven):
    driven.submit("a", key="one")
    driven.submit("b", key="two")
    driven.submit("c", key="one")
    driven.pass_time(0.5)
    driven.answer()
    assert [driven.members(batch) for batch in driven.sent] == [["a", "c"], ["b"]]


def test_a_quiet_key_is_not_starved_by_a_busy_one(driven):
    driven.submit("quiet", key="quiet")
    for i in range(12):
        driven.submit(f"busy-{i}", key="busy")
    driven.pass_time(0.5)
    driven.answer()
    assert driven.members(driven.sent[1]) == ["quiet"]
    assert driven.reasons == ["full", "due"]


def test_requests_leave_in_order_of_arrival(driven):
    for i in range(9):
        driven.submit(str(i))
    driven.pass_time(0.5)
    while driven.out:
        driven.answer()
        driven.pass_time(0.5)
    assert [name for batch in driven.sent for name in driven.members(batch)] == [str(i) for i in range(9)]


def test_idle_batcher_asks_for_no_wakeup(driven):
    assert driven.core.next_deadline() is None
    driven.submit("a")
    driven.pass_time(0.5)
    driven.answer()
    assert driven.core.next_deadline() is None
    assert driven.core.idle


def test_a_full_queue_asks_only_for_request_deadlines_while_the_slot_is_taken(driven):
    for name in "abcde":
        driven.submit(name)
    assert driven.core.next_deadline() == 1000.0 + driven.limits.timeout


def test_wall_clock_jump_moves_no_deadline(driven, monkeypatch):
    """The core has one clock, the injected one; nothing it does can depend on the date."""
    driven.submit("a")
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert driven.core.next_deadline() == 1000.5
    driven.pass_time(0.5)
    assert driven.sizes == [1]


def test_changed_limits_apply_to_what_already_waits(driven):
    for name in "abc":
        driven.submit(name)
    driven.change(max_batch_size=2)
    assert driven.sizes == [2]
    driven.answer()
    driven.change(max_latency=0.0)
    assert driven.sizes == [2, 1]
