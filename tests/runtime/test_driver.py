"""The asyncio shell: timers, tasks, and what happens when things overlap."""

from __future__ import annotations

import asyncio
import math

import pytest

from carpool.runtime import driver
from carpool.scheduling import limits as core_limits
from carpool.scheduling import messages, scheduler, window
from carpool_sidecar import errors, metrics
from carpool_sidecar.batching import calls, executor
from carpool_sidecar.protocols import interface, v1

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
        reply(self.error or interface.UpstreamResponse(body.replace(b"instances", b"predictions", 1), {}))


class _Broken(scheduler.Scheduler):
    """Takes nothing."""

    def has_room(self, requests):
        raise ZeroDivisionError("bug")


class Replier:
    """Notes the outcome of one call."""

    def __init__(self, note) -> None:
        self.note = note

    def answer(self, answers, about):
        for _, pieces in answers:
            self.note(calls.Answered(about.list_name, pieces))

    def refuse(self, call, error):
        self.note(error)


class Bench:
    def __init__(self, **limits) -> None:
        loop = asyncio.get_running_loop()
        self.predictor = Predictor()
        numbers = iter(range(1, 1000))
        chosen = core_limits.Limits(**limits)
        core = scheduler.Scheduler(chosen, window.Window(chosen), loop.time, lambda: f"batch-{next(numbers)}")
        self.metrics = metrics.Metrics()
        observer = executor.Observer(self.metrics, loop.time)
        self.driver = driver.Driver(core, executor.Executor(clock=loop.time), observer, loop.time)
        self.doubtful: frozenset[int] = frozenset()
        self.codec = v1.Codec()
        self.rejections = 0
        self.outcomes: dict[str, calls.Outcome] = {}

    def submit(self, name: str, rows: int = 1, **options):
        payload = v1.parse_request(b'{"instances":[' + b",".join([f'"{name}"'.encode()] * rows) + b"]}")
        route = calls.Route(self.codec, self.predictor, doubtful=self.doubtful, rejected=self.rejected)
        call = calls.Call(calls.Head(route, "/v1/models/m:predict", **options), payload, len(payload.text))
        call.replier = Replier(lambda outcome: self.outcomes.__setitem__(name, outcome))
        self.driver.submit(call)
        return call

    def rejected(self) -> None:
        self.rejections += 1

    def errors(self, reason: str) -> float | None:
        return self.metrics.registry.get_sample_value("carpool_predictor_errors_total", {"reason": reason})

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


async def test_calls_of_one_turn_of_the_loop_leave_together_though_the_predictor_is_idle():
    bench = Bench(max_latency=0.0)
    bench.submit("a")
    bench.submit("b")
    assert bench.predictor.posted == []
    await turns()
    bench.submit("c")
    await turns()
    assert [body for _, _, body, _ in bench.predictor.posted] == [b'{"instances":["a","b"]}', b'{"instances":["c"]}']
    assert bench.rows("b") == [b'"b"']
    bench.driver.close()


async def test_what_is_counted_holds_up_neither_the_predictor_nor_the_callers():
    bench, happened = Bench(max_latency=0.0), []

    class Watching(driver.Observer):
        def __init__(self):
            self.before = lambda batch: happened.append(("before", len(bench.predictor.posted)))

        def sent(self, batch):
            happened.append(("sent", len(bench.predictor.posted)))

        def answered(self, batch, seconds):
            happened.append(("answered", len(bench.outcomes)))

    bench.driver = driver.Driver(bench.driver.core, executor.Executor(), Watching(), asyncio.get_running_loop().time)
    bench.submit("a")
    await turns()
    assert happened == [("before", 0), ("sent", 1), ("answered", 1)]
    bench.driver.close()


async def test_a_batch_that_cannot_be_counted_is_answered_all_the_same(caplog):
    bench = Bench(max_latency=0.0)

    class Broken(driver.Observer):
        def sent(self, batch):
            raise ZeroDivisionError("bug")

    bench.driver = driver.Driver(bench.driver.core, executor.Executor(), Broken(), asyncio.get_running_loop().time)
    bench.submit("a")
    await turns()
    assert bench.rows("a") == [b'"a"']
    assert [record.getMessage() for record in caplog.records] == ["a batch could not be counted"]
    bench.driver.close()


async def test_calls_of_one_turn_that_cannot_all_wait_at_once_leave_as_if_each_had_come_alone():
    bench = Bench(max_latency=0.0, max_queue_instances=2)
    bench.predictor.gate.clear()
    for name in "abcd":
        bench.submit(name)
    await turns()
    assert [body for _, _, body, _ in bench.predictor.posted] == [b'{"instances":["a"]}']
    assert isinstance(bench.outcomes["d"], errors.Overloaded)
    bench.predictor.gate.set()
    await turns(20)
    assert bench.rows("c") == [b'"c"']
    bench.driver.close()


