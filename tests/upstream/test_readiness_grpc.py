"""Whether the predictor is ready, asked over real connections of its gRPC health service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from carpool_sidecar.upstream import probes
from tests.upstream.probed import Clock, Ready

Health = Callable[[bytes, Any], Awaitable[bytes]]


@pytest.fixture
async def serve_health() -> AsyncIterator[Callable[..., Awaitable[int]]]:
    """Serve `grpc.health.v1.Health/Check` by the given function from request to response bytes; gives the port."""
    pytest.importorskip("grpc", reason="grpc probes need the extra: pip install 'carpool-sidecar[grpc]'")
    import grpc.aio

    servers = []

    async def serve(check: Health, port: int = 0) -> int:
        server = grpc.aio.server()
        methods = {"Check": grpc.unary_unary_rpc_method_handler(check)}
        handler = grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)
        server.add_generic_rpc_handlers((handler,))
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        servers.append(server)
        return int(bound)

    yield serve
    for server in servers:
        await server.stop(None)


@pytest.mark.parametrize("service", ["", "model", "m" * 200])
async def test_a_grpc_service_that_serves_is_ready(serve_health: Any, ready_if: Ready, service: str) -> None:
    asked = []

    async def check(request: bytes, context: Any) -> bytes:
        asked.append(request)
        return b"\x08\x01"

    assert await ready_if(probes.Grpc("127.0.0.1", await serve_health(check), service)).check()
    (request,) = asked
    assert request.endswith(service.encode())
    heads = {0: b"", 5: b"\x0a\x05", 200: b"\x0a\xc8\x01"}
    assert request.removesuffix(service.encode()) == heads[len(service)]


@pytest.mark.parametrize("answer", [b"", b"\x08\x00", b"\x08\x02"])
async def test_a_grpc_service_that_does_not_serve_is_not_ready(
    serve_health: Any, ready_if: Ready, answer: bytes
) -> None:
    async def check(request: bytes, context: Any) -> bytes:
        return answer

    checked = ready_if(probes.Grpc("127.0.0.1", await serve_health(check)))
    assert not await checked.check()
    assert checked.last_error.endswith("answered that it is not serving")


async def test_an_unknown_grpc_service_is_not_ready(serve_health: Any, ready_if: Ready) -> None:
    import grpc

    async def check(request: bytes, context: Any) -> bytes:
        return bytes(await context.abort(grpc.StatusCode.NOT_FOUND, "no such service"))

    checked = ready_if(probes.Grpc("127.0.0.1", await serve_health(check), "m"))
    assert not await checked.check()
    assert checked.last_error.endswith("service m: NOT_FOUND: no such service")


async def test_a_grpc_service_that_hangs_is_not_ready(serve_health: Any, ready_if: Ready) -> None:
    async def check(request: bytes, context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    checked = ready_if(probes.Grpc("127.0.0.1", await serve_health(check), timeout=0.1))
    assert not await checked.check()
    assert checked.last_error.endswith("no answer within 0.1 s")


async def test_a_refused_grpc_connection_means_not_ready_and_leaves_no_back_off(
    serve_health: Any, ready_if: Ready, clock: Clock, closed_port: int
) -> None:
    checked = ready_if(probes.Grpc("127.0.0.1", closed_port))
    assert not await checked.check()
    assert "UNAVAILABLE" in checked.last_error

    async def check(request: bytes, context: Any) -> bytes:
        return b"\x08\x01"

    await serve_health(check, closed_port)
    clock.now += 1
    assert await checked.check()
