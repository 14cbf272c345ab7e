"""What readiness is asked about and measured by: a predictor that is probed, and a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import yarl
from aiohttp import web

from carpool_sidecar.upstream import probes, readiness

Ready = Callable[..., readiness.Readiness]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Predictor:
    """Answers every GET with `status`, once `gate` is open; remembers what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.gate = asyncio.Event()
        self.gate.set()
        self.requests: list[web.BaseRequest] = []
        self.connections: set[Any] = set()
        self.asked = asyncio.Event()
        self.port = 0

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.requests.append(request)
        self.connections.add(request.transport)
        self.asked.set()
        await self.gate.wait()
        return web.Response(status=self.status, headers={"Location": "/elsewhere"}, text="x" * 100_000)

    def probe(self, path: str = "/ready", timeout: float = 1.0, **options: Any) -> probes.HttpGet:
        return probes.HttpGet(yarl.URL(f"http://127.0.0.1:{self.port}{path}"), timeout=timeout, **options)
