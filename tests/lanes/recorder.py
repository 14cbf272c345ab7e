"""A predictor that writes down what it gets and behaves as the name of the model says.

Targets look like `/v1/models/echo-000123:predict`: a behaviour of the table below, and a number that tells which
stream a request belongs to, so that many streams can run at once and the effects of each be told apart.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from carpool_sidecar import errors
from carpool_sidecar.protocols import v1

_MODEL = re.compile(r"models/([a-z_]+)-\d{6}")
_NUMBER = re.compile(r"-(\d{6})")
_HEAD = 256 * 1024
SLOW_SECONDS = 0.7  # no sum of these is a moment at which anything else happens
LARGE_ANSWER = 1 << 20


@dataclass(frozen=True)
class Seen:
    """One request as it reached the predictor; `body` is None if it broke off.

    Its `headers` are sorted by their names, in lower case: the order of different ones means nothing (RFC 9110, section
    5.3), nor does their spelling.
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None

    @property
    def stream(self) -> str:
        """The number of the stream it came in, or "" if it tells none."""
        words = (self.target, *(value for _, value in self.headers), (self.body or b"").decode(errors="replace"))
        return next((found[1] for word in words if (found := _NUMBER.search(word))), "")

    @property
    def payload(self) -> v1.Payload | None:
        """Its instances and what is beside them; None if it is no predict request that could have been a batch."""
        try:
            return v1.parse_request(self.body or b"")
        except (errors.CarpoolError, errors.Unbatchable):
            return None

    @property
    def rows(self) -> list[bytes]:
        """Its instances; empty if there are none."""
        return [] if self.payload is None else [bytes(row) for row in self.payload.rows]

    @property
    def is_refused(self) -> bool:
        """Whether it may be refused in such a way that the instances of a batch are tried once more, each alone."""
        model = _MODEL.search(self.target)
        return model is not None and model[1] in _REFUSING


class Recorder:
    """`seen` is every request, `predictions` what is answered for each instance instead of the instance itself."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.gate = asyncio.Event()
        self.gate.set()
        quiet = logging.getLogger("tests.lanes.predictor")
        quiet.disabled = True  # clients that break off are what these tests are about
        self.server = web.Server(
            self.handle, handler_cancellation=True, access_log=None, logger=quiet, keepalive_timeout=1e6,
            max_line_size=_HEAD, max_field_size=_HEAD, max_headers=1000, auto_decompress=False,
        )  # fmt: skip

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Write the request down, and answer."""
        body: bytes | None = None
        try:
            body = await request.content.read()
        finally:
            fields = [(name.lower(), value) for name, value in request.headers.items()]
            headers = tuple(sorted(fields, key=lambda field: field[0]))
            seen = Seen(request.method, request.raw_path, headers, body)
            self.seen.append(seen)
        await self.gate.wait()
        model = _MODEL.search(request.raw_path)
        return await _behave(model[1] if model else "echo", seen, request)


async def _behave(behaviour: str, seen: Seen, request: web.BaseRequest) -> web.StreamResponse:
    if behaviour == "slow":
        await asyncio.sleep(SLOW_SECONDS)
    elif behaviour == "hang":
        await asyncio.sleep(1e5)
    elif behaviour == "hang_up":
        assert request.transport is not None
        request.transport.close()
    elif behaviour == "poison" and b'"bad"' in seen.rows:
        return web.Response(status=400, body=b'{"error":"poison"}', content_type="application/json")
    elif behaviour in _SPECIAL:
        return _SPECIAL[behaviour](seen)
    return _echo(seen)


def _echo(seen: Seen, member: str = "predictions") -> web.Response:
    rows = seen.rows if seen.method == "POST" and ":predict" in seen.target.replace("%3A", ":") else []
    if not rows:
        body = b"passed:" + seen.method.encode() + b":" + (seen.body or b"")
        return web.Response(body=body, headers={"X-From": "predictor"})
    return web.Response(body=b'{"%b":[%b]}' % (member.encode(), b",".join(rows)), content_type="application/json")


def _refusal(status: int, body: bytes, **headers: str) -> Callable[[Seen], web.Response]:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda seen: web.Response(status=status, body=body, headers=fields)


_SPECIAL: dict[str, Callable[[Seen], web.Response]] = {
    "outputs": lambda seen: _echo(seen, "outputs"),
    "teapot": _refusal(418, b"short and stout", Content_Type="text/teapot", Retry_After="7", X_Other="no"),
    "reject": _refusal(400, b'{"error":"no"}', Content_Type="application/json"),
    "busy": _refusal(503, b"", Retry_After="120"),
    "crash": _refusal(500, b"<html>\xff</html>", Content_Type="text/html"),
    "moved": _refusal(302, b"", Location="/elsewhere"),
    "miscount": _refusal(200, b'{"predictions":[1,2,3,4,5,6,7]}'),
    "markup": _refusal(200, b"<html>"),
    "no_list": _refusal(200, b'{"predictions":{"0":1}}'),
    "silent": _refusal(200, b""),
    "large": lambda seen: web.Response(
        body=b'{"predictions":[%b]}' % b",".join(b'"%b"' % (b"x" * LARGE_ANSWER) for _ in seen.rows)
    ),
}
_REFUSING = frozenset({"poison", "reject", "teapot"})
BEHAVIOURS = ("echo", "slow", "hang", "hang_up", "poison", *_SPECIAL)
