"""The admin port: what operators and kubelets ask the sidecar itself, apart from the traffic.

Reading is open to all who reach the port, so that metrics can be scraped and probes answered. Changing anything is
for callers inside the pod unless the settings say otherwise.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import prometheus_client
from aiohttp import web

import sidecar
from sidecar import config, lifecycle, metrics
from sidecar.upstream import readiness

_MAX_CONFIG_BYTES = 64 * 1024
_INSIDE = frozenset(map(ipaddress.ip_address, ("127.0.0.1", "::1", "::ffff:127.0.0.1")))


class Admin:
    """Makes the admin application.

    `settings` gives the settings now in force and `learned` what the policy found out, `apply` puts changed settings in
    force, and `drain` starts the way out and
    returns once everything accepted has been answered.
    """

    def __init__(
        self,
        settings: Callable[[], config.Settings],
        apply: Callable[[config.Settings], None],
        drain: Callable[[], Awaitable[object]],
        life: lifecycle.Lifecycle,
        ready: readiness.Readiness,
        counters: metrics.Metrics,
        learned: Callable[[], Mapping[str, float]],
    ) -> None:
        self._settings = settings
        self._apply = apply
        self._drain = drain
        self._life = life
        self._ready = ready
        self._metrics = counters
        self._learned = learned

    def application(self) -> web.Application:
        """The aiohttp application with all routes."""
        app = web.Application(client_max_size=_MAX_CONFIG_BYTES)
        app.router.add_get("/", self._index)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._render_metrics)
        app.router.add_get("/config", self._show_config)
        app.router.add_patch("/config", self._change_config)
        app.router.add_get("/drain", self._show_drain)
        app.router.add_post("/drain", self._start_drain)
        return app

    async def _index(self, request: web.Request) -> web.Response:
        return web.Response(text="/livez /readyz /metrics /config (GET, PATCH) /drain (GET, POST)\n")

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        if self._life.draining:
            return web.Response(status=503, text="shutting down\n")
        is_ready = await self._ready.check()
        self._metrics.ready.set(is_ready)
        if is_ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text=f"predictor not ready: {self._ready.last_error}\n")

    async def _render_metrics(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": prometheus_client.CONTENT_TYPE_LATEST}
        return web.Response(body=self._metrics.render(), headers=headers)

    async def _show_config(self, request: web.Request) -> web.Response:
        settings = self._settings()
        about = {
            "version": sidecar.__version__,
            "live": settings.live,
            "running_policy": "adaptive" if settings.is_adaptive else "window",
            "learned": self._learned(),
        }
        return _json({**about, **settings.model_dump()})

    async def _change_config(self, request: web.Request) -> web.Response:
        self._check_may_write(request)
        try:
            changes = msgspec.json.decode(await request.read(), type=dict[str, Any])
            self._apply(self._settings().changed(changes))
        except (msgspec.MsgspecError, ValueError) as error:
            return _json({"error": str(error)}, status=400)
        return await self._show_config(request)

    async def _show_drain(self, request: web.Request) -> web.Response:
        return _json({"phase": self._life.phase.value, "active": self._life.active})

    async def _start_drain(self, request: web.Request) -> web.Response:
        self._check_may_write(request)
        await self._drain()
        return await self._show_drain(request)

    def _check_may_write(self, request: web.Request) -> None:
        if self._settings().admin_write == "any" or _is_loopback(request.remote):
            return
        text = "changes are allowed from inside the pod only; --admin-write any lifts that\n"
        raise web.HTTPForbidden(text=text)


def _is_loopback(address: str | None) -> bool:
    """Whether a caller is in this pod.

    The rest of 127.0.0.0/8 is not: Istio's sidecar delivers what comes from outside from 127.0.0.6.
    """
    try:
        return ipaddress.ip_address(address or "") in _INSIDE
    except ValueError:
        return False


def _json(value: Any, status: int = 200) -> web.Response:
    body = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    return web.Response(body=body, status=status, content_type="application/json")
