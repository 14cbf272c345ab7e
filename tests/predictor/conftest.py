"""A predictor in the test's own event loop, with real worker processes."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from carpool.workers.worker import Backoff
from carpool_predictor import model_loading, served_model, server, worker

HERE = pathlib.Path(__file__).parent


@dataclass
class Predictor:
    """A running predictor: its HTTP client, and its models by name."""

    client: TestClient[Any, Any]
    models: dict[str, served_model.ServedModel]
    runs: list[asyncio.Task[None]]

    async def predict(self, name: str, body: Any, **options: Any) -> tuple[int, bytes]:
        """Status and body of one predict call."""
        async with self.client.post(f"/v1/models/{name}:predict", data=body, **options) as response:
            return response.status, await response.read()

    async def embed(self, body: Any, **options: Any) -> tuple[int, Any]:
        """Status and decoded body of one embeddings call; `body` is encoded unless it is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body)
        async with self.client.post("/v1/embeddings", data=data, **options) as response:
            assert response.content_type == "application/json"
            return response.status, await response.json()

    async def status(self, path: str) -> int:
        async with self.client.get(path) as response:
            return response.status


Start = Callable[..., Awaitable[Predictor]]


async def ready(model: served_model.ServedModel) -> None:
    """Return once the model is ready."""
    await until(lambda: model.is_ready)


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop turn until a condition holds that the tested objects announce to nobody."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def workers_can_import_the_sample_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parent.parent}")


@pytest.fixture
async def start(aiohttp_raw_server: Any, aiohttp_client: Any) -> AsyncIterator[Start]:
    """`await start("name=module:Class", …, **options)` gives a `Predictor` whose models are ready."""
    started: list[Predictor] = []

    async def start(
        *models: str,
        wait: bool = True,
        pause: float = 0.0,
        max_body: int = 2**28,
        calls: int = 99,
        devices: tuple[str, ...] = ("auto",),
        batching: served_model.Batching | None = None,
        **options: Any,
    ) -> Predictor:
        served = {
            spec.name: served_model.ServedModel(
                worker.Setup(spec, model_loading.Options(**options), "text", "info"),
                served_model.WaitingLimit(calls, max_body),
                devices,
                batching,
                lambda: Backoff(pause),
            )
            for spec in map(model_loading.parse, models)
        }
        unassigned = served_model.WaitingLimit(calls, max_body)
        raw = await aiohttp_raw_server(server.Handler(served, max_body, 60.0, unassigned))
        runs = [asyncio.create_task(model.run()) for model in served.values()]
        started.append(Predictor(await aiohttp_client(raw), served, runs))
        for model in served.values() if wait else ():
            await ready(model)
        return started[-1]

    yield start
    for predictor in started:
        for model in predictor.models.values():
            model.stop()
        await asyncio.gather(*predictor.runs, return_exceptions=True)
