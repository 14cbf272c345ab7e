"""Bounds, overload and draining."""

from sidecar import errors


def test_full_queue_refuses_at_once_with_retry_after(desk_of):
    desk = desk_of(max_batch_size=4, max_queue_instances=6)
    for i in range(10):
        desk.submit(str(i))
    assert desk.refusals == {}
    desk.submit("one too many")
    refusal = desk.refusals["one too many"]
    assert isinstance(refusal, errors.Overloaded)
    assert refusal.status == 429
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
    assert {name: error.status for name, error in desk.refusals.items()} == {"rows": 413, "bytes": 413}


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
    assert {error.status for error in desk.refusals.values()} == {503}
    assert set(desk.refusals) == set("abcdef")
    assert desk.core.admission.held == 0
    assert desk.core.backlog.rows == 0
