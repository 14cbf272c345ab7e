"""A Kubernetes API server on loopback, as far as the injector's client goes: storage with versions, paging, watches.

Behaviour follows the API concepts of the Kubernetes documentation: optimistic concurrency by resourceVersion, `limit`
and `continue`, watch events as lines of JSON, Status objects for what goes wrong.
"""

from __future__ import annotations

import asyncio
import copy
import json

from aiohttp import web


def status(code: int, reason: str, message: str) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }
    return web.json_response(body, status=code)


class FakeApiServer:
    """`app` is to be served; objects are kept by their path."""

    def __init__(self) -> None:
        self.objects: dict[str, dict] = {}
        self.requests: list[web.Request] = []
        self.bodies: list[dict] = []
        self.version = 1000
        self.git_version = {"major": "1", "minor": "33+"}
        self.token: str | None = None
        # Answers to give instead, one for each request, in turn: a response, an exception's stand-in, or None for none.
        self.instead: list[web.Response | str | None] = []
        self.forgets_versions_before = 0  # a list or watch that goes on from an older version is answered 410
        self.watchers: list[asyncio.Queue] = []
        self.begun: asyncio.Queue[str] = asyncio.Queue()  # the version from which each watch goes on
        self.app = web.Application()
        self.app.router.add_route("*", "/{path:.*}", self._answer)

    def put(self, path: str, object_: dict) -> dict:
        """Stores an object and tells the watchers."""
        kind = "MODIFIED" if path in self.objects else "ADDED"
        self.version += 1
        stored = copy.deepcopy(object_)
        stored.setdefault("metadata", {}).update(name=path.rsplit("/", 1)[1], resourceVersion=str(self.version))
        self.objects[path] = stored
        self._tell(kind, stored)
        return stored

    def delete(self, path: str) -> None:
        self.version += 1
        gone = self.objects.pop(path)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._tell("DELETED", gone)

    def namespace(self, name: str, labels: dict | None = None) -> None:
        self.put(f"/api/v1/namespaces/{name}", {"kind": "Namespace", "metadata": {"labels": labels or {}}})

    def tell(self, event: dict | str) -> None:
        """Sends an event to all watchers: an object, or "end" and "break" for the end of the connection."""
        for watcher in self.watchers:
            watcher.put_nowait(event)

    def _tell(self, kind: str, object_: dict) -> None:
        self.tell({"type": kind, "object": copy.deepcopy(object_)})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        instead = self.instead.pop(0) if self.instead else None
        if instead == "hang up":
            request.transport.close()
            return web.Response()
        if isinstance(instead, web.Response):
            return instead
        if self.token is not None and request.headers.get("Authorization", "").lower() != f"bearer {self.token}":
            return status(401, "Unauthorized", "Unauthorized")
        if request.path == "/version":
            return web.json_response(self.git_version)
        if request.method == "GET":
            return await self._get(request)
        body = await request.json()
        self.bodies.append(body)
        return self._post(request, body) if request.method == "POST" else self._patch(request, body)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        if request.path in self.objects:
            return web.json_response(self.objects[request.path])
        found = {path: item for path, item in self.objects.items() if path.rpartition("/")[0] == request.path}
        folder, plural = request.path.rsplit("/", 1)
        if "/namespaces" not in request.path:  # of all namespaces
            of_all = (folder + "/namespaces/", f"/{plural}/")
            found |= {
                path: item for path, item in self.objects.items() if path.startswith(of_all[0]) and of_all[1] in path
            }
        if not found and not request.path.endswith(("namespaces", "pods", "nodes", "endpointslices")):
            return status(404, "NotFound", f"{request.path} not found")
        if request.query.get("watch"):
            return await self._watch(request)
        return self._list(request, [found[path] for path in sorted(found)])

    def _list(self, request: web.Request, items: list[dict]) -> web.Response:
        terms = [part.partition("=") for part in request.query.get("labelSelector", "").split(",") if part]
        for key, equals, value in terms:  # key=value, or a key that has to be there
            labels = [item["metadata"].get("labels", {}) for item in items]
            wanted = [key in held and (not equals or held[key] == value) for held in labels]
            items = [item for item, is_one in zip(items, wanted, strict=True) if is_one]
        begin = int(request.query.get("continue", "0"))
        if begin and self.version < self.forgets_versions_before:
            return status(410, "Expired", "the provided continue parameter is too old")
        end = begin + int(request.query.get("limit", "500"))
        metadata = {"resourceVersion": str(self.version), **({"continue": str(end)} if end < len(items) else {})}
        return web.json_response({"kind": "List", "metadata": metadata, "items": items[begin:end]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if int(request.query["resourceVersion"]) < self.forgets_versions_before:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            return web.Response(body=json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
        response = web.StreamResponse()
        await response.prepare(request)
        watcher: asyncio.Queue = asyncio.Queue()
        self.watchers.append(watcher)
        self.begun.put_nowait(request.query["resourceVersion"])
        try:
            while (event := await watcher.get()) != "end":
                if event == "break":
                    request.transport.abort()
                    return response
                await response.write(json.dumps(event).encode() + b"\n")
        finally:
            self.watchers.remove(watcher)
        return response

    def _post(self, request: web.Request, body: dict) -> web.Response:
        name = body["metadata"].get("name") or body["metadata"].get("generateName", "") + "x7k2p"
        path = f"{request.path}/{name}"
        if path in self.objects:
            return status(409, "AlreadyExists", f"{name} already exists")
        if request.query.get("dryRun") == "All":
            return web.json_response({**body, "status": {"phase": "Pending"}}, status=201)
        return web.json_response(self.put(path, body), status=201)

    def _patch(self, request: web.Request, body: dict) -> web.Response:
        known = self.objects.get(request.path)
        if known is None:
            return status(404, "NotFound", f"{request.path} not found")
        version = known["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion", version) != version:
            return status(
                409, "Conflict", "the object has been modified; please apply your changes to the latest version"
            )
        strategic = "strategic" in request.content_type
        return web.json_response(self.put(request.path, _merged(known, body, strategic)))


def _merged(known, patch, strategic: bool):
    """JSON Merge Patch (RFC 7396); lists of a strategic one are merged by the name of their entries."""
    if strategic and isinstance(known, list) and isinstance(patch, list):
        changes = {entry["name"]: entry for entry in patch}
        return [_merged(entry, changes.get(entry["name"], {}), strategic) for entry in known]
    if not isinstance(known, dict) or not isinstance(patch, dict):
        return copy.deepcopy(patch)
    return {**known, **{key: _merged(known.get(key), value, strategic) for key, value in patch.items()}}
