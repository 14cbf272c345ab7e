"""The HTTP shapes of Hugging Face's text-embeddings-inference, which has no binary for a plain CPU in a package.

Paths, answers, limits, statuses and words are those of its `router/src/http/server.rs`, of two generations:

    --generation 1.9    validation errors (a batch of more than 32, an input that is too long) are 422
    --generation 1.8    the same errors are 413

In both an empty list is 400. The numbers come from a hash of the input, so each input has one answer whatever else is
in its call. A call of many inputs fails as a whole when one of them does, as there. Times in headers are zero.

    python e2e/lists/servers/tei.py --port 8080
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import struct
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

MODEL = "thenlper/gte-base"
MOST_INPUTS = 32
MOST_TOKENS = 512
DIMENSIONS = 8
PAYLOAD_LIMIT = 2_000_000
# An input that contains this makes the backend fail.
POISON = "make the backend fail"

Input = str | list[int]


class Failure(Exception):
    """`kind` is the error's type there."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class EmbedRequest(msgspec.Struct):
    """`Input::Single` is tried first, so a flat list of integers, and an empty list, are one input."""

    inputs: Any
    truncate: bool | None = None
    normalize: bool = True
    dimensions: int | None = None
    prompt_name: str | None = None


class OpenAIRequest(msgspec.Struct):
    """OpenAI's request; `model` is not checked."""

    input: Any
    model: str | None = None
    user: str | None = None
    encoding_format: str = "float"
    dimensions: int | None = None


class RerankRequest(msgspec.Struct):
    """One query for many texts."""

    query: str
    texts: list[str]


