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
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from aiohttp import web

from carpool.program import allocator, logs
from carpool_injector.core import refusals
from carpool_injector.core.refusals import HttpError
from carpool_injector.objects import review
from carpool_injector.webhook import connections, metrics, options

log = logging.getLogger("carpool.injector")

Handler = Callable[[review.Request], Awaitable[review.Answer]]

# Failures that need no look into the log, by what is told of them.
_EXPECTED: Mapping[type[Exception], HttpError] = {
    refusals.Malformed: HttpError.MALFORMED,
    review.Unanswerable: HttpError.UNANSWERABLE,
}
_BODY_UNREAD = (408, 413, 415, 503)  # statuses after which what is left of the body is not worth reading
_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(ms|s|m)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


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
        """Holds room for a review of so many bytes; raises refusals.Unanswered if there is none."""
        if self.taken >= self._reviews:
            full = f"{self.taken} reviews are at work already, and more are not taken at once"
            raise HttpError.OVERLOADED.told(error=full)
        if self.taken_bytes + size > self._bytes:
            full = f"{self.taken_bytes} bytes of reviews are held already; {size} more do not fit"
            raise HttpError.OVERLOADED.told(error=full)
        self.taken += 1
        self.taken_bytes += size
        try:
            yield
        finally:
            self.taken -= 1
            self.taken_bytes -= size


class Server:
    """The two applications: `reviews`, for the TLS port, and `probes`, for the plain one.

    `handlers` answer the reviews of each webhook by its path. `missing` tells what readiness waits for, [] for nothing.
    `why_unwelcome` tells from a client's certificate (as of `ssl.SSLObject.getpeercert`; None without one) why it may
    not call, None if it may; without it anyone may. So may who asks for probes: the kubelet has no certificate.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        counts: metrics.Metrics,
        missing: Callable[[], Sequence[str]],
        limits: options.Options | None = None,
        why_unwelcome: Callable[[dict[str, Any] | None], str | None] | None = None,
    ) -> None:
        self._handlers = handlers
        self._counts = counts
        self._missing = missing
        self._limits = limits or options.Options()
        self._why_unwelcome = why_unwelcome
        self._capacity = Capacity(self._limits.max_concurrent, self._limits.max_held_bytes)
        self._limited_log = logs.RateLimitedLog(log, interval=1.0)
        self._trimmer = allocator.Trimmer(lambda: self._capacity.taken_bytes, connections.give_back)
        # What others may see and change: whether the way out has begun, and how many reviews it cut off.
        self.draining = False
        self.cut_off = 0
        counts.in_flight.set_function(lambda: self._capacity.taken)
        counts.held_bytes.set_function(lambda: self._capacity.taken_bytes)
        counts.draining.set_function(lambda: float(self.draining))

    def reviews(self) -> web.Application:
        """`/mutate`, `/validate`, and the probes as well."""
        app = self.probes()
        for path in self._handlers:
            app.router.add_post(path, self._review)
        return app

    def probes(self) -> web.Application:
        """`/livez`, `/readyz` and `/metrics`."""
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        return app

    # --- reviews -----------------------------------------------------------------------------------------------------

    async def _review(self, request: web.Request) -> web.Response:
        """Check, read, ask, write; around it the time it took, room, an answer for each way to fail, and closing."""
        with self._counts.seconds.labels(_webhook(request)).time():
            try:
                self._check(request)
                with self._capacity.take(request.content_length or self._limits.max_body_bytes):
                    asked = review.read(await self._body(request))
                    answer = await self._handlers[request.path](asked)
                    response = web.Response(body=review.write(asked.uid, answer), content_type="application/json")
            except asyncio.CancelledError:
                self.cut_off += 1
                raise
            except Exception as error:
                response = self._failed(request, error)
        if self.draining:
            response.force_close()  # the next review goes to another replica
        return response

    def _check(self, request: web.Request) -> None:
        """Whether it may be asked, and is what can be read. Raises refusals.Unanswered."""
        peer = request.transport.get_extra_info("peercert") if request.transport else None
        if self._why_unwelcome is not None and (unwelcome := self._why_unwelcome(peer)):
            raise HttpError.CLIENT.told(why=unwelcome)
        if request.content_type != "application/json":
            raise HttpError.MEDIA_TYPE.told(found=request.headers.get("Content-Type", "")[:100])
        if (encoding := request.headers.get("Content-Encoding", "identity")) != "identity":
            raise HttpError.ENCODING.told(found=encoding[:100])
        self._check_size(request.content_length or 0)

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_body_bytes:
            raise HttpError.TOO_LARGE.told(limit=self._limits.max_body_bytes)

    async def _body(self, request: web.Request) -> bytearray:
        """The whole body. Not `request.read`, which would keep it until the connection's next request."""
        allowed = self._limits.body_timeout
        allowed = min(allowed, seconds(request.query.get("timeout", "")) or allowed)
        body = bytearray()
        try:
            async with asyncio.timeout(allowed):
                async for chunk in request.content.iter_any():
                    body += chunk
                    self._check_size(len(body))
        except TimeoutError:
            raise HttpError.BODY_TIMEOUT.told(seconds=allowed) from None
        except (ConnectionError, web.RequestPayloadError) as error:
            raise HttpError.BODY_BROKEN.told(error=error) from None
        if len(body) >= allocator.LARGE:
            self._trimmer.large_body()
        return body

    def _failed(self, request: web.Request, error: Exception) -> web.Response:
        """The answer to any failure. What nobody expected is a bug: it is logged, and nothing of it told."""
        if isinstance(error, refusals.Unanswered):
            unanswered = error
        elif expected := _EXPECTED.get(type(error)):
            unanswered = expected.told(error=error)
        else:
            webhook = _webhook(request)
            self._limited_log.error(f"bug {webhook}", "a review failed", webhook=webhook)
            unanswered = HttpError.INTERNAL.told()
        reason = unanswered.reason
        self._counts.errors.labels(reason.code).inc()
        # What is malformed is quoted to the caller, but may be a secret of the pod.
        told = "what was sent is malformed" if reason is HttpError.MALFORMED else str(unanswered)[:500]
        message = f"a review was not answered: {told}"
        self._limited_log.warning(reason.code, message, path=request.path, status=reason.status)
        status = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": reason.status,
            "message": f"carpool-injector: {unanswered}",
        }  # fmt: skip
        response = web.json_response(status, status=reason.status)
        if reason.status in _BODY_UNREAD:
            response.force_close()
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


def _webhook(request: web.Request) -> str:
    return request.path.removeprefix("/")


def seconds(duration: str) -> float | None:
    """What Go writes as "10s", "1m30s" or "500ms"; None for anything else, as it is the caller's own deadline."""
    parts = _DURATION.findall(duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts) or None
