"""The second act of the demo: OpenAI's client against a server that speaks its format. Skipped without that client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import test_utils, web

pytest.importorskip("openai", reason="openai is missing: `make demo` installs it")

from benchmarks import answers, demo_openai

Serve = Callable[[web.Application], Awaitable[test_utils.TestServer]]


async def _pass(serve: Serve, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> answers.Run:
    app = web.Application()
    app.router.add_post("/v1/embeddings", handler)
    server = await serve(app)
    assert server.port is not None
    advanced: list[None] = []
    sentences = [f"sentence {number}" for number in range(20)]
    run = await demo_openai.ask_for_all(server.port, sentences, 4, lambda: advanced.append(None))
    assert len(advanced) == 20
    return run


async def test_each_sentence_is_asked_for_once_and_its_own_answer_kept(aiohttp_server: Serve) -> None:
    async def embed(request: web.Request) -> web.Response:
        asked = await request.json()
        assert asked["model"] == "minilm"
        number = int(asked["input"].split()[1])
        await asyncio.sleep(0)
        row = {"object": "embedding", "index": 0, "embedding": [number / 2]}
        usage = {"prompt_tokens": number, "total_tokens": number}
        return web.json_response({"object": "list", "data": [row], "model": "minilm", "usage": usage})

    run = await _pass(aiohttp_server, embed)
    assert (run.measured.requests, run.measured.errors) == (20, {})
    assert [run.embeddings.embedding(number) for number in range(20)] == [[number / 2] for number in range(20)]
    assert isinstance(run.embeddings, answers.Vectors)
    assert run.embeddings.tokens == sum(range(20))
    assert 0 < run.measured.p50 <= run.measured.p99 <= run.measured.seconds


async def test_refusals_and_broken_connections_are_counted_and_not_tried_again(aiohttp_server: Serve) -> None:
    seen: list[None] = []

    async def refuse(request: web.Request) -> web.Response:
        seen.append(None)
        return web.json_response({"error": {"message": "full"}}, status=429)

    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    assert (await _pass(aiohttp_server, refuse)).measured.errors == {"status 429": 20}
    assert len(seen) == 20
    broken = (await _pass(aiohttp_server, hang_up)).measured
    assert (broken.requests, sum(broken.errors.values())) == (0, 20)
