"""What a stream means to the data port, held against what it means to h11: the same requests, or fewer.

The requests that a connection takes are the first ones that h11 finds in the same bytes, with the same methods, targets
and bodies. Whatever is not one of these was refused. And what the relay writes of each is one request to h11, and the
same one. So nobody who reads as strictly as h11 finds a request that another reader had not.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple, cast

import h11

from carpool_sidecar import errors
from carpool_sidecar.batching import model_registry, routes
from carpool_sidecar.protocols import models, v1
from carpool_sidecar.server import headers
from carpool_sidecar.server.http1 import exchange, relay
from tests.server import connection_bench

_MOST = 1 << 30
# h11 takes twenty digits at most, and we any number of zeros before them (RFC 9110, 8.6).
_ZEROS = re.compile(rb"(?i)(\r\ncontent-length:[ \t]*)0+(?=[0-9])")


class Request(NamedTuple):
    """What counts of a request: of a body that is a batch's, its instances."""

    method: str
    target: str
    body: bytes


# --- what h11 finds ---------------------------------------------------------------------------------------------


def read_by_h11(data: bytes) -> list[Request]:
    """The complete requests that `data` begins with."""
    found: list[Request] = []
    while read := _first(data.lstrip(b"\r\n")):  # RFC 9112, 2.2
        request, data = read
        found.append(request)
    return found


def _first(data: bytes) -> tuple[Request, bytes] | None:
    head, end, behind = data.partition(b"\r\n\r\n")
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MOST)
    connection.receive_data(_ZEROS.sub(rb"\1", head) + end + behind)
    request: h11.Request | None = None
    body = b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.EndOfMessage):
                break
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                return None
    except h11.RemoteProtocolError:
        return None
    if request is None:
        return None
    return Request(request.method.decode(), request.target.decode(), body), connection.trailing_data[0]


# --- what the data port takes -----------------------------------------------------------------------------------


class _Handler(connection_bench.Handler):
    """Refuses what the real one refuses of any request."""

    def begin(self, asked: exchange.Exchange) -> None:
        refused = headers.objection(asked.head.version, asked.head.headers)
        if refused is None:
            super().begin(asked)
        else:
            asked.respond(refused)


class _NoModels:
    """A registry of models none of which is batched."""

    def get(self, name: models.ModelName) -> None:
        raise errors.Unbatchable(errors.NotBatched.OTHER_PATH)


class DataPort:
    """What a client's bytes are taken for. With `is_batching` predict requests that are no JSON are not told."""

    def __init__(self, is_batching: bool) -> None:
        of_models = routes.Models(cast(model_registry.ModelRegistry, _NoModels()), None)  # type: ignore[arg-type]
        self._bench = connection_bench.Bench(routes.Routes(connection_bench.V1_ROUTE, of_models))
        if not is_batching:
            self._bench.reader = None

    async def take(self, parts: Sequence[bytes]) -> tuple[list[Request], list[connection_bench.Asked]]:
        """The requests that these are, in their order, and those of them that are no plain predict requests."""
        found: list[Request] = []
        bench = self._bench
        bench.handler = _Handler()
        bench.driver.on_submit = lambda call: found.append(Request("POST", call.tag.target, bytes(call.payload.text)))
        client, noted = bench.connect(), 0
        for part in parts:
            if client.is_closing() or client.is_ended or not client.is_reading():
                break
            client.send(part)
            is_busy = True
            while is_busy:
                await connection_bench.settle()
                whole = [asked for asked in bench.asked[noted:] if asked.is_whole]
                is_busy = bool(whole or bench.driver.calls)
                for call in list(bench.driver.calls):
                    bench.driver.answer(call)
                for asked in whole:
                    head = asked.exchange.head
                    found.append(Request(head.method, head.target, asked.content))
                    asked.answer()
                noted += len(whole)
        client.leave()
        return found, bench.asked[:noted]


class Judge:
    """Holds streams against h11."""

    def __init__(self) -> None:
        self._plain, self._batching = DataPort(is_batching=False), DataPort(is_batching=True)

    async def disagreement(self, parts: Sequence[bytes]) -> str:
        """What the data port and h11 make different things of; nothing if they agree, or the data port takes less."""
        whole, others = await self._plain.take(parts)
        known = read_by_h11(b"".join(parts))
        if whole != known[: len(whole)]:
            return f"taken as {whole}\nread by h11 as {known}"
        of_batches, _ = await self._batching.take(parts)
        following = iter(whole)
        for request in of_batches:
            if not any(request in (one, one._replace(body=_instances(one.body))) for one in following):
                return f"where batches are made, taken as {of_batches}\nand else as {whole}"
        return next(filter(None, map(_passed_on_otherwise, others)), "")


def _instances(body: bytes) -> bytes:
    try:
        plain = zlib.decompress(body, zlib.MAX_WBITS | 32) if body[:1] in (b"\x1f", b"\x78") else body
        return bytes(v1.parse_request(plain).text)
    except (errors.CarpoolError, errors.Unbatchable, zlib.error):
        return b""


def _passed_on_otherwise(asked: connection_bench.Asked) -> str:
    """What h11 makes of a request as the predictor gets it, if that is anything but this one request."""
    head = asked.exchange.head
    if head.method == "CONNECT":
        return ""  # never passed on
    written = relay.request_head(head, "127.0.0.1", relay.offered_upgrade(head), None, "predictor")
    body = asked.content
    if head.length is None:
        body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    read = _first(written + body)
    told = Request(head.method, routes.origin_form(head.target), asked.content), b""
    return "" if read == told else f"passed on as {written + body!r}\nread by h11 as {read}\ninstead of {told}"
