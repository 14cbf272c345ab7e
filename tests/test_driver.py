"""The asyncio shell: timers, tasks, and what happens when things overlap."""

from __future__ import annotations

import asyncio

import pytest

from sidecar import calls, driver, errors, metrics
from sidecar.core import limits as core_limits
from sidecar.core import policies, scheduler
from sidecar.wire import codec, v1

pytestmark = pytest.mark.looptime


class Predictor:
    """Answers `{"predictions": …}` with the instances it got, when allowed to."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, calls.Headers, bytes, float]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: BaseException | None = None

    def post(self, target, headers, body, timeout, reply):
        body = b"".join(body)
        self.posted.append((target, headers, body, timeout))
        return asyncio.ensure_future(self._answer(body, reply))

    async def _answer(self, body, reply):
        await self.gate.wait()
        reply(self.error or codec.Reply(body.replace(b"instances", b"predictions", 1), {}))


class Replier:
    """Notes the outcome of one call."""

    def __init__(self, note) -> None:
        self.note = note

    def answer(self, answers, member):
        for _, pieces in answers:
            self.note(calls.Answered(member, pieces))

    def refuse(self, call, error):
        self.note(error)


class Bench:
    def __init__(self, **limits) -> None:
        loop = asyncio.get_running_loop()
        self.predictor = Predictor()
        numbers = iter(range(1, 1000))
        chosen = core_limits.Limits(**limits)
        core = scheduler.Scheduler(chosen, policies.Window(chosen), loop.time, lambda: f"batch-{next(numbers)}")
        self.metrics = metrics.Metrics()
        self.driver = driver.Driver(core, self.metrics, loop.time)
        self.doubtful: frozenset[int] = frozenset()
        self.outcomes: dict[str, calls.Outcome] = {}

    def submit(self, name: str, rows: int = 1, **options):
        payload = v1.parse_request(b'{"instances":[' + b",".join([f'"{name}"'.encode()] * rows) + b"]}")
        route = calls.Route(v1.Codec(), self.predictor, doubtful=self.doubtful)
        call = calls.Call(calls.Head(route, "/v1/models/m:predict", **options), payload, len(payload.text))
        call.replier = Replier(lambda outcome: self.outcomes.__setitem__(name, outcome))
        self.driver.submit(call)
        return call

    def rows(self, name: str) -> list[bytes]:
        outcome = self.outcomes[name]
        assert isinstance(outcome, calls.Answered)
        return [bytes(row) for piece in outcome.pieces for row in piece.predictions]


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_timer_serves_the_window_and_leaves_nothing_behind(looptime):
    bench = Bench(max_latency=0.3)
    bench.submit("a")
    await asyncio.sleep(0.2)
    bench.submit("b")
    assert bench.predictor.posted == []
    await asyncio.sleep(0.11)
    await turns()
    assert [body for _, _, body, _ in bench.predictor.posted] == [b'{"instances":["a","b"]}']
    assert bench.rows("b") == [b'"b"']
    bench.driver.close()


async def test_the_call_to_the_predictor_may_take_as_long_as_the_most_patient_member_waits():
    bench = Bench(max_latency=1.0, timeout=10.0)
    bench.submit("patient")
    await asyncio.sleep(0.5)
    bench.submit("hasty", timeout=2.0)
    await asyncio.sleep(0.51)
    await turns()
    assert bench.predictor.posted[0][3] == pytest.approx(9.0, abs=0.01)
    bench.driver.close()


async def test_a_bug_in_the_predictor_client_answers_500_and_the_driver_lives_on(caplog):
    bench = Bench(max_latency=0.0)
    bench.predictor.error = ZeroDivisionError("bug")
    bench.submit("a")
    await turns()
    assert type(bench.outcomes["a"]) is errors.CarpoolError
    assert "ZeroDivisionError" in caplog.text
    bench.predictor.error = None
    bench.submit("b")
    await turns()
    assert bench.rows("b") == [b'"b"']
    bench.driver.close()


@pytest.mark.parametrize("doubtful", [frozenset({500}), frozenset()])
async def test_only_statuses_that_its_route_calls_doubtful_make_a_batch_travel_again_by_halves(doubtful):
    bench = Bench(max_latency=0.1)
    bench.doubtful = doubtful
    bench.predictor.error = errors.UpstreamStatus(500, b"a model's word")
    bench.submit("a")
    bench.submit("b")
    await asyncio.sleep(0.2)
    await turns(30)
    assert len(bench.predictor.posted) == (3 if doubtful else 1)
    assert [outcome.status for outcome in bench.outcomes.values()] == [500, 500]
    bench.driver.close()


async def test_a_storm_of_failures_is_one_warning_and_a_count(caplog):
    bench = Bench(max_latency=0.0)
    bench.predictor.error = errors.UpstreamUnreachable()
    for i in range(50):
        bench.submit(str(i))
        await turns()
    await asyncio.sleep(6)
    bench.submit("later")
    await turns()
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert warnings[1].facts["suppressed"] == 49
    bench.driver.close()


async def test_each_batch_says_at_debug_why_it_left(caplog):
    caplog.set_level("DEBUG", logger="carpool.driver")
    bench = Bench(max_latency=0.0)
    bench.submit("a")
    await turns()
    facts = next(record.facts for record in caplog.records if record.message == "batch leaves")
    assert facts == {"batch": "batch-1", "reason": "idle", "instances": 1, "requests": 1, "waited_ms": 0.0}
    bench.driver.close()


async def test_draining_waits_until_everything_is_answered():
    bench = Bench(max_latency=100.0, timeout=600.0)
    bench.predictor.gate.clear()
    bench.submit("a")
    draining = asyncio.ensure_future(bench.driver.drain())
    await asyncio.sleep(5)
    assert not draining.done()
    bench.predictor.gate.set()
    await draining
    assert bench.rows("a") == [b'"a"']
    bench.driver.close()


async def test_closing_answers_everybody_503_and_leaves_no_task():
    bench = Bench(max_latency=0.0, max_batch_size=1)
    bench.predictor.gate.clear()
    for name in "abc":
        bench.submit(name)
    await turns()
    bench.driver.close()
    assert {type(outcome) for outcome in bench.outcomes.values()} == {errors.Draining}
    assert len(bench.outcomes) == 3
    assert not bench.driver.core.in_flight
    await turns()
    assert len(asyncio.all_tasks()) == 1


async def test_request_ids_are_joined_and_bounded():
    bench = Bench(max_latency=1.0, max_batch_size=1000)
    for i in range(100):
        bench.submit(str(i), request_id=f"id-{i}-" + "x" * 500)
    await asyncio.sleep(1.1)
    await turns()
    headers = dict(bench.predictor.posted[0][1])
    assert headers["X-Request-ID"].startswith("id-0-xxx")
    assert len(headers["X-Request-ID"]) <= 4096
    assert not headers["X-Request-ID"].endswith(",")
    bench.driver.close()


async def test_a_caller_whose_reply_raises_disturbs_nobody_else(caplog):
    bench = Bench(max_latency=0.0, max_batch_size=2)
    bench.predictor.gate.clear()
    bench.submit("first")
    bench.submit("broken", rows=1)
    bench.submit("fine")
    bench.driver.core.backlog.oldest().head.replier.note = _raise
    bench.predictor.gate.set()
    await turns(20)
    assert bench.rows("first") == [b'"first"']
    assert bench.rows("fine") == [b'"fine"']
    assert "answers could not be handed over" in caplog.text
    bench.submit("later")
    await turns()
    assert bench.rows("later") == [b'"later"']
    bench.driver.close()


def _raise(outcome):
    raise RuntimeError("the connection object is broken")


async def test_a_batch_that_cannot_be_sent_is_answered_500_and_frees_its_slot(caplog):
    bench = Bench(max_latency=0.0)
    call = bench.submit("a")
    await turns()
    broken = bench.submit("b")
    await turns()
    assert call.open is False
    assert broken.open is False
    bench.predictor.gate.clear()
    bench.submit("running")
    doomed = bench.submit("doomed")
    doomed.payload = None
    bench.predictor.gate.set()
    await turns(20)
    assert type(bench.outcomes["doomed"]) is errors.CarpoolError
    assert "a batch could not be sent" in caplog.text
    bench.submit("later")
    await turns()
    assert bench.rows("later") == [b'"later"']
    bench.driver.close()


async def test_only_callers_who_still_wait_count_as_abandoned():
    bench = Bench(max_latency=0.0)
    answered = bench.submit("a")
    await turns()
    bench.driver.cancel(answered)
    assert bench.metrics.registry.get_sample_value("carpool_abandoned_total") == 0
    bench.predictor.gate.clear()
    bench.driver.cancel(bench.submit("b"))
    assert bench.metrics.registry.get_sample_value("carpool_abandoned_total") == 1
    bench.driver.close()


async def test_closing_leaves_no_timer():
    bench = Bench(max_latency=50.0)
    bench.submit("a")
    bench.driver.close()
    assert bench.driver._timer is None or bench.driver._timer.cancelled()


async def test_the_next_batch_is_with_the_predictor_before_the_last_ones_callers_are_answered():
    bench = Bench(max_latency=0.0, max_batch_size=1)
    bench.predictor.gate.clear()
    bench.submit("a")
    bench.submit("b")
    await turns()
    order = []
    bench.outcomes = _Recorder(order, bench.predictor)
    bench.predictor.gate.set()
    await turns(20)
    assert {posted for _, posted in order} == {2}
    bench.driver.close()


class _Recorder(dict):
    """Notes, for each outcome, how many batches the predictor had by then."""

    def __init__(self, order, predictor):
        super().__init__()
        self._order, self._predictor = order, predictor

    def __setitem__(self, name, outcome):
        self._order.append((name, len(self._predictor.posted)))


async def test_a_batch_abandoned_in_the_turn_in_which_it_was_sent_gives_its_slot_back():
    """All callers of a load generator leave in the same turn of the loop in which the next batch was sent."""
    bench = Bench(max_latency=0.0)
    bench.driver.cancel(bench.submit("gone"))
    assert not bench.driver.core.in_flight
    await turns()
    assert not bench.driver.core.in_flight
    bench.submit("next")
    await turns()
    assert bench.rows("next") == [b'"next"']
    bench.driver.close()


async def test_a_batch_abandoned_at_the_predictor_is_broken_off_and_gives_its_slot_back():
    bench = Bench(max_latency=0.0)
    bench.predictor.gate.clear()
    gone = bench.submit("gone")
    await turns()
    bench.driver.cancel(gone)
    await turns()
    assert not bench.driver.core.in_flight
    bench.predictor.gate.set()
    bench.submit("next")
    await turns()
    assert bench.rows("next") == [b'"next"']
    bench.driver.close()
