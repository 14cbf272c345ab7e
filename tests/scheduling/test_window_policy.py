"""When a batch leaves under the window policy."""

import time

from carpool.scheduling import messages


def test_full_batch_leaves_without_waiting_for_the_deadline(desk):
    for name in "abcd":
        desk.submit(name)
    assert desk.sizes == [4]
    assert desk.reasons == ["full"]
    assert desk.now == 1000.0


def test_deadline_counts_from_the_oldest_request(desk):
    desk.submit("old")
    desk.pass_time(0.4)
    desk.submit("young")
    assert desk.core.next_deadline() == 1000.5
    desk.pass_time(0.1)
    assert desk.members(desk.sent[0]) == ["old", "young"]
    assert desk.reasons == ["due"]


def test_lone_request_leaves_exactly_at_max_latency(desk):
    desk.submit("lone")
    desk.pass_time(0.499)
    assert desk.sent == []
    desk.pass_time(0.001)
    assert desk.sent[0].dispatched == 1000.5


def test_a_due_batch_keeps_filling_while_the_predictor_is_busy(desk):
    desk.submit("first")
    desk.pass_time(0.5)
    desk.submit("a")
    desk.pass_time(2.0)
    desk.submit("b")
    assert desk.sizes == [1]
    desk.answer()
    assert desk.members(desk.sent[1]) == ["a", "b"]


def test_age_counts_while_the_predictor_is_busy_so_nobody_waits_twice(desk):
    desk.submit("first")
    desk.pass_time(0.5)
    desk.submit("waiting")
    desk.pass_time(0.6)
    desk.answer()
    assert desk.members(desk.sent[1]) == ["waiting"]
    assert desk.sent[1].dispatched == desk.now


def test_zero_latency_never_waits_for_an_idle_predictor_and_batches_behind_a_busy_one(desk_of):
    desk = desk_of(max_batch_size=4, max_latency=0.0)
    desk.submit("a")
    assert desk.reasons == ["idle"]
    for name in "bcdef":
        desk.submit(name)
    desk.answer()
    assert desk.members(desk.sent[1]) == ["b", "c", "d", "e"]
    assert desk.reasons == ["idle", "full"]


def test_in_flight_limit_is_never_exceeded_and_freed_slots_are_used_at_once(desk_of):
    desk = desk_of(max_batch_size=1, max_in_flight=2)
    for name in "abcd":
        desk.submit(name)
    assert len(desk.out) == 2
    desk.answer(desk.out[1])
    assert [desk.members(batch) for batch in desk.out] == [["a"], ["c"]]


def test_reserved_capacity_counts_as_used_before_the_upstream_call_starts(desk_of):
    """The effects of the first submit are not carried out yet when the second comes."""
    core = desk_of(max_batch_size=1).core
    first = core.submit(messages.Request("key", 1, payload=["x"]))
    second = core.submit(messages.Request("key", 1, payload=["y"]))
    assert [type(effect) for effect in first] == [messages.Dispatch]
    assert list(second) == []


def test_batches_never_mix_keys(desk):
    desk.submit("a", key="one")
    desk.submit("b", key="two")
    desk.submit("c", key="one")
    desk.pass_time(0.5)
    desk.answer()
    assert [desk.members(batch) for batch in desk.sent] == [["a", "c"], ["b"]]


def test_a_quiet_key_is_not_starved_by_a_busy_one(desk):
    desk.submit("quiet", key="quiet")
    for i in range(12):
        desk.submit(f"busy-{i}", key="busy")
    desk.pass_time(0.5)
    desk.answer()
    assert desk.members(desk.sent[1]) == ["quiet"]
    assert desk.reasons == ["full", "due"]


def test_requests_leave_in_order_of_arrival(desk):
    for i in range(9):
        desk.submit(str(i))
    desk.pass_time(0.5)
    while desk.out:
        desk.answer()
        desk.pass_time(0.5)
    assert [name for batch in desk.sent for name in desk.members(batch)] == [str(i) for i in range(9)]


def test_idle_batcher_asks_for_no_wakeup(desk):
    assert desk.core.next_deadline() is None
    desk.submit("a")
    desk.pass_time(0.5)
    desk.answer()
    assert desk.core.next_deadline() is None
    assert desk.core.idle


def test_a_full_house_asks_only_for_request_deadlines_while_the_slot_is_taken(desk):
    for name in "abcde":
        desk.submit(name)
    assert desk.core.next_deadline() == 1000.0 + desk.limits.timeout


def test_wall_clock_jump_moves_no_deadline(desk, monkeypatch):
    """The core has one clock, the injected one; nothing it does can depend on the date."""
    desk.submit("a")
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert desk.core.next_deadline() == 1000.5
    desk.pass_time(0.5)
    assert desk.sizes == [1]


def test_changed_limits_apply_to_what_already_waits(desk):
    for name in "abc":
        desk.submit(name)
    desk.limits.max_batch_size = 2
    desk.do(desk.core.limits_changed())
    assert desk.sizes == [2]
    desk.answer()
    desk.limits.max_latency = 0.0
    desk.do(desk.core.limits_changed())
    assert desk.sizes == [2, 1]
