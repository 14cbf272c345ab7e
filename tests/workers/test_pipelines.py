"""Calls from an event loop: bytes to bytes, many on their way, each answered by the worker that has the fewest."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pathlib
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from carpool.workers import errors, pool, worker
from carpool_predictor import pipelines

from . import models
from .conftest import On, pausing_for_ever

pytestmark = pytest.mark.both_loops


BYTES = pytest.mark.parametrize("kind", [models.Bytes, models.InStages, models.InSteps])


async def ready(there: pool.Processes[..., object]) -> pipelines.Pipelines:
    there.start()
    assert await asyncio.to_thread(there.wait_ready, 30)
    return pipelines.Pipelines(there)


@BYTES
async def test_calls_are_answered_each_with_its_own(on: On, kind: type[models.Bytes]) -> None:
    call = await ready(on(kind))
    requests = [b"%d" % number * 1000 for number in range(300)]
    assert await asyncio.gather(*map(call, requests)) == [request + b"!" for request in requests]


@pytest.mark.parametrize("size", [0, 1, 65_523, 65_536, 3_000_000])
async def test_requests_and_answers_of_any_size_pass(on: On, size: int) -> None:
    call = await ready(on(models.Bytes))
    assert await call(b"x" * size) == b"x" * size + b"!"
    assert await call(b"y") == b"y!"


@BYTES
async def test_what_the_model_raises_is_raised_here_and_the_next_call_answered(
    on: On, kind: type[models.Bytes]
) -> None:
    call = await ready(on(kind))
    failed, answered = await asyncio.gather(call(b"raise"), call(b"x"), return_exceptions=True)
    assert isinstance(failed, ValueError)
    assert answered == b"x!"


@BYTES
async def test_calls_before_a_death_keep_their_answers_and_those_after_it_fail(
    on: On, kind: type[models.Bytes]
) -> None:
    there = on(kind)
    pipelines_ = await ready(there)

    async def call(request: bytes) -> Any:
        return await pipelines_(request)  # the call itself fails where the worker is known to be dead already

    if kind is models.Bytes:
        first, *others = await asyncio.gather(call(b"x"), call(b"die"), call(b"y"), return_exceptions=True)
    else:  # in stages, a call may be under way while the one behind it dies
        first = await call(b"x")
        others = await asyncio.gather(call(b"die"), call(b"y"), return_exceptions=True)
    assert first == b"x!"
    assert [type(each) for each in others] == [errors.WorkerDied] * 2
    while there.is_ready:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await ready(there)
    assert await call(b"z") == b"z!"


@BYTES
async def test_a_cancelled_call_takes_nobody_elses_answer(on: On, kind: type[models.Bytes]) -> None:
    call = await ready(on(kind))
    first, second = (asyncio.ensure_future(call(request)) for request in (b"x", b"y"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == b"y!"


async def test_while_no_worker_is_up_calls_fail_at_once(on: On) -> None:
    there = on(models.Bytes, pauses=pausing_for_ever)
    call = await ready(there)
    with pytest.raises(errors.WorkerDied):
        await call(b"die")
    while there.is_ready:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    with pytest.raises(errors.WorkerDied, match="is up"):
        await call(b"x")


async def test_calls_go_to_the_worker_with_the_fewest(on: On) -> None:
    there = on(models.Bytes, devices=("a", "b"))
    there.start()
    while not all(each.state.value == "ready" for each in there.workers):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    call = pipelines.Pipelines(there)
    assert sorted(await asyncio.gather(*[call(b"device") for _ in range(6)])) == [b"a!"] * 3 + [b"b!"] * 3


async def test_a_model_in_stages_has_a_call_in_each_of_them_at_the_same_time(on: On) -> None:
    call = await ready(on(models.MeetingInStages))
    assert await asyncio.gather(*(call(b"%d" % number) for number in range(9))) == [b"%d" % each for each in range(9)]


async def first_and_second(call: pipelines.Pipelines, pipe: pathlib.Path) -> list[Any]:
    """What is answered to a call, and to one that comes while it is computed."""
    await call(b"one that tells how long they take")
    first = asyncio.ensure_future(call(b"first"))
    with await asyncio.to_thread(pipe.open, "wb"):
        return await asyncio.gather(first, call(b"second"), return_exceptions=True)


async def test_a_device_gets_the_next_call_before_the_answer_of_the_last_is_written(on: On, pipe: pathlib.Path) -> None:
    assert await first_and_second(await ready(on(models.MeetingInSteps, pipe)), pipe) == [b"first", b"second"]


@pytest.mark.parametrize("kind", [models.EndingInSteps, models.EndingInStages])
async def test_a_process_that_ends_itself_first_answers_the_call_before_the_one_in_which_it_does(
    on: On, kind: type[models.EndingInSteps], pipe: pathlib.Path
) -> None:
    answered, ended = await first_and_second(await ready(on(kind, pipe)), pipe)
    assert answered == b"first"
    assert isinstance(ended, errors.WorkerDied)


async def test_a_lone_call_of_a_model_in_steps_is_answered_though_none_follows(on: On) -> None:
    call = await ready(on(models.InSteps))
    for _ in range(3):
        assert await call(b"x") == b"x!"


async def test_a_model_in_stages_takes_calls_of_the_pool_too(on: On) -> None:
    there = on(models.InStages)
    await ready(there)
    assert await asyncio.to_thread(there, b"x") == [b"x", b"!"]


def sockets() -> set[str]:
    """The sockets that this process has open."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the list itself
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return {each for each in found if each.startswith("socket:")}


async def test_a_worker_that_is_gone_before_the_first_call_leaves_no_file_open() -> None:
    class Gone:
        """A worker whose process has just ended, which nobody has noticed."""

        state = worker.State.READY

        def duplicate_socket(self) -> socket.socket:
            ours, theirs = socket.socketpair()
            theirs.close()
            return ours

        def died(self, *, is_sent: bool) -> errors.WorkerDied:
            return errors.WorkerDied()

    there: Any = SimpleNamespace(workers=[Gone()], __name__="gone")
    before = sockets()
    with pytest.raises(errors.WorkerDied):
        await pipelines.Pipelines(there)(b"x")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()  # which would warn of an open socket, and close its number
    assert sockets() == before