async def test_a_caller_who_leaves_in_the_turn_of_his_call_is_not_waited_for():
    bench = Bench(max_latency=0.0)
    leaving = bench.submit("leaving")
    bench.submit("stays")
    bench.driver.cancel(leaving)
    await turns()
    assert "leaving" not in bench.outcomes
    assert bench.rows("stays") == [b'"stays"']
    assert bench.driver.core.idle
    bench.driver.close()


async def test_calls_of_the_turn_in_which_the_driver_closes_are_refused():
    bench = Bench(max_latency=0.3)
    bench.submit("a")
    bench.driver.close()
    await turns()
    assert isinstance(bench.outcomes["a"], errors.Draining)


async def test_calls_of_the_turn_in_which_draining_starts_are_answered():
    bench = Bench(max_latency=0.3)
    bench.submit("a")
    await bench.driver.drain()
    assert bench.rows("a") == [b'"a"']
    bench.driver.close()


async def test_calls_that_a_bug_keeps_out_are_told_so(caplog):
    bench = Bench(max_latency=0.0)
    chosen, working = core_limits.Limits(max_latency=0.0), bench.driver.core
    bench.driver.core = _Broken(chosen, window.Window(chosen), asyncio.get_running_loop().time, str)
    bench.submit("a")
    bench.driver.flush()
    bench.driver.core = working
    assert type(bench.outcomes["a"]) is errors.CarpoolError
    assert "calls could not be taken" in caplog.text
    bench.submit("b")
    await turns()
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
    assert [errors.status_of(outcome) for outcome in bench.outcomes.values()] == [500, 500]
    bench.driver.close()


async def test_every_failed_call_to_the_predictor_is_counted_by_its_reason_and_no_other_is():
    bench = Bench(max_latency=0.0)
    bench.submit("fine")
    await turns()
    assert {bench.errors(reason) for reason in errors.reasons(errors.UpstreamError)} == {0}
    failures = [errors.UpstreamStatus(400, b""), errors.UpstreamUnreachable(), errors.UpstreamTimeout()]
    for count in (1, 2):
        for failure in failures:
            bench.predictor.error = failure
            bench.submit(failure.reason)
            await turns()
            assert bench.errors(failure.reason) == count
    bench.predictor.gate.clear()
    gone = bench.submit("gone")
    await turns()
    bench.driver.cancel(gone)
    await turns()
    told = {reason: bench.errors(reason) for reason in errors.reasons(errors.UpstreamError)}
    assert {reason for reason, count in told.items() if count} == {failure.reason for failure in failures}
    bench.driver.close()


@pytest.mark.parametrize(
    ("members", "error", "rejections"),
    [
        (["lone"], errors.UpstreamStatus(400, b""), 0),
        (["lone", "other"], errors.UpstreamStatus(400, b""), 1),
        (["lone", "other"], errors.UpstreamUnreachable(), 0),
        (["lone", "other"], None, 0),
    ],
)
async def test_what_is_known_of_a_model_is_in_doubt_once_a_batch_of_several_is_rejected(members, error, rejections):
    """One request may be wrong by itself, and a client that sends such ones must not have the model asked about."""
    bench = Bench(max_latency=0.1)
    bench.predictor.error = error
    for name in members:
        bench.submit(name)
    await asyncio.sleep(0.2)
    await turns(30)
    assert len(bench.outcomes) == len(members)
    assert bench.rejections == rejections
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
    caplog.set_level("DEBUG", logger="carpool.sidecar.batching")
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
    bench.driver.flush()
    bench.submit("broken", rows=1)
    bench.submit("fine")
    bench.driver.flush()
    bench.driver.core.backlog.oldest().oldest.replier.note = _raise
    bench.predictor.gate.set()
    await turns(20)
    assert bench.rows("first") == [b'"first"']
    assert bench.rows("fine") == [b'"fine"']
    assert "answers could not be handed over" in caplog.text
    bench.submit("later")
    await turns()
    assert bench.rows("later") == [b'"later"']
    bench.driver.close()


