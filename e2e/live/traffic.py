"""Requests through the ingress, as callers outside the cluster send them."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp

ANSWER_SECONDS = 30.0


class Answer(NamedTuple):
    """An answer: status, headers by their names in lower case, body, and the seconds that it took."""

    status: int
    headers: dict[str, str]
    body: bytes
    elapsed: float

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")

    @property
    def json(self) -> Any:
        """The decoded body. Raises ValueError where it is not JSON."""
        return json.loads(self.body)


class Caller:
    """Sends requests for one host to the ingress controller. A body that is not bytes is sent as JSON."""

    def __init__(self, ingress: str, host: str) -> None:
        """`ingress` is its base URL ("http://ADDRESS:PORT"), `host` what the Ingress routes by."""
        self.ingress = ingress.rstrip("/")
        self.host = host

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """One POST. Raises aiohttp.ClientError or TimeoutError where no answer comes."""
        return _run(self._all("POST", path, [body], headers or {}))[0]

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """One GET, likewise."""
        return _run(self._all("GET", path, [None], headers or {}))[0]

    def gather(self, path: str, bodies: Sequence[Any], headers: Mapping[str, str] | None = None) -> list[Answer]:
        """One POST for each body, all at once, on a connection each; the answers in the order of the bodies."""
        return _run(self._all("POST", path, bodies, headers or {}))

    async def _all(self, method: str, path: str, bodies: Sequence[Any], headers: Mapping[str, str]) -> list[Answer]:
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, auto_decompress=False) as session:
            return list(await asyncio.gather(*(self._one(session, method, path, body, headers) for body in bodies)))

    async def _one(
        self, session: aiohttp.ClientSession, method: str, path: str, body: Any, headers: Mapping[str, str]
    ) -> Answer:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        stream = data if data is None else io.BytesIO(data)  # which aiohttp sends in pieces, however large
        sent = {"Host": self.host, "Content-Type": "application/json", **headers}
        start = time.monotonic()
        async with session.request(method, self.ingress + path, data=stream, headers=sent) as answer:
            content = await answer.read()
            found = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(answer.status, found, content, time.monotonic() - start)


def _run(calls: Coroutine[Any, Any, list[Answer]]) -> list[Answer]:
    """Runs them on a new event loop; asyncio.run would remove the one that pytest-asyncio has set in this thread."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(calls)
