"""batched under FastAPI and uvicorn: a decorator around the model."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import batched
import embedder
import fastapi


@contextlib.asynccontextmanager
async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
    model = embedder.Embedder(own_thread=True)

    # The asyncio form, which its documentation has for async code such as this; the model runs in a thread.
    @batched.aio.dynamically(batch_size=embedder.MAX_BATCH, timeout_ms=embedder.WAIT_MS)
    def answers(sentences: list[str]) -> list[bytes]:
        return model.answers(sentences)

    app.state.answer = answers
    yield


app = fastapi.FastAPI(lifespan=lifespan)


@app.get("/ready")
async def ready() -> dict[str, str]:
    return {}


@app.post("/predict")
async def predict(request: fastapi.Request) -> fastapi.Response:
    """Bodies are neither validated nor made of objects again, as it would cost without being compared."""
    body = await request.json()
    return fastapi.Response(await request.app.state.answer(body["instances"][0]), media_type="application/json")
