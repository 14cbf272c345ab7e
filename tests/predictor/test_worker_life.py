"""Workers that load, die, come back and end: what callers and probes see of it."""

from __future__ import annotations

import asyncio
import os
import pathlib
import socket
import sys

import msgspec
import pytest

from carpool.workers import frames, supervisor
from carpool_predictor import errors, model_loading, served_model, worker

from .conftest import Start, until

pytestmark = pytest.mark.uvloop

MORTAL = "m=sample_models:Mortal"


@pytest.fixture
def pipe(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A named pipe: whoever reads it waits until the test opens and closes it."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    monkeypatch.setenv("SAMPLE_PIPE", str(path))
    return path


async def release(pipe: pathlib.Path) -> None:
    await asyncio.to_thread(pipe.write_bytes, b"")


async def not_ready(model: served_model.ServedModel) -> None:
    await until(lambda: not model.is_ready)


async def test_death_during_a_call_gets_503_and_a_new_worker(start: Start) -> None:
    predictor = await start(MORTAL)
    async with predictor.client.post("/v1/models/m:predict", data=b'{"instances":["die"]}') as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert "died" in (await response.json())["error"]
    await not_ready(predictor.models["m"])
    await predictor.models["m"].worker.wait_until_ready()
    assert await predictor.predict("m", b'{"instances":[1]}') == (200, b'{"predictions":[1]}')


async def test_calls_answered_before_the_death_keep_their_answers(start: Start, pipe: pathlib.Path) -> None:
    model = (await start(MORTAL)).models["m"]
    bodies = [b'{"instances":["READ %b"]}' % str(pipe).encode(), b'{"instances":["die"]}', b'{"instances":[3]}']
    calls = [asyncio.create_task(model.predict([body], len(body))) for body in bodies]
    await release(pipe)
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert not isinstance(first, BaseException)
    assert first.kind == 200
    assert isinstance(second, errors.WorkerDied)
    assert isinstance(third, errors.WorkerDied)


async def test_while_the_worker_is_down_requests_get_503_at_once(start: Start) -> None:
    predictor = await start(MORTAL, pause=3600.0)
    await predictor.predict("m", b'{"instances":["die"]}')
    await not_ready(predictor.models["m"])
    async with predictor.client.post("/v1/models/m:predict", data=b'{"instances":[1]}') as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert await predictor.status("/readyz") == 503
    assert await predictor.status("/v1/models/m") == 503
    assert await predictor.status("/livez") == 200


async def test_ready_only_after_the_warm_up_of_every_model(start: Start, pipe: pathlib.Path) -> None:
    predictor = await start("echo", "m=sample_models:WaitingWarmUp", wait=False)
    await predictor.models["echo"].worker.wait_until_ready()
    assert await predictor.status("/readyz") == 503
    async with predictor.client.get("/v1/models/m") as response:
        assert (response.status, await response.json()) == (503, {"name": "m", "ready": False})
    assert (await predictor.predict("m", b'{"instances":[1]}'))[0] == 503
    assert (await predictor.predict("echo", b'{"instances":[1]}'))[0] == 200
    await release(pipe)
    await predictor.models["m"].worker.wait_until_ready()
    assert await predictor.status("/readyz") == 200


async def test_a_new_worker_is_ready_no_sooner_than_it_is_warm(start: Start, pipe: pathlib.Path) -> None:
    """Whatever the last one was."""
    predictor = await start("m=sample_models:WarmAndMortal", wait=False)
    model = predictor.models["m"]
    for _ in range(2):
        assert not model.is_ready
        await release(pipe)
        await model.worker.wait_until_ready()
        assert await predictor.predict("m", b'{"instances":[1]}') == (200, b'{"predictions":[1]}')
        assert (await predictor.predict("m", b'{"instances":["die"]}'))[0] == 503
        await not_ready(model)
        waiting = asyncio.create_task(model.worker.wait_until_ready())
        for _ in range(3):  # while the next one starts, and then waits for the pipe
            await asyncio.sleep(0.1)
            assert not model.is_ready
            assert await predictor.status("/readyz") == 503
            assert (await predictor.predict("m", b'{"instances":[1]}'))[0] == 503
            async with asyncio.timeout(5):
                with pytest.raises(errors.NotReady):
                    await model.predict([b"{}"], 2)
        assert not waiting.done()
        waiting.cancel()
    model.worker.stop()
    await release(pipe)


async def test_a_worker_that_hung_up_is_not_ready_although_its_process_lives_on(start: Start) -> None:
    predictor = await start("m=sample_models:Lingering", pause=3600.0)
    model = predictor.models["m"]
    began = asyncio.get_running_loop().time()
    assert (await predictor.predict("m", b'{"instances":["hang up"]}'))[0] == 503
    await not_ready(model)
    assert asyncio.get_running_loop().time() - began < supervisor._GRACE
    assert await predictor.status("/readyz") == 503


async def test_a_model_is_not_ready_from_the_moment_it_is_told_to_stop(start: Start, pipe: pathlib.Path) -> None:
    predictor = await start(MORTAL)
    model = predictor.models["m"]
    body = b'{"instances":["READ %b"]}' % str(pipe).encode()
    call = asyncio.create_task(model.predict([body], len(body)))
    await asyncio.sleep(0)
    model.worker.stop()
    began = asyncio.get_running_loop().time()
    await not_ready(model)
    assert asyncio.get_running_loop().time() - began < supervisor._GRACE / 2
    with pytest.raises(errors.NotReady):
        await model.predict([b"{}"], 2)
    with pytest.raises(errors.WorkerDied):
        await call
    await release(pipe)


async def test_pauses_are_told_how_long_each_worker_served_and_nothing_for_one_that_never_did(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that dies while it loads must not be started again and again because one before it served for long."""
    marker = tmp_path / "marker"
    monkeypatch.setenv("SAMPLE_MARKER", str(marker))
    pauses = Pauses(enough=3)
    setup = worker.Setup(
        model_loading.parse("m=sample_models:DyingAfterMarker"), model_loading.Options(), "text", "error"
    )
    model = served_model.ServedModel(setup, served_model.WaitingLimit(9, 2**20), pauses)
    running = asyncio.create_task(model.worker.run())
    await model.worker.wait_until_ready()
    await asyncio.sleep(0.2)
    marker.touch()
    with pytest.raises(errors.WorkerDied):
        await model.predict([b'{"instances":["die"]}'], 21)
    await pauses.reached.wait()
    model.worker.stop()
    await running
    assert pauses.served[0] >= 0.2
    assert pauses.served[1:] == [0.0, 0.0]


class Pauses(supervisor.Backoff):
    """Never pauses; `served` is what it was told, and `reached` is set once that was often enough."""

    def __init__(self, enough: int) -> None:
        super().__init__(0.0)
        self.served: list[float] = []
        self.reached = asyncio.Event()
        self._enough = enough

    def after(self, served: float) -> float:
        self.served.append(served)
        if len(self.served) < self._enough:
            return 0.0
        self.reached.set()
        return 3600.0


async def test_loading_is_tried_again(start: Start, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMPLE_MARKER", str(tmp_path / "marker"))
    predictor = await start("m=sample_models:LoadingAtSecondTry")
    assert await predictor.predict("m", b'{"instances":[1]}') == (200, b'{"predictions":[1]}')


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no_such_module:Model", "cannot import no_such_module:Model: No module named 'no_such_module'"),
        ("sample_models:Missing", "has no attribute 'Missing'"),
        ("sample_models:Incomplete", "needs load, warm_up, and predict or predict_rows"),
        ("sample_models:HERE", "has no attribute"),
    ],
)
async def test_a_model_that_can_never_run_ends_the_supervisor(start: Start, target: str, reason: str) -> None:
    predictor = await start(f"m={target}", wait=False)
    with pytest.raises(supervisor.Unusable, match=reason):
        await predictor.runs[0]


@pytest.mark.parametrize(("own", "policy"), [(None, b"PASSIVE"), ("ACTIVE", b"ACTIVE")])
async def test_openmp_threads_yield_unless_the_operator_says_otherwise(
    start: Start, monkeypatch: pytest.MonkeyPatch, own: str | None, policy: bytes
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", own)
    predictor = await start("m=sample_models:Environment")
    answer = (200, b'{"predictions":["%b"]}' % policy)
    assert await predictor.predict("m", b'{"instances":["OMP_WAIT_POLICY"]}') == answer


async def test_pipelined_calls_are_answered_in_order(start: Start) -> None:
    model = (await start("echo")).models["echo"]
    bodies = [b'{"instances":[%d]}' % place for place in range(200)]
    replies = await asyncio.gather(*(model.predict([body], len(body)) for body in bodies))
    assert [bytes(reply.body) for reply in replies] == [b'{"predictions":[%d]}' % place for place in range(200)]


async def test_a_cancelled_call_takes_nobody_elses_answer(start: Start, pipe: pathlib.Path) -> None:
    model = (await start(MORTAL)).models["m"]
    bodies = [b'{"instances":["READ %b"]}' % str(pipe).encode(), b'{"instances":[2]}']
    cancelled, kept = (asyncio.create_task(model.predict([body], len(body))) for body in bodies)
    await asyncio.sleep(0)
    cancelled.cancel()
    await release(pipe)
    assert (await kept).body == b'{"predictions":[2]}'


async def test_stopping_answers_held_calls_and_ends_a_busy_worker(start: Start, pipe: pathlib.Path) -> None:
    predictor = await start(MORTAL)
    model = predictor.models["m"]
    body = b'{"instances":["READ %b"]}' % str(pipe).encode()
    call = asyncio.create_task(model.predict([body], len(body)))
    await asyncio.sleep(0)
    model.worker.stop()
    with pytest.raises(errors.WorkerDied):
        await call
    await release(pipe)
    await predictor.runs[0]


async def test_a_worker_exits_by_itself_when_its_server_is_gone() -> None:
    ours, theirs = socket.socketpair()
    setup = worker.Setup(model_loading.parse("echo"), model_loading.Options())
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "carpool_predictor.worker", str(theirs.fileno()), msgspec.json.encode(setup).decode()),
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    with ours:
        assert await asyncio.to_thread(frames.receive, ours) == (frames.READY, b"")
    assert await process.wait() == 0


def test_pauses_double_up_to_a_bound_and_start_over_after_a_healthy_time() -> None:
    pauses = supervisor.Backoff(first=0.1, most=10.0, healthy=10.0)
    assert [round(pauses.after(0.0), 3) for _ in range(9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert pauses.after(served=9.9) == 10.0
    assert pauses.after(served=10.0) == 0.1
    assert pauses.after(served=0.0) == 0.2
