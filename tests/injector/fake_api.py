"""A Kubernetes API server as far as the injector asks one: versions, namespaces, Secrets, webhooks, Events, pods.

In memory, over plain HTTP on the loopback interface, with a kubeconfig to reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

Object = dict[str, Any]

_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_WEBHOOKS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


class FakeApi:
    """State: objects by path, what was told in Events, who watches namespaces."""

    def __init__(self, version: tuple[int, int] = (1, 33)) -> None:
        self.version = version
        self.namespaces: dict[str, Object] = {}
        self.objects: dict[str, Object] = {}
        self.events: list[Object] = []
        self.event_told = asyncio.Event()
        self.pods: list[Object] = []
        self.evicted: list[str] = []
        self._versions = 100
        self._watchers: set[asyncio.Queue[Object]] = set()
        for kind in _WEBHOOKS:
            entry = {"name": "carpool.dev", "clientConfig": {"service": {"name": "carpool-injector"}}}
            self.put(f"{_ADMISSION}/{kind}/carpool-injector", {"webhooks": [entry]})
        self.add_namespace("models")

    def put(self, path: str, thing: Object) -> Object:
        """Stores an object under a new resourceVersion."""
        self._versions += 1
        name = path.rpartition("/")[2]
        self.objects[path] = {
            **thing, "metadata": {"name": name, **thing.get("metadata", {}), "resourceVersion": str(self._versions)}
        }  # fmt: skip
        return self.objects[path]

    def add_namespace(self, name: str, **labels: str) -> None:
        """Adds or changes a namespace; who watches is told."""
        self._versions += 1
        kind = "MODIFIED" if name in self.namespaces else "ADDED"
        metadata = {"name": name, "labels": labels, "resourceVersion": str(self._versions)}
        self.namespaces[name] = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        for watcher in self._watchers:
            watcher.put_nowait({"type": kind, "object": self.namespaces[name]})

    def ca_bundle(self, kind: str = _WEBHOOKS[0]) -> str:
        """The caBundle that API servers would trust, base64."""
        found = self.objects[f"{_ADMISSION}/{kind}/carpool-injector"]
        return str(found["webhooks"][0]["clientConfig"].get("caBundle", ""))

    @contextlib.asynccontextmanager
    async def serving(self, directory: Path) -> AsyncIterator[Path]:
        """Serves on a free port; gives the path of a kubeconfig, written into `directory`."""
        app = web.Application()
        app.router.add_get("/version", self._version)
        app.router.add_get("/api/v1/nodes", self._nodes)
        app.router.add_get("/api/v1/namespaces", self._namespaces)
        app.router.add_get("/api/v1/namespaces/{name}", self._namespace)
        app.router.add_post("/api/v1/namespaces/{name}/events", self._event)
        app.router.add_post("/api/v1/namespaces/{name}/secrets", self._create_secret)
        app.router.add_get("/api/v1/pods", self._pods)
        app.router.add_get("/api/v1/namespaces/{name}/pods", self._pods)
        app.router.add_post("/api/v1/namespaces/{name}/pods/{pod}/eviction", self._evict)
        app.router.add_get("/{path:.*}", self._get)
        app.router.add_patch("/{path:.*}", self._patch)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(_kubeconfig(f"http://127.0.0.1:{runner.addresses[0][1]}"))
        try:
            yield kubeconfig
        finally:
            for watcher in self._watchers:
                watcher.put_nowait({})
            await runner.cleanup()

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"major": str(self.version[0]), "minor": str(self.version[1])})

    async def _nodes(self, _: web.Request) -> web.Response:
        kubelet = f"v{self.version[0]}.{self.version[1]}.0"
        node = {"metadata": {"name": "node"}, "status": {"nodeInfo": {"kubeletVersion": kubelet}}}
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [node]})

    async def _namespaces(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") != "true":
            listed = {"metadata": {"resourceVersion": str(self._versions)}, "items": list(self.namespaces.values())}
            return web.json_response(listed)
        watcher: asyncio.Queue[Object] = asyncio.Queue()
        self._watchers.add(watcher)
        try:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            while event := await watcher.get():
                await response.write(json.dumps(event).encode() + b"\n")
            return response
        finally:
            self._watchers.discard(watcher)

    async def _namespace(self, request: web.Request) -> web.Response:
        found = self.namespaces.get(request.match_info["name"])
        return web.json_response(found) if found else _failure(404)

    async def _event(self, request: web.Request) -> web.Response:
        self.events.append(await request.json())
        self.event_told.set()
        return web.json_response(self.events[-1], status=201)

    async def _pods(self, request: web.Request) -> web.Response:
        namespace = request.match_info.get("name")
        found = [each for each in self.pods if namespace in (None, each["metadata"]["namespace"])]
        return web.json_response({"metadata": {"resourceVersion": str(self._versions)}, "items": found})

    async def _evict(self, request: web.Request) -> web.Response:
        self.evicted.append(request.match_info["pod"])
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    async def _create_secret(self, request: web.Request) -> web.Response:
        body = await request.json()
        path = f"{request.path}/{body['metadata']['name']}"
        return _failure(409) if path in self.objects else web.json_response(self.put(path, body), status=201)

    async def _get(self, request: web.Request) -> web.Response:
        found = self.objects.get(request.path)
        return web.json_response(found) if found else _failure(404)

    async def _patch(self, request: web.Request) -> web.Response:
        """A merge patch of members; the only lists here are webhooks, and these come whole enough."""
        found, body = self.objects.get(request.path), await request.json()
        if found is None:
            return _failure(404)
        if body["metadata"].get("resourceVersion") not in (None, found["metadata"]["resourceVersion"]):
            return _failure(409)
        merged = {**found, "data": {**found.get("data", {}), **body.get("data", {})}}
        merged["webhooks"] = body.get("webhooks", found.get("webhooks", []))
        return web.json_response(self.put(request.path, merged))


def _failure(code: int) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": "as asked"}, status=code)


def _kubeconfig(url: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
            "clusters": [{"name": "fake", "cluster": {"server": url}}],
            "users": [{"name": "me", "user": {"token": "secret"}}],
        }
    )
