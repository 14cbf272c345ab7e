"""fast_dynamic_batcher under FastAPI and uvicorn: the model in a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import fastapi
import sleep_model
from anyio import lowlevel
from fast_dynamic_batcher import dyn_batcher, inference_template


class Echo(inference_template.InferenceModel):
    def infer(self, inputs: list[Any]) -> list[Any]:
        return sleep_model.predict(inputs)


@contextlib.asynccontextmanager
async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
    # As its documentation begins; it does not widen asyncio's own pool, which the batcher waits in.
    lowlevel.RunVar("_default_thread_limiter").set(anyio.CapacityLimiter(16))
    delay = sleep_model.WAIT_MS / 1000
    app.state.batcher = dyn_batcher.DynBatcher(Echo, max_batch_size=sleep_model.MAX_BATCH, max_delay=delay)
    yield
    app.state.batcher.stop()


app = fastapi.FastAPI(lifespan=lifespan)


@app.get("/ready")
async def ready() -> dict[str, str]:
    return {}


@app.post("/predict")
async def answer(request: fastapi.Request) -> Any:
    """A plain dict comes in and goes out: no model of the body to validate, as it would cost without being compared."""
    body = await request.json()
    prediction = await request.app.state.batcher.process_batched(body["instances"][0])
    return fastapi.responses.JSONResponse({"predictions": [prediction]})
