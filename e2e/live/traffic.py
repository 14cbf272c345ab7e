"""Requests through the ingress, as callers outside the cluster send them."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
import yarl

ANSWER_SECONDS = 30.0
JSON = {"Content-Type": "application/json"}
# Headers that the client adds by default: a test sends only its own.
_ADDED_BY_THE_CLIENT = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


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


@dataclasses.dataclass(frozen=True)
class Target:
    """A service behind the ingress controller at `url` ("http://ADDRESS:PORT"); `host` is what it routes by."""

    url: str
    host: str

    async def send(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        patience: float = ANSWER_SECONDS,
    ) -> Answer:
        """One request on a connection of its own; `target` and all headers go out as they are written.

        A caller whose patience ends hangs up, and TimeoutError is raised; aiohttp.ClientError where no answer comes.
        """
        start = time.monotonic()
        sent = {"Host": self.host, **(headers or {})}
        data = io.BytesIO(body) if body else None  # which aiohttp sends in pieces, however large
        async with (
            self._session(patience) as session,
            session.request(method, self._at(target), data=data, headers=sent) as answer,
        ):
            content = await answer.read()
            found = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(answer.status, found, content, time.monotonic() - start)

    def _session(self, patience: float) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=patience)
        return aiohttp.ClientSession(timeout=timeout, auto_decompress=False, skip_auto_headers=_ADDED_BY_THE_CLIENT)

    def _at(self, target: str) -> yarl.URL:
        return yarl.URL(self.url.rstrip("/") + target, encoded=True)


class Caller(Target):
    """The same for tests without an event loop. Bodies are sent as JSON; raises as `send` does."""

    def post(self, path: str, body: Any) -> Answer:
        """One POST."""
        return self.gather(path, [body])[0]

    def gather(self, path: str, bodies: Sequence[Any]) -> list[Answer]:
        """One POST for each body, all at once; the answers in the order of the bodies."""

        async def together() -> list[Answer]:
            sent = (self.send("POST", path, json.dumps(body).encode(), JSON) for body in bodies)
            return list(await asyncio.gather(*sent))

        # A new event loop: asyncio.run would remove the one that pytest-asyncio has set in this thread.
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(together())