async def test_members_of_one_batch_are_answered_by_their_own_repliers_each_once_with_all_of_theirs():
    """As when one client speaks HTTP and another gRPC to the same model: each door answers its own, in one go."""
    bench = Bench(max_latency=0.1)
    doors = {"http": _Door(), "grpc": _Door(), "broken": _Door(is_broken=True)}
    owners = {"a": "http", "b": "grpc", "c": "http", "d": "broken", "e": "grpc", "f": "http"}
    names = {}
    for name, door in owners.items():
        call = bench.submit(name)
        call.replier = doors[door]
        names[call] = name
    await asyncio.sleep(0.2)
    await turns()
    assert len(bench.predictor.posted) == 1
    told = {door: [[names[call] for call, _ in answers] for answers in each.told] for door, each in doors.items()}
    assert told == {"http": [["a", "c", "f"]], "grpc": [["b", "e"]], "broken": [["d"]]}
    for each in doors.values():
        for call, pieces in each.told[0]:
            assert [bytes(row) for piece in pieces for row in piece.predictions] == [b'"%b"' % names[call].encode()]
    bench.driver.close()


class _Door:
    """Notes the answers that it is handed together."""

    def __init__(self, is_broken: bool = False) -> None:
        self.told: list[list[messages.Answer]] = []
        self._is_broken = is_broken

    def answer(self, answers, member):
        self.told.append(list(answers))
        if self._is_broken:
            raise RuntimeError("the connection object is broken")


async def test_a_bug_in_sharing_out_answers_is_logged_with_its_cause_and_nobody_waits_on(caplog):
    bench = Bench(max_latency=0.1)
    bench.codec = _Unshareable()
    for name in "abc":
        bench.submit(name)
    await asyncio.sleep(0.2)
    await turns()
    assert bench.rows("a") == [b'"a"']
    assert [type(bench.outcomes[name]) for name in "bc"] == [errors.CarpoolError] * 2
    (record,) = [record for record in caplog.records if "a reason that is a bug" in record.message]
    assert isinstance(record.exc_info[1], ZeroDivisionError)
    assert "in __getitem__" in caplog.text
    assert bench.errors(errors.CarpoolError.reason) == 1
    assert not bench.driver.core.in_flight
    bench.driver.close()


class _Unshareable(v1.Codec):
    """Its answers have rows for the first member, and a bug behind them."""

    class Rows(list):
        def __getitem__(self, place):
            return super().__getitem__(place) if place.start == 0 else 1 / 0

    def __init__(self):
        super().__init__()
        self.merge = self._merge

    def _merge(self, batch_id, target, parts):
        call = v1.merge(batch_id, target, parts)

        def read(reply):
            answer = call.read(reply)
            return answer._replace(rows=self.Rows(answer.rows))

        return call._replace(read=read)


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
    told = [record for record in caplog.records if record.getMessage() == "a batch could not be sent"]
    assert told
    assert all(record.facts["batch"] for record in told)
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
    assert bench.driver._timer.due_at == math.inf


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


class Work:
    """A processor clock, and an executor whose batches take what they are told of it."""

    def __init__(self, batch: float, request: float) -> None:
        self.used, self.reads = 0.0, 0
        self._batch, self._request = batch, request
        self.done = []

    def clock(self) -> float:
        self.reads += 1
        return self.used

    def start(self, batch, done):
        self.used += self._batch + self._request * len(batch.parts)
        self.done.append((done, batch.rows))
        return self

    def cancel(self) -> None:
        pass

    def answer(self, answers, about) -> None:
        pass


async def measured(work: Work, sizes: list[int], pause: float) -> scheduler.Scheduler:
    """The scheduler after batches of so many requests, each as long after the one before."""
    loop = asyncio.get_running_loop()
    chosen = core_limits.Limits(max_latency=0.0, max_batch_size=100)
    core = scheduler.Scheduler(chosen, window.Window(chosen), loop.time, driver.new_batch_id)
    driven = driver.Driver(core, work, clock=loop.time, cpu_clock=work.clock)
    for size in sizes:
        for _ in range(size):
            call = driver.Call("key", 1)
            call.replier = work
            driven.submit(call)
        await asyncio.sleep(pause)
        for done, rows in work.done:
            done(range(rows))
        work.done = []
    driven.close()
    return core


async def test_what_batching_itself_takes_is_measured_with_few_looks_at_the_processor_clock():
    work = Work(0.0002, 0.00002)
    core = await measured(work, [2] * 320 + [20] * 320, 0.002)
    learned = core.learned()
    assert learned["own_batch_seconds"] == pytest.approx(0.0002, rel=0.1)
    assert learned["own_request_seconds"] == pytest.approx(0.00002, rel=0.1)
    assert work.reads == 20


async def test_nothing_is_learned_of_what_batches_take_while_they_are_rare():
    core = await measured(Work(0.0002, 0.00002), [2] * 128, 0.1)
    assert "own_batch_seconds" not in core.learned()
