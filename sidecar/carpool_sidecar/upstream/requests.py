"""Requests as they go to the predictor: heads (RFC 9112, sections 3 and 5), mostly made once, and few writes.

Nothing that callers send can end a line here: whoever could would write requests of their own to the predictor.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Iterator

from carpool_sidecar import errors
from carpool_sidecar.batching import calls

# RFC 9112, section 3.2.1, read generously: any byte that neither ends a line nor parts the line's words.
_TARGET = re.compile(r"/[^\x00-\x20\x7f]*")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")  # RFC 9110, section 5.5
# These say where a message ends and who it is for, which is decided here alone.
_OWN = frozenset({"host", "connection", "content-length", "transfer-encoding"})

_USUAL = {
    "accept": "Accept: application/json",
    "accept-encoding": "Accept-Encoding: identity",
    "content-type": "Content-Type: application/json",
}

# Up to this size one copy costs less than handing over the pieces; so it does where they are smaller on average.
_WORTH_NO_COPY = 64 * 1024
_WORTH_A_PIECE = 2 * 1024


LARGE = 2 * 1024 * 1024
"""From so many bytes on a request goes in slices: the kernel takes some four megabytes in a single call."""
_SLICE = 512 * 1024


class HeadWriter:
    """Writes the heads of POST requests to one predictor, `host` being what its Host header says."""

    # State: what the latest head was made of, and all of it but the length.
    def __init__(self, host: str) -> None:
        self._host = host
        self._target: str | None = None
        self._headers: calls.Headers = ()
        self._constant = b""

    def write(self, target: str, headers: calls.Headers, length: int) -> bytes:
        """A request's head, for a body of `length` bytes and with `headers` after, or instead of, the usual ones.

        Raises `errors.BadRequest` for a target, name or value that HTTP does not allow, and for headers that frame or
        address a message.
        """
        if target != self._target or headers != self._headers:
            self._constant = self._compose(target, headers)
            self._target, self._headers = target, headers
        return b"%b%d\r\n\r\n" % (self._constant, length)

    def _compose(self, target: str, headers: calls.Headers) -> bytes:
        if not _TARGET.fullmatch(target):
            raise errors.BadRequest("the request target has characters that HTTP does not allow there")
        named = {name.lower() for name, _ in headers}
        lines = [f"POST {target} HTTP/1.1", f"Host: {self._host}"]
        lines += [line for name, line in _USUAL.items() if name not in named]
        lines += [_line(name, value) for name, value in headers]
        lines.append("Content-Length: ")
        try:
            # What was read as no UTF-8 (PEP 383) becomes the bytes it was.
            return "\r\n".join(lines).encode(errors="surrogateescape")
        except UnicodeEncodeError:
            raise errors.BadRequest("the request's head cannot be written as UTF-8") from None


def _line(name: str, value: str) -> str:
    _check_name(name)
    if not value.isprintable() and not _VALUE.fullmatch(value):
        raise errors.BadRequest(f"the value of the header {name} has characters that HTTP does not allow")
    return f"{name}: {value}"


@functools.lru_cache(maxsize=64)
def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name.lower() in _OWN:
        raise errors.BadRequest(f"{name!r} is not a header that a batch can carry")


def slices(head: bytes, pieces: calls.Pieces) -> Iterator[bytes | memoryview]:
    """A head and a body, to be written one after the other; nothing is copied but pieces that are small on average."""
    yield head
    size = sum(map(len, pieces))
    for piece in (b"".join(pieces),) if size < _WORTH_A_PIECE * len(pieces) else pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _SLICE):
            yield view[start : start + _SLICE]


def write(transport: asyncio.WriteTransport, head: bytes, pieces: calls.Pieces, length: int) -> None:
    """Write a head and a body of `length` bytes in all.

    Large pieces are handed over as they are: uvloop keeps references to them until the predictor has taken them
    (`writev`), so that one who reads slowly costs no memory beyond the body's own.
    """
    if length < _WORTH_NO_COPY:
        transport.write(b"".join((head, *pieces)))
    elif length < _WORTH_A_PIECE * len(pieces):
        transport.writelines((head, b"".join(pieces)))
    else:
        transport.writelines((head, *pieces))
