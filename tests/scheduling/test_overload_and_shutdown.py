"""Bounds, overload and draining."""

from carpool import errors


def test_full_queue_refuses_at_once_with_retry_after(driven_of):
    driven = driven_of(max_batch_size=4, max_queue_instances=6)
    for i in range(10):
        driven.submit(str(i))
    assert driven.refusals == {}
    driven.submit("one too many")
    refusal = driven.refusals["one too many"]
    assert isinstance(refusal, errors.Overloaded)
    assert refusal.retry_after == 1
    assert driven.requests["one too many"].open is False


def test_retry_after_is_the_predicted_drain_time(driven_of):
    driven = driven_of(max_batch_size=1, max_latency=0.0, max_queue_instances=10)
    driven.submit("first")
    driven.pass_time(3.0)
    driven.answer()
    for i in range(11):
        driven.submit(str(i))
    driven.submit("late")
    assert driven.refusals["late"].retry_after == 30


def test_bytes_at_the_predictor_count_against_the_bound(driven_of):
    driven = driven_of(max_batch_size=1, max_latency=0.0, max_queue_bytes=100)
    driven.submit("travelling", size=60)
    driven.submit("too much", size=50)
    assert isinstance(driven.refusals["too much"], errors.Overloaded)
    driven.answer()
    driven.submit("fits now", size=50)
    assert "fits now" not in driven.refusals


def test_a_request_that_could_never_fit_is_refused_as_too_large(driven_of):
    driven = driven_of(max_queue_instances=8, max_queue_bytes=100)
    driven.submit("rows", rows=9)
    driven.submit("bytes", size=101)
    assert [type(driven.refusals[name]) for name in ("rows", "bytes")] == [errors.PayloadTooLarge] * 2


def test_drain_answers_everything_accepted_and_refuses_the_rest(driven):
    for i in range(6):
        driven.submit(str(i))
    driven.do(driven.core.drain())
    driven.submit("late")
    assert isinstance(driven.refusals["late"], errors.Draining)
    driven.answer_all()
    assert driven.reasons == ["full", "drain"]
    assert set(driven.answers) == {str(i) for i in range(6)}
    assert driven.core.idle


def test_drain_of_an_idle_scheduler_needs_nothing(driven):
    driven.do(driven.core.drain())
    assert driven.core.idle
    assert driven.core.next_deadline() is None


def test_abort_answers_everybody_who_is_still_open(driven):
    for name in "abcdef":
        driven.submit(name)
    driven.do(driven.core.abort(errors.Draining()))
    assert {type(error) for error in driven.refusals.values()} == {errors.Draining}
    assert set(driven.refusals) == set("abcdef")
    assert driven.core.ledger.held == 0
    assert driven.core.backlog.rows == 0
    driven.submit("after")
    assert isinstance(driven.refusals["after"], errors.Draining)
    assert driven.sizes == [4]
    driven.answer()
    assert driven.core.idle
    assert driven.answers == {}


def test_drain_uses_all_slots_at_once(driven_of):
    driven = driven_of(max_in_flight=2, max_latency=100.0)
    driven.submit("a", key="one")
    driven.submit("b", key="two")
    driven.do(driven.core.drain())
    assert len(driven.out) == 2


def test_retry_after_takes_size_of_batches_and_slots_into_account_and_has_an_end(driven_of):
    driven = driven_of(max_batch_size=2, max_latency=0.0, max_in_flight=2, max_queue_instances=40)
    for number in range(4):
        driven.submit(f"first-{number}")
    driven.pass_time(2.0)
    driven.answer_all()
    for number in range(43):
        driven.submit(str(number))
    late = driven.submit("late")
    assert late.open is False
    assert 20 <= driven.refusals["late"].retry_after <= 40
    slow = driven_of(max_batch_size=1, max_latency=0.0, max_queue_instances=100, timeout=10_000.0)
    slow.submit("first")
    slow.pass_time(500.0)
    slow.answer()
    for number in range(102):
        slow.submit(str(number))
    assert slow.refusals["101"].retry_after == 60


def test_an_answered_request_lets_its_payload_go(driven):
    driven.submit("a")
    driven.pass_time(0.5)
    driven.answer()
    assert driven.requests["a"].payload is None


def test_a_batch_leaves_before_refusals_are_told(driven):
    driven.submit("hasty", timeout=0.5)
    driven.submit("patient")
    driven.now += 0.5
    effects = driven.core.poll()
    assert [type(effect).__name__ for effect in effects] == ["Dispatch", "Refuse"]


def test_queued_bytes_follow_what_waits(driven):
    driven.submit("big", rows=6, size=60)
    driven.submit("small", size=7)
    assert driven.core.backlog.size == 67
    driven.answer()
    driven.pass_time(0.5)
    assert driven.sizes == [4, 3]
    assert driven.core.backlog.size == 0
    driven.submit("x", size=5, key="other")
    driven.cancel("x")
    assert driven.core.backlog.size == 0
