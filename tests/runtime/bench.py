"""A driver with a scheduler, an executor and a predictor that answers when it is let; and who is told."""

from __future__ import annotations

import asyncio

from carpool.runtime import driver
from carpool.scheduling import limits as core_limits
from carpool.scheduling import scheduler, window
from carpool_sidecar import metrics
from carpool_sidecar.batching import calls, executor
from carpool_sidecar.protocols import interface, v1


class Predictor:
    """Answers `{"predictions": …}` with the instances it got, when allowed to."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, calls.Headers, bytes, float]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: BaseException | None = None

    def post(self, target, headers, body, timeout, reply):
        body = b"".join(body)
        self.posted.append((target, headers, body, timeout))
        return asyncio.ensure_future(self._answer(body, reply))

    async def _answer(self, body, reply):
        await self.gate.wait()
        reply(self.error or interface.UpstreamResponse(body.replace(b"instances", b"predictions", 1), {}))


class Replier:
    """Notes the outcome of one call."""

    def __init__(self, note) -> None:
        self.note = note

    def answer(self, answers, about):
        for _, pieces in answers:
            self.note(calls.Answered(about.list_name, pieces))

    def refuse(self, call, error):
        self.note(error)


class Bench:
    def __init__(self, **limits) -> None:
        loop = asyncio.get_running_loop()
        self.predictor = Predictor()
        numbers = iter(range(1, 1000))
        chosen = core_limits.Limits(**limits)
        core = scheduler.Scheduler(chosen, window.Window(chosen), loop.time, lambda: f"batch-{next(numbers)}")
        self.metrics = metrics.Metrics()
        observer = executor.Observer(self.metrics, loop.time)
        self.driver = driver.Driver(core, executor.Executor(clock=loop.time), observer, loop.time)
        self.doubtful: frozenset[int] = frozenset()
        self.codec = v1.Codec()
        self.rejections = 0
        self.outcomes: dict[str, calls.Outcome] = {}

    def submit(self, name: str, rows: int = 1, **options):
        payload = v1.parse_request(b'{"instances":[' + b",".join([f'"{name}"'.encode()] * rows) + b"]}")
        route = calls.Route(self.codec, self.predictor, doubtful=self.doubtful, rejected=self.rejected)
        call = calls.Call(calls.Head(route, "/v1/models/m:predict", **options), payload, len(payload.text))
        call.replier = Replier(lambda outcome: self.outcomes.__setitem__(name, outcome))
        self.driver.submit(call)
        return call

    def rejected(self) -> None:
        self.rejections += 1

    def errors(self, reason: str) -> float | None:
        return self.metrics.registry.get_sample_value("carpool_predictor_errors_total", {"reason": reason})

    def rows(self, name: str) -> list[bytes]:
        outcome = self.outcomes[name]
        assert isinstance(outcome, calls.Answered)
        return [bytes(row) for piece in outcome.pieces for row in piece.predictions]


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
