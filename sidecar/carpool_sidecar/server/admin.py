"""The admin port: what operators and kubelets ask the sidecar itself, apart from the traffic."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import prometheus_client
from aiohttp import http_exceptions, web

import carpool_sidecar
from carpool_sidecar import config, errors, metrics
from carpool_sidecar import drain as lifecycle
from carpool_sidecar.live import event_stream
from carpool_sidecar.protocols import json_members, steps
from carpool_sidecar.server import admin_access, admin_clients, live_view
from carpool_sidecar.upstream import readiness

_MAX_CONFIG_BYTES = 64 * 1024
_BODY_SECONDS = 10.0
# A kubelet starts the preStop hooks of a pod's containers at once. One of them starts the drain, and is a program in a
# container with a small share of a CPU that is busy serving: so much later it may begin, on an overloaded node. Without
# its predictor the sidecar could only answer 502 from then on. A predictor that is restarted alone, or a pod without
# that hook, has nothing to wait for, and is held up so long for nothing.
_LATEST_BEGINNING_SECONDS = 15.0


@dataclasses.dataclass
class Admin:
    """Makes the admin application.

    `settings` gives the settings now in force and `learned` what the policy found out, `apply` puts changed settings in
    force, and `drain` starts the way out and returns once everything accepted has been answered or the grace period is
    over. `arrivals` takes what came lately and gives a function that writes it out, in any thread. `stream` is what the
    live page shows, and `clients` are told of requests.
    """

    settings: Callable[[], config.Settings]
    apply: Callable[[config.Settings], None]
    drain: Callable[[], Awaitable[object]]
    life: lifecycle.Lifecycle
    ready: readiness.Readiness
    counters: metrics.Metrics
    learned: Callable[[], Mapping[str, float]]
    arrivals: Callable[[], Callable[[], bytes]]
    stream: event_stream.EventStream
    clients: admin_clients.Clients
    _draining: asyncio.Future[object] | None = None  # what POST /drain started
    _drain_waits: admin_clients.DrainWaits = dataclasses.field(default_factory=admin_clients.DrainWaits)

    def application(self) -> web.Application:
        """The aiohttp application with all routes."""
        # A caller that leaves waits no longer: handlers get cancelled.
        app = web.Application(
            client_max_size=_MAX_CONFIG_BYTES,
            handler_args={"handler_cancellation": True},
            middlewares=[self.clients.look_on, admin_access.keep_out],
        )
        app.router.add_get("/", self._index)
        app.router.add_get("/events", self._events)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._render_metrics)
        app.router.add_get("/config", self._show_config)
        app.router.add_patch("/config", self._change_config)
        app.router.add_get("/arrivals", self._show_arrivals)
        app.router.add_get("/drain", self._show_drain)
        app.router.add_post("/drain", self._start_drain)
        app.router.add_get("/drained", self._wait_until_drained)
        return app

    async def _index(self, request: web.Request) -> web.Response:
        shown = live_view.page(request)
        if shown is not None:
            return shown
        text = (
            "/livez /readyz /metrics /config (GET, PATCH) /arrivals /drain (GET, POST) /drained /events; "
            "a browser gets a page\n"
        )
        return web.Response(text=text, headers={"Vary": "Accept"})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        return await live_view.events(request, self.stream, admin_access.may_write(request, self.settings()))

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        if self.life.draining:
            return web.Response(status=503, text="shutting down\n")
        is_ready = await self.ready.check()
        self.counters.ready.set(is_ready)
        if is_ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text=f"predictor not ready: {self.ready.last_error}\n")

    async def _render_metrics(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": prometheus_client.CONTENT_TYPE_LATEST}
        return web.Response(body=self.counters.render(), headers=headers)

    async def _show_config(self, request: web.Request) -> web.Response:
        settings = self.settings()
        about = {
            "version": carpool_sidecar.__version__,
            "live": settings.live,
            "running_policy": "adaptive" if settings.is_adaptive else "window",
            "learned": self.learned(),
        }
        return _json({**about, **settings.model_dump()})

    async def _change_config(self, request: web.Request) -> web.Response:
        admin_access.check_may_write(request, self.settings())
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await request.read()
            changes = msgspec.json.decode(body, type=dict[str, Any])
            steps.at_once(json_members.find(body))  # refuses what names a member twice: the decoder keeps the last
            before = self.settings()
            self.apply(before.changed(changes))
        except TimeoutError:
            return _json({"error": f"the body did not arrive within {_BODY_SECONDS:g} s"}, status=408)
        except RecursionError:
            return _json({"error": "the body is nested too deeply"}, status=400)
        except errors.Unbatchable:
            return _json({"error": f"the body has more than {json_members.MOST} members"}, status=400)
        except (msgspec.MsgspecError, ValueError, errors.BadRequest) as error:
            return _json({"error": str(error)}, status=400)
        now = self.settings()
        if any(getattr(now, name) != getattr(before, name) for name in now.live):
            self.counters.settings_changes.inc()
        return await self._show_config(request)

    async def _show_arrivals(self, request: web.Request) -> web.Response:
        # There may be megabytes, and callers of the data port wait for this thread meanwhile.
        body = await asyncio.to_thread(self.arrivals())
        return web.Response(body=body, content_type="application/jsonl")

    async def _show_drain(self, request: web.Request) -> web.Response:
        return _json({"phase": self.life.phase.value, "active": self.life.active})

    async def _start_drain(self, request: web.Request) -> web.Response:
        admin_access.check_may_write(request, self.settings())
        if self._draining is None:  # a task of its own: the grace period counts in it, and callers may leave
            self._draining = asyncio.ensure_future(self.drain())
        await asyncio.wait([self._draining])
        return await self._show_drain(request)

    async def _wait_until_drained(self, request: web.Request) -> web.Response:
        """For the other containers' preStop hooks: answers when the drain is over, or when none begins.

        A GET that changes nothing, because a kubelet's httpGet hook comes from outside the pod.
        """
        longest = self.settings().grace_period
        patience = min(_LATEST_BEGINNING_SECONDS, longest)
        address = request.remote or ""
        if not await self._drain_waits.wait(lambda: self.life.until_drained(patience), address, longest):
            text = "the most requests that may wait for the drain do; addresses with the fewest of them come first\n"
            return web.Response(status=503, text=text)
        if self.life.phase is lifecycle.Phase.DRAINED:
            return web.Response(text="drained\n")
        if self.life.phase is lifecycle.Phase.SERVING:
            return web.Response(text=f"not draining: nothing to wait for, as no drain began within {patience:g} s\n")
        text = f"not drained within the grace period; requests and streams still open: {self.life.active}\n"
        return web.Response(status=503, text=text)


def _json(value: Any, status: int = 200) -> web.Response:
    body = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    return web.Response(body=body, status=status, content_type="application/json")


class ServerLog(logging.LoggerAdapter[logging.Logger]):
    """The `logger` of an aiohttp server: malformed HTTP is one line at debug, without a word of what was sent.

    Everything else is logged as aiohttp asks, bugs with their traceback. By itself it would log such HTTP as an error
    that quotes the line: anyone who reaches the port could fill the log with that, and a line may hold credentials.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, None)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        error = kwargs.get("exc_info")
        if isinstance(error, http_exceptions.HttpProcessingError):
            super().log(logging.DEBUG, f"{msg}: %s", *args, type(error).__name__)
        else:
            super().log(level, msg, *args, **kwargs)
