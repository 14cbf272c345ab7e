"""Bounds, overload and draining."""

from carpool import errors


def test_full_queue_refuses_at_once_with_retry_after(desk_of):
    desk = desk_of(max_batch_size=4, max_queue_instances=6)
    for i in range(10):
        desk.submit(str(i))
    assert desk.refusals == {}
    desk.submit("one too many")
    refusal = desk.refusals["one too many"]
    assert isinstance(refusal, errors.Overloaded)
    assert refusal.retry_after == 1
    assert desk.requests["one too many"].open is False


def test_retry_after_is_the_predicted_drain_time(desk_of):
    desk = desk_of(max_batch_size=1, max_latency=0.0, max_queue_instances=10)
    desk.submit("first")
    desk.pass_time(3.0)
    desk.answer()
    for i in range(11):
        desk.submit(str(i))
    desk.submit("late")
    assert desk.refusals["late"].retry_after == 30


def test_bytes_at_the_predictor_count_against_the_bound(desk_of):
    desk = desk_of(max_batch_size=1, max_latency=0.0, max_queue_bytes=100)
    desk.submit("travelling", size=60)
    desk.submit("too much", size=50)
    assert isinstance(desk.refusals["too much"], errors.Overloaded)
    desk.answer()
    desk.submit("fits now", size=50)
    assert "fits now" not in desk.refusals


def test_a_request_that_could_never_fit_is_refused_as_too_large(desk_of):
    desk = desk_of(max_queue_instances=8, max_queue_bytes=100)
    desk.submit("rows", rows=9)
    desk.submit("bytes", size=101)
    assert [type(desk.refusals[name]) for name in ("rows", "bytes")] == [errors.PayloadTooLarge] * 2


def test_drain_answers_everything_accepted_and_refuses_the_rest(desk):
    for i in range(6):
        desk.submit(str(i))
    desk.do(desk.core.drain())
    desk.submit("late")
    assert isinstance(desk.refusals["late"], errors.Draining)
    desk.answer_all()
    assert desk.reasons == ["full", "drain"]
    assert set(desk.answers) == {str(i) for i in range(6)}
    assert desk.core.idle


def test_drain_of_an_idle_house_needs_nothing(desk):
    desk.do(desk.core.drain())
    assert desk.core.idle
    assert desk.core.next_deadline() is None


def test_abort_answers_everybody_who_is_still_open(desk):
    for name in "abcdef":
        desk.submit(name)
    desk.do(desk.core.abort(errors.Draining()))
    assert {type(error) for error in desk.refusals.values()} == {errors.Draining}
    assert set(desk.refusals) == set("abcdef")
    assert desk.core.ledger.held == 0
    assert desk.core.backlog.rows == 0
    desk.submit("after")
    assert isinstance(desk.refusals["after"], errors.Draining)
    assert desk.sizes == [4]
    desk.answer()
    assert desk.core.idle
    assert desk.answers == {}


def test_drain_uses_all_slots_at_once(desk_of):
    desk = desk_of(max_in_flight=2, max_latency=100.0)
    desk.submit("a", key="one")
    desk.submit("b", key="two")
    desk.do(desk.core.drain())
    assert len(desk.out) == 2


def test_retry_after_takes_size_of_batches_and_slots_into_account_and_has_an_end(desk_of):
    desk = desk_of(max_batch_size=2, max_latency=0.0, max_in_flight=2, max_queue_instances=40)
    for number in range(4):
        desk.submit(f"first-{number}")
    desk.pass_time(2.0)
    desk.answer_all()
    for number in range(43):
        desk.submit(str(number))
    late = desk.submit("late")
    assert late.open is False
    assert 20 <= desk.refusals["late"].retry_after <= 40
    slow = desk_of(max_batch_size=1, max_latency=0.0, max_queue_instances=100, timeout=10_000.0)
    slow.submit("first")
    slow.pass_time(500.0)
    slow.answer()
    for number in range(102):
        slow.submit(str(number))
    assert slow.refusals["101"].retry_after == 60


def test_an_answered_request_lets_its_payload_go(desk):
    desk.submit("a")
    desk.pass_time(0.5)
    desk.answer()
    assert desk.requests["a"].payload is None


def test_a_batch_leaves_before_refusals_are_told(desk):
    desk.submit("hasty", timeout=0.5)
    desk.submit("patient")
    desk.now += 0.5
    effects = desk.core.poll()
    assert [type(effect).__name__ for effect in effects] == ["Dispatch", "Refuse"]


def test_queued_bytes_follow_what_waits(desk):
    desk.submit("big", rows=6, size=60)
    desk.submit("small", size=7)
    assert desk.core.backlog.size == 67
    desk.answer()
    desk.pass_time(0.5)
    assert desk.sizes == [4, 3]
    assert desk.core.backlog.size == 0
    desk.submit("x", size=5, key="other")
    desk.cancel("x")
    assert desk.core.backlog.size == 0
