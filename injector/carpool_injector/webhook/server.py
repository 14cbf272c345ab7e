"""The webhook over HTTP: POST /mutate and /validate, GET /livez, /readyz and /metrics.

What is answered is decided elsewhere. What matters here is that a bug, a body that never ends or a namespace that
cannot be read ends in an HTTP error, so that the webhook's failurePolicy decides: `allowed: false` would block the pod
whatever that says. Errors are Kubernetes `Status` objects, whose message the API server shows.

Bodies are held whole, and anyone in the cluster's network can send them. So reviews and the bytes of their bodies are
bounded (`Capacity`): without a bound, a hundred connections could hold more memory than the pod has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web

from carpool.program import allocator, logs
from carpool_injector.core import refusals
from carpool_injector.core.refusals import HttpError
from carpool_injector.objects import review
from carpool_injector.webhook import connections, metrics


class Capacity:
    """Counts reviews and their bytes. Nothing waits: a review that does not fit is refused at once."""

    def __init__(self, reviews: int, held_bytes: int) -> None:
        self._reviews = reviews
        self._bytes = held_bytes
        # All mutable state: what is taken now.
        self.taken = 0
        self.taken_bytes = 0

    @contextlib.contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Holds room for a review of so many bytes; raises `Full` if there is none."""
        if self.taken >= self._reviews:
            raise Full(f"{self.taken} reviews are at work already, and more are not taken at once")
        if self.taken_bytes + size > self._bytes:
            raise Full(f"{self.taken_bytes} bytes of reviews are held already; {size} more do not fit")
        self.taken += 1
        self.taken_bytes += size
        try:
            yield
        finally:
            self.taken -= 1
            self.taken_bytes -= size


class Full(Exception):
    """There is no room now; the text says of what."""


_EXPECTED: Mapping[type[Exception], HttpError] = {
    refusals.Malformed: HttpError.MALFORMED,
    Full: HttpError.OVERLOADED,
    review.Unanswerable: HttpError.UNANSWERABLE,
}
log = logging.getLogger("carpool.injector")

Handler = Callable[[review.Request], Awaitable[review.Answer]]

# Longer than the 90 seconds after which Go's HTTP client gives up idle connections, so that it closes them, not we:
# else a review could be sent just as we close, and fail.
_KEEP_ALIVE = 120.0
_CUTTING_OFF = 0.1  # seconds for a handler to notice that its time is up
_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(ms|s|m)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


@dataclass(frozen=True, slots=True)
class Limits:
    """`body_timeout` in seconds; sizes in bytes."""

    max_body_bytes: int = 7 * 1024 * 1024
    max_held_bytes: int = 64 * 1024 * 1024
    max_concurrent: int = 1024
    body_timeout: float = 10.0


