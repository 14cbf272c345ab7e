"""Spans kept in memory, and a driver with a fake predictor whose requests carry `traceparent`s."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from opentelemetry.sdk.trace import export
from opentelemetry.sdk.trace.export import in_memory_span_exporter

from carpool.runtime import driver
from carpool.scheduling import limits as core_limits
from carpool.scheduling import scheduler, window
from carpool_sidecar import errors, metrics, tracing
from carpool_sidecar.batching import calls, executor
from carpool_sidecar.protocols import interface, v1
from tests.app import conftest as app

predictor, sidecar_of = app.predictor, app.sidecar_of  # fixtures: a whole sidecar

BASE = "http://127.0.0.1:8080"


def traceparent(trace: int, span: int = 1, sampled: bool = True) -> str:
    return f"00-{trace:032x}-{span:016x}-{sampled:02x}"


class Memory(in_memory_span_exporter.InMemorySpanExporter):
    """Spans that have ended, by name."""

    def named(self, name: str) -> list[Any]:
        return [span for span in self.get_finished_spans() if span.name == name]

    @property
    def batches(self) -> list[Any]:
        return self.named("carpool.batch")

    @property
    def waits(self) -> list[Any]:
        return self.named("carpool.wait")


class Predictor:
    """Answers with what it got, when allowed to; refuses batches in which `bad` is."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, dict[str, str], bytes]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.bad: bytes | None = None

    def post(self, target, headers, body, timeout, reply):
        body = b"".join(body)
        self.posted.append((target, dict(headers), body))
        return asyncio.ensure_future(self._answer(body, reply))

    async def _answer(self, body, reply):
        await self.gate.wait()
        error = self.error
        if self.bad is not None and self.bad in body:
            error = errors.UpstreamStatus(400, b"secret words of the predictor")
        reply(error or interface.UpstreamResponse(body.replace(b"instances", b"predictions", 1), {}, 201))


class Replier:
    def __init__(self, outcomes: dict[str, Any], name: str) -> None:
        self.outcomes, self.name = outcomes, name

    def answer(self, answers, member):
        self.outcomes[self.name] = answers

    def refuse(self, call, error):
        self.outcomes[self.name] = error


class Bench:
    def __init__(self, memory: Memory, *, rpc: bool = False, **limits: Any) -> None:
        loop = asyncio.get_running_loop()
        self.predictor = Predictor()
        numbers = iter(range(1, 1000))
        chosen = core_limits.Limits(**{"max_latency": 1.0, **limits})
        core = scheduler.Scheduler(chosen, window.Window(chosen), loop.time, lambda: f"batch-{next(numbers)}")
        self.metrics = metrics.Metrics()
        self.bugs = 0
        self.tracing = tracing.Tracing(
            BASE, (self.predictor, 8001) if rpc else None, loop.time, self.bug, export.SimpleSpanProcessor(memory)
        )
        observer = tracing.Observer(self.metrics, self.tracing.spans, loop.time)
        self.driver = driver.Driver(core, executor.Executor(clock=loop.time, tracing=self.tracing), observer, loop.time)
        self.outcomes: dict[str, Any] = {}

    def bug(self) -> None:
        self.bugs += 1

    def submit(self, name: str, trace: str | None = None, rows: int = 1, **options: Any) -> calls.Call:
        payload = v1.parse_request(b'{"instances":[' + b",".join([f'"{name}"'.encode()] * rows) + b"]}")
        options = {"target": "/v1/models/m:predict?token=secret", **options}
        head = calls.Head(calls.Route(v1.Codec(), self.predictor), traceparent=trace, **options)
        call = calls.Call(head, payload, len(payload.text))
        call.replier = Replier(self.outcomes, name)
        self.driver.submit(call)
        return call

    async def settle(self, seconds: float = 2.0) -> None:
        """Let batches leave and come back."""
        await asyncio.sleep(seconds)
        for _ in range(50):
            await asyncio.sleep(0)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Empty; and no variable of this machine decides anything."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    return Memory()
