"""Workers that load, die, come back and end: what callers and probes see of it."""

from __future__ import annotations

import asyncio
import os
import pathlib

import pytest

from carpool.workers import child
from carpool.workers import errors as worker_errors
from carpool_predictor import errors, served_model

from .conftest import Start, ready, until

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
    await ready(predictor.models["m"])
    assert await predictor.predict("m", b'{"instances":[1]}') == (200, b'{"predictions":[1]}')


async def test_calls_answered_before_the_death_keep_their_answers(start: Start, pipe: pathlib.Path) -> None:
    model = (await start(MORTAL)).models["m"]
    bodies = [b'{"instances":["READ %b"]}' % str(pipe).encode(), b'{"instances":["die"]}', b'{"instances":[3]}']
    calls = [asyncio.create_task(model.predict(body)) for body in bodies]
    await release(pipe)
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert not isinstance(first, BaseException)
    assert first.status == 200
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
    await ready(predictor.models["echo"])
    assert await predictor.status("/readyz") == 503
    async with predictor.client.get("/v1/models/m") as response:
        assert (response.status, await response.json()) == (503, {"name": "m", "ready": False})
    assert (await predictor.predict("m", b'{"instances":[1]}'))[0] == 503
    assert (await predictor.predict("echo", b'{"instances":[1]}'))[0] == 200
    await release(pipe)
    await ready(predictor.models["m"])
    assert await predictor.status("/readyz") == 200


async def test_a_new_worker_is_ready_no_sooner_than_it_is_warm(start: Start, pipe: pathlib.Path) -> None:
    """Whatever the last one was."""
    predictor = await start("m=sample_models:WarmAndMortal", wait=False)
    model = predictor.models["m"]
    for _ in range(2):
        assert not model.is_ready
        await release(pipe)
        await ready(model)
        assert await predictor.predict("m", b'{"instances":[1]}') == (200, b'{"predictions":[1]}')
        assert (await predictor.predict("m", b'{"instances":["die"]}'))[0] == 503
        await not_ready(model)
        waiting = asyncio.create_task(ready(model))
        for _ in range(3):  # while the next one starts, and then waits for the pipe
            await asyncio.sleep(0.1)
            assert not model.is_ready
            assert await predictor.status("/readyz") == 503
            assert (await predictor.predict("m", b'{"instances":[1]}'))[0] == 503
            async with asyncio.timeout(5):
                with pytest.raises(errors.NotReady):
                    await model.predict(b"{}")
        assert not waiting.done()
        waiting.cancel()
    model.stop()
    await release(pipe)


async def test_a_worker_that_hung_up_is_not_ready_although_its_process_lives_on(start: Start) -> None:
    predictor = await start("m=sample_models:Lingering", pause=3600.0)
    model = predictor.models["m"]
    began = asyncio.get_running_loop().time()
    assert (await predictor.predict("m", b'{"instances":["hang up"]}'))[0] == 503
    await not_ready(model)
    assert asyncio.get_running_loop().time() - began < child.GRACE
    assert await predictor.status("/readyz") == 503


async def test_a_model_is_not_ready_from_the_moment_it_is_told_to_stop(start: Start, pipe: pathlib.Path) -> None:
    predictor = await start(MORTAL)
    model = predictor.models["m"]
    body = b'{"instances":["READ %b"]}' % str(pipe).encode()
    call = asyncio.create_task(model.predict(body))
    holding = await asyncio.to_thread(pipe.open, "wb")  # returns once the model reads
    model.stop()
    began = asyncio.get_running_loop().time()
    await not_ready(model)
    assert asyncio.get_running_loop().time() - began < child.GRACE / 2
    with pytest.raises(errors.NotReady):
        await model.predict(b"{}")
    with pytest.raises(errors.WorkerDied):
        await call
    holding.close()


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
        ("sample_models:Hopeless", "--device cuda:9: of CUDA's GPUs 1 are visible"),
    ],
)
async def test_a_model_that_can_never_run_ends_its_run(start: Start, target: str, reason: str) -> None:
    predictor = await start(f"m={target}", wait=False)
    with pytest.raises(worker_errors.Unusable, match=reason):
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


async def test_many_calls_at_once_each_get_their_own_answer(start: Start) -> None:
    model = (await start("echo")).models["echo"]
    bodies = [b'{"instances":[%d]}' % place for place in range(200)]
    replies = await asyncio.gather(*(model.predict(body) for body in bodies))
    assert [bytes(reply.body) for reply in replies] == [b'{"predictions":[%d]}' % place for place in range(200)]


async def test_a_cancelled_call_takes_nobody_elses_answer(start: Start, pipe: pathlib.Path) -> None:
    model = (await start(MORTAL)).models["m"]
    bodies = [b'{"instances":["READ %b"]}' % str(pipe).encode(), b'{"instances":[2]}']
    cancelled, kept = (asyncio.create_task(model.predict(body)) for body in bodies)
    holding = await asyncio.to_thread(pipe.open, "wb")  # returns once the model reads
    cancelled.cancel()
    holding.close()
    assert (await kept).body == b'{"predictions":[2]}'


async def test_stopping_answers_held_calls_and_ends_a_busy_worker(start: Start, pipe: pathlib.Path) -> None:
    predictor = await start(MORTAL)
    model = predictor.models["m"]
    body = b'{"instances":["READ %b"]}' % str(pipe).encode()
    call = asyncio.create_task(model.predict(body))
    holding = await asyncio.to_thread(pipe.open, "wb")  # returns once the model reads
    model.stop()
    with pytest.raises(errors.WorkerDied):
        await call
    holding.close()
    await predictor.runs[0]