class Router:
    """The handlers. `statuses` is by kind of failure."""

    def __init__(self, generation: str) -> None:
        validation = 422 if generation == "1.9" else 413
        self._statuses = {"validation": validation, "tokenizer": 422, "empty": 400, "backend": 424}

    def routes(self) -> list[web.RouteDef]:
        """Everything that it serves."""
        return [
            web.get("/health", self._health),
            web.post("/embed", self._of_rows(_vector)),
            web.post("/embed_all", self._of_rows(_vectors_of_tokens)),
            web.post("/embed_sparse", self._of_rows(_sparse_vector)),
            web.post("/rerank", self._rerank),
            web.post("/v1/embeddings", self._openai),
            web.post("/embeddings", self._openai),
        ]

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    def _of_rows(self, row: Callable[[Input, EmbedRequest], Any]) -> Callable[[web.Request], Any]:
        async def handler(request: web.Request) -> web.Response:
            try:
                asked = await _body(request, EmbedRequest)
                inputs = _inputs(asked.inputs)
                _check(inputs, cut=asked.truncate is not False)
                return _answer([row(each, asked) for each in inputs], inputs)
            except Failure as failure:
                body = {"error": failure.message, "error_type": failure.kind}
                return _json(body, self._statuses[failure.kind])

        return handler

    async def _openai(self, request: web.Request) -> web.Response:
        try:
            asked = await _body(request, OpenAIRequest)
            inputs = _inputs(asked.input)
            _check(inputs, cut=True)
        except Failure as failure:
            status = self._statuses[failure.kind]
            return _json({"message": failure.message, "code": status, "type": failure.kind}, status)
        tokens = sum(map(_tokens, inputs))
        data = [
            {"object": "embedding", "embedding": _encoded(_vector(each, asked), asked), "index": place}
            for place, each in enumerate(inputs)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _answer({"object": "list", "data": data, "model": MODEL, "usage": usage}, inputs)

    async def _rerank(self, request: web.Request) -> web.Response:
        asked = await _body(request, RerankRequest)
        if len(asked.texts) > MOST_INPUTS:
            message = f"batch size {len(asked.texts)} > maximum allowed batch size {MOST_INPUTS}"
            return _json({"error": message, "error_type": "validation"}, self._statuses["validation"])
        scores = [_numbers(f"{asked.query}\0{text}")[0] for text in asked.texts]
        ranks = [{"index": place, "score": score} for place, score in enumerate(scores)]
        return _answer(sorted(ranks, key=lambda rank: -rank["score"]), list(asked.texts))


async def _body(request: web.Request, kind: type[Any]) -> Any:
    """As axum reads JSON: raises the plain answers of its rejections."""
    if request.content_type != "application/json":
        text = "Expected request with `Content-Type: application/json`"
        raise web.HTTPUnsupportedMediaType(text=text)
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        text = "Failed to buffer the request body: length limit exceeded"
        raise web.HTTPRequestEntityTooLarge(PAYLOAD_LIMIT, text=text) from None
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text = f"Failed to deserialize the JSON body into the target type: {error}"
        raise web.HTTPUnprocessableEntity(text=text) from None
    except msgspec.DecodeError as error:
        raise web.HTTPBadRequest(text=f"Failed to parse the request body as JSON: {error}") from None


def _inputs(value: Any) -> list[Input]:
    if _is_input(value):
        return [value]
    if not isinstance(value, list) or not all(map(_is_input, value)):
        text = "Failed to deserialize the JSON body into the target type: data did not match any variant"
        raise web.HTTPUnprocessableEntity(text=f"{text} of untagged enum Input")
    if len(value) > MOST_INPUTS:
        raise Failure("validation", f"batch size {len(value)} > maximum allowed batch size {MOST_INPUTS}")
    return value


def _is_input(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)


def _check(inputs: list[Input], *, cut: bool) -> None:
    for each in inputs:
        if not each:
            name = "inputs" if isinstance(each, str) else "input_ids"
            raise Failure("empty", f"Input validation error: `{name}` cannot be empty")
        if _tokens(each) > MOST_TOKENS and not cut:
            words = f"`inputs` must have less than {MOST_TOKENS} tokens. Given: {_tokens(each)}"
            raise Failure("validation", f"Input validation error: {words}")
        if isinstance(each, str) and POISON in each:
            raise Failure("backend", "Backend error: Inference error")


def _tokens(each: Input) -> int:
    """Words, and the two that mark beginning and end; ids count as they are."""
    return len(each.split()) + 2 if isinstance(each, str) else len(each)


def _numbers(text: str) -> list[float]:
    digest = hashlib.sha256(text.encode()).digest()
    return [number / 2**32 for number in struct.unpack(f"<{DIMENSIONS}I", digest)]


def _vector(each: Input, asked: EmbedRequest | OpenAIRequest) -> list[float]:
    vector = _numbers(repr(each))[: asked.dimensions]
    if getattr(asked, "normalize", True):
        length = sum(number * number for number in vector) ** 0.5
        vector = [number / length for number in vector]
    return vector


def _vectors_of_tokens(each: Input, asked: EmbedRequest) -> list[list[float]]:
    return [_numbers(f"{each!r}{place}") for place in range(min(_tokens(each), MOST_TOKENS))]


def _sparse_vector(each: Input, asked: EmbedRequest) -> list[dict[str, float]]:
    return [{"index": 7 * place, "value": number} for place, number in enumerate(_numbers(repr(each)))]


def _encoded(vector: list[float], asked: OpenAIRequest) -> list[float] | str:
    if asked.encoding_format == "float":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _answer(body: Any, inputs: list[Input]) -> web.Response:
    headers = {
        "x-compute-type": "cpu",
        "x-compute-time": "0",
        "x-compute-characters": str(sum(map(len, inputs))),
        "x-compute-tokens": str(sum(map(_tokens, inputs))),
        "x-total-time": "0",
        "x-tokenization-time": "0",
        "x-queue-time": "0",
        "x-inference-time": "0",
    }
    return _json(body, 200, headers)


def _json(body: Any, status: int, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, headers=headers, content_type="application/json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--generation", choices=["1.8", "1.9"], default="1.9")
    options = parser.parse_args()
    app = web.Application(client_max_size=PAYLOAD_LIMIT)
    app.add_routes(Router(options.generation).routes())
    web.run_app(app, host=options.host, port=options.port, print=None)


if __name__ == "__main__":
    main()
