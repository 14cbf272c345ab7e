"""FastAPI around a sentence encoder, as tutorials have it: one endpoint of its own, no batching.

A plain function runs in a thread of the pool, so that health checks are answered meanwhile.
"""

from __future__ import annotations

import fastapi
import pydantic
import sentences

app = fastapi.FastAPI()
model = sentences.load()


class Texts(pydantic.BaseModel):
    texts: list[str]


@app.get("/healthz")
def healthz() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/embed")
def embed(asked: Texts) -> dict[str, list[list[float]]]:
    return {"vectors": sentences.embed(model, asked.texts)}
