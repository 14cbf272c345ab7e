"""A model server that fails on request: it answers each instance with itself, or crashes, or takes memory until killed.

It runs in pods as somebody's own server does, so it imports nothing of this project.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os

from aiohttp import web

MEBIBYTE = 1 << 20


class Server:
    """Exits at once in the middle of its work, as a crash does, or takes memory until it is killed."""

    def __init__(self, crash_after: float) -> None:
        self._crash_after = crash_after
        self._kept: list[bytearray] = []

    async def predict(self, request: web.Request) -> web.Response:
        instances = json.loads(await request.read())["instances"]
        await asyncio.sleep(0.01)
        for instance in instances:
            if isinstance(instance, dict) and "grow_mebibytes" in instance:
                self._kept.append(bytearray(b"x" * (int(instance["grow_mebibytes"]) * MEBIBYTE)))
        return web.json_response({"predictions": instances})

    async def crash_later(self, app: web.Application) -> None:
        if self._crash_after:
            asyncio.get_running_loop().call_later(self._crash_after, os._exit, 1)


async def say_ready(request: web.Request) -> web.Response:
    return web.Response(text="ready")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--crash-after", type=float, default=0, metavar="SECONDS", help="0: never")
    told = parser.parse_args()
    server = Server(told.crash_after)
    app = web.Application(client_max_size=256 * MEBIBYTE)
    app.on_startup.append(server.crash_later)
    app.router.add_get("/readyz", say_ready)
    app.router.add_post("/v1/models/{name}:predict", server.predict)
    web.run_app(app, port=told.port, print=None)


if __name__ == "__main__":
    main()