class Server:
    """The two applications: `reviews`, for the TLS port, and `probes`, for the plain one.

    `handlers` answer the reviews of each webhook by its path. `missing` tells what readiness waits for, [] for nothing.
    `why_unwelcome` tells from a client's certificate (as of `ssl.SSLObject.getpeercert`; None without one) why it may
    not call, None if it may. Probes may be asked by anyone: the kubelet has no certificate.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        counts: metrics.Metrics,
        missing: Callable[[], Sequence[str]],
        limits: Limits | None = None,
        why_unwelcome: Callable[[dict[str, Any] | None], str | None] = lambda _: None,
    ) -> None:
        self._handlers = handlers
        self._counts = counts
        self._missing = missing
        self._limits = limits or Limits()
        self._why_unwelcome = why_unwelcome
        self._capacity = Capacity(self._limits.max_concurrent, self._limits.max_held_bytes)
        self._limited_log = logs.RateLimitedLog(log, interval=1.0)
        self._trimmer = allocator.Trimmer(lambda: self._capacity.taken_bytes, connections.give_back)
        # What others may see and change: whether the way out has begun, and how many reviews it cut off.
        self.draining = False
        self.cut_off = 0
        counts.watch(counts.in_flight, lambda: self._capacity.taken)
        counts.watch(counts.held_bytes, lambda: self._capacity.taken_bytes)
        counts.watch(counts.draining, lambda: float(self.draining))

    def reviews(self) -> web.Application:
        """`/mutate`, `/validate`, and the probes as well."""
        app = self.probes()
        for path in self._handlers:
            app.router.add_post(path, self._review)
        return app

    def probes(self) -> web.Application:
        """`/livez`, `/readyz` and `/metrics`."""
        app = web.Application(client_max_size=self._limits.max_body_bytes)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        return app

    # --- reviews -----------------------------------------------------------------------------------------------------

    async def _review(self, request: web.Request) -> web.Response:
        """All that is around a review: who may ask, room, time, closing, and an answer for each way to fail."""
        started = time.perf_counter()
        webhook = request.path.removeprefix("/")
        size = request.content_length or self._limits.max_body_bytes
        try:
            self._check(request)
            with self._capacity.take(size):
                response = web.Response(body=await self._answer(request), content_type="application/json")
            if size >= allocator.LARGE:
                self._trimmer.large_body()
        except asyncio.CancelledError:
            self.cut_off += 1
            raise
        except Exception as error:
            response = self._failed(request, self._why(error, webhook))
        finally:
            self._counts.seconds.labels(webhook).observe(time.perf_counter() - started)
        if self.draining:
            response.force_close()  # the next review goes to another replica
        return response

    async def _answer(self, request: web.Request) -> bytes:
        asked = review.read(await self._body(request, seconds(request.query.get("timeout", ""))))
        return review.write(asked.uid, await self._handlers[request.path](asked))

    def _why(self, error: Exception, webhook: str) -> refusals.Unanswered:
        """What the sender of a review is told of its failure; what nobody expected is a bug, and logged."""
        if isinstance(error, refusals.Unanswered):
            return error
        reason = _EXPECTED.get(type(error))
        if reason is not None:
            return reason.told(error=error)
        self._limited_log.error(f"bug {webhook}", "a review failed", webhook=webhook)
        return HttpError.INTERNAL.told()

    def _check(self, request: web.Request) -> None:
        transport = request.transport
        if unwelcome := self._why_unwelcome(transport.get_extra_info("peercert") if transport else None):
            raise HttpError.CLIENT.told(why=unwelcome)
        if request.content_type != "application/json":
            raise HttpError.MEDIA_TYPE.told(found=request.headers.get("Content-Type", "")[:100])
        if (encoding := request.headers.get("Content-Encoding", "identity")) != "identity":
            raise HttpError.ENCODING.told(found=encoding[:100])
        if (request.content_length or 0) > self._limits.max_body_bytes:
            raise self._too_large()

    async def _body(self, request: web.Request, budget: float | None) -> bytearray:
        allowed = min(self._limits.body_timeout, budget or self._limits.body_timeout)
        try:
            async with asyncio.timeout(allowed):
                return await self._read(request)
        except TimeoutError:
            raise HttpError.BODY_TIMEOUT.told(seconds=allowed) from None
        except (ConnectionError, web.RequestPayloadError) as error:
            raise HttpError.BODY_BROKEN.told(error=error) from None

    async def _read(self, request: web.Request) -> bytearray:
        """Not `request.read`, which would keep the body until the connection's next request."""
        body = bytearray()
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > self._limits.max_body_bytes:
                raise self._too_large()
        return body

    def _too_large(self) -> refusals.Unanswered:
        return HttpError.TOO_LARGE.told(limit=self._limits.max_body_bytes)

    def _failed(self, request: web.Request, error: refusals.Unanswered) -> web.Response:
        reason = error.reason
        self._counts.errors.labels(reason.code).inc()
        # What is malformed is quoted to the caller, but may be a secret of the pod.
        told = "what was sent is malformed" if reason is HttpError.MALFORMED else str(error)[:500]
        message = f"a review was not answered: {told}"
        self._limited_log.warning(reason.code, message, path=request.path, status=reason.status)
        status = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": reason.status,
            "message": f"carpool-injector: {error}",
        }  # fmt: skip
        response = web.json_response(status, status=reason.status)
        if reason.status in (408, 413, 415, 503):
            response.force_close()  # what is left of the body is not worth reading
        return response

    # --- probes ------------------------------------------------------------------------------------------------------

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        missing = ["shutting down"] if self.draining else list(self._missing())
        self._counts.ready.set(not missing)
        text = "\n".join(f"not ready: {text}" for text in missing) or "ok"
        return web.Response(status=503 if missing else 200, text=f"{text}\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._counts.render(), headers={"Content-Type": metrics.CONTENT_TYPE})


class Listener:
    """An application on a port. `close` stops listening, and waits `grace` seconds for what is being answered."""

    def __init__(self, app: web.Application, grace: float, bounds: connections.Bounds | None = None) -> None:
        self._grace = grace
        self._bounds = bounds or connections.Bounds()
        app.middlewares.append(self._watched)
        self._runner = web.AppRunner(
            app, handle_signals=False, access_log=None, keepalive_timeout=_KEEP_ALIVE, shutdown_timeout=_CUTTING_OFF,
            logger=connections.ServerLog(log), auto_decompress=False,
        )  # fmt: skip
        self._port: connections.Port | None = None  # once it is open
        self._closing = False

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listens; returns the port, which was free where 0 was asked for. Raises OSError."""
        await self._runner.setup()
        factory = cast(Callable[[], asyncio.Protocol], self._runner.server)  # None before it is set up
        self._port = connections.Port(factory, self._bounds)
        return await self._port.open(host, port, tls)

    async def close(self) -> None:
        """Ends it; also when it never opened."""
        self._closing = True
        if self._port is not None:
            await self._port.close(self._grace)
            await self._runner.cleanup()
            await self._port.end()

    @web.middleware
    async def _watched(self, request: web.Request, handler: Callable[..., Awaitable[web.StreamResponse]]) -> Any:
        if self._port is None or (connection := self._port.of(request.protocol)) is None:
            raise web.HTTPServiceUnavailable  # to nobody: the connection was lost just now
        with connection.serving():
            response = await handler(request)
        if self._closing:
            response.force_close()
        return response


def seconds(duration: str) -> float | None:
    """What Go writes as "10s", "1m30s" or "500ms"; None for anything else, as it is the caller's own deadline."""
    parts = _DURATION.findall(duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts) or None
