"""Failures at the predictor and bugs: who is told what, and that nobody else notices."""

from __future__ import annotations

import asyncio

import pytest

from carpool.runtime import driver
from carpool.scheduling import limits as core_limits
from carpool.scheduling import scheduler, window
from carpool_sidecar import errors
from carpool_sidecar.batching import executor
from carpool_sidecar.protocols import v1
from tests.runtime.bench import Bench, turns

pytestmark = pytest.mark.looptime


class _Broken(scheduler.Scheduler):
    """Takes nothing."""

    def has_room(self, requests):
        raise ZeroDivisionError("bug")


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


async def test_a_lack_of_memory_amid_a_failure_answers_the_members_of_its_batch_at_once_and_is_told(caplog):
    bench = Bench(max_latency=0.1)

    class Failing(window.Window):
        def batch_failed(self, batch, error, now):
            raise MemoryError("no more")

    bench.driver.core.policy = Failing(bench.driver.core.limits)
    bench.predictor.error = errors.UpstreamBroken()
    bench.submit("a")
    bench.submit("b")
    await asyncio.sleep(0.2)
    assert [type(outcome) for outcome in bench.outcomes.values()] == [errors.CarpoolError] * 2
    assert "MemoryError: no more" in caplog.text
    bench.driver.close()


async def test_a_lack_of_memory_in_the_scheduler_is_told_once_and_the_driver_lives_on(caplog):
    bench = Bench(max_latency=0.0)
    lacking = [MemoryError("no more")]

    class Failing(window.Window):
        def completed(self, batch, now):
            while lacking:
                raise lacking.pop()

    bench.driver.core.policy = Failing(bench.driver.core.limits)
    for name in ("a", "b"):
        bench.submit(name)
        await turns()
        assert bench.rows(name) == [f'"{name}"'.encode()]
    assert caplog.text.count("MemoryError: no more") == 1
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
            answer = yield from call.read_in_steps(reply)
            return answer._replace(rows=self.Rows(answer.rows))

        return call._replace(read_in_steps=read)


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
