"""The asyncio shell: timers, tasks, and what happens when things overlap."""

from __future__ import annotations

import asyncio
import math

import pytest

from carpool.runtime import driver
from carpool.scheduling import limits as core_limits
from carpool.scheduling import messages, scheduler, window
from carpool_sidecar import errors
from carpool_sidecar.batching import executor
from tests.runtime.bench import Bench, turns

pytestmark = pytest.mark.looptime


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


async def test_the_call_to_the_predictor_may_take_as_long_as_the_most_patient_member_waits():
    bench = Bench(max_latency=1.0, timeout=10.0)
    bench.submit("patient")
    await asyncio.sleep(0.5)
    bench.submit("hasty", timeout=2.0)
    await asyncio.sleep(0.51)
    await turns()
    assert bench.predictor.posted[0][3] == pytest.approx(9.0, abs=0.01)
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
            call = messages.Request("key", 1)
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
