"""batched under FastAPI and uvicorn: a decorator around the model."""

from __future__ import annotations

from typing import Any

import batched
import fastapi
import sleep_model


# The asyncio form, which its documentation has for async code such as this; the model runs in a thread.
@batched.aio.dynamically(batch_size=sleep_model.MAX_BATCH, timeout_ms=sleep_model.WAIT_MS)
def predict(rows: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    return sleep_model.predict(rows)


app = fastapi.FastAPI()


@app.get("/ready")
async def ready() -> dict[str, str]:
    return {}


@app.post("/predict")
async def answer(request: fastapi.Request) -> Any:
    """A plain dict comes in and goes out: no model of the body to validate, as it would cost without being compared."""
    body = await request.json()
    # A tuple, since a list would be taken for several items.
    prediction = await predict(tuple(body["instances"][0]))
    return fastapi.responses.JSONResponse({"predictions": [prediction]})
