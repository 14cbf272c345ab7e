"""Undoing Content-Encoding, with a cap on what may come out.

A few kilobytes can decode to gigabytes, so a coding is undone in steps whose output is bounded, and the sum is checked
after each step. Between steps others have their turn (`carpool_sidecar.turns`), as there are no threads on the data
path. RFC 9110, 8.4.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Generator, Iterator

from carpool_sidecar import errors
from carpool_sidecar.protocols import steps

MAX_MEMBERS = 2000  # of a gzip body: block-wise writers make one for each 64 KiB, 1028 in 64 MiB
_SMALL = 64 * 1024  # bytes, decoded in a fraction of a millisecond
_OUTPUT_STEP = 256 * 1024
_INPUT_STEP = 64 * 1024
_FIRST_INPUT_STEP = 512  # a member's; the next are twice as large, so that what follows a small one is hardly copied
_TURN = 256 * 1024  # bytes of work between two turns of the event loop: half a millisecond, or one
_STEP_COST = _INPUT_STEP  # bytes of work that a step counts at least: it may take in so much and give nothing

_MOST_RATIO = 1032  # of what deflate makes of a byte

_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


ALLOWED = "gzip, deflate, identity"
_KNOWN = ("gzip", "x-gzip", "deflate")


class _Corrupt(Exception):
    """The text says what is wrong with the coded data."""


def decoding(
    body: bytes, content_encoding: str, limit: int, reserve: Callable[[int], object] | None = None
) -> steps.Steps[bytes]:
    """Undo `content_encoding`, the value of the header: at most one coding, `identity` not counted.

    gzip (also `x-gzip`; several members) and deflate (with the zlib wrapper or, as some clients send it, without).
    Raises `errors.UnsupportedEncoding` for another coding, or several, `errors.BadRequest` for data that is corrupt,
    cut off, followed by something else or in more than `MAX_MEMBERS` members, and `errors.PayloadTooLarge` as soon as
    the result has more than `limit` bytes. `reserve` is told the number of bytes before they are kept, and may raise to
    refuse.
    """
    if len(body) > limit:
        raise too_large(limit)
    coding = coding_of(content_encoding)
    if coding is None:
        return body
    try:
        foretold = 0 if coding == "deflate" else _foretold(body, limit)
        return (yield from _collect(_inflate_all(body, coding), limit, reserve, foretold))
    except (_Corrupt, zlib.error) as error:
        raise errors.BadRequest(f"the body is not valid {coding} data: {error}") from None


def decode_small(body: bytes, coding: str) -> bytes | None:
    """Undo one coding of a small body at once, if it is small then, too.

    None if it is not, or if the data is not one whole stream: `decoding` tells what there is to say of those.
    """
    if len(body) > _SMALL:
        return None
    stream = zlib.decompressobj(_wrapper(body) if coding.lower() == "deflate" else _GZIP)
    try:
        decoded = stream.decompress(body, _SMALL + 1)
    except zlib.error:
        return None
    return decoded if stream.eof and not stream.unused_data and len(decoded) <= _SMALL else None


def too_large(limit: int) -> errors.PayloadTooLarge:
    """The refusal of a body, or decoded body, of more than `limit` bytes."""
    return errors.PayloadTooLarge(f"the body is larger than the limit of {limit} bytes")


def coding_of(content_encoding: str) -> str | None:
    """The one coding that the value of the header names, if any; raises `errors.UnsupportedEncoding`."""
    names = [name.strip().lower() for name in content_encoding.split(",")]
    codings = [name for name in names if name not in ("", "identity")]
    unknown = next((name for name in codings if name not in _KNOWN), None)
    if unknown is not None:
        raise errors.UnsupportedEncoding(f"unsupported Content-Encoding {unknown[:40]!r}; allowed: {ALLOWED}")
    if len(codings) > 1:
        raise errors.UnsupportedEncoding(f"several Content-Encodings; allowed: one of {ALLOWED}")
    return codings[0] if codings else None


def _foretold(body: bytes, limit: int) -> int:
    """How many bytes the last member of a gzip body says it has (RFC 1952, 2.3.1), if that can be and is worth knowing.

    Zero if not: deflate makes 1032 bytes of one at most.
    """
    size = int.from_bytes(body[-4:], "little")
    return size if _OUTPUT_STEP < size <= min(limit, _MOST_RATIO * len(body)) else 0


def _collect(
    parts: Iterator[bytes], limit: int, reserve: Callable[[int], object] | None, foretold: int
) -> steps.Steps[bytes]:
    kept = foretold
    if reserve is not None and kept:
        reserve(kept)
    # Unlike a list of parts, its value is had without a second copy. Where it has to grow, all that is there may be
    # copied, which takes 15 ms at 32 MB, so it is as large as it will be, if that is known.
    decoded = io.BytesIO(bytes(kept))
    size = work = 0
    for part in parts:
        size += len(part)
        if size > limit:
            raise too_large(limit)
        if size > kept:
            if reserve is not None:
                reserve(size - kept)
            kept = size
        decoded.write(part)
        work += max(len(part), _STEP_COST)
        if work >= _TURN:
            work = 0
            yield
    decoded.truncate()
    return decoded.getvalue()


def _inflate_all(body: bytes, coding: str) -> Iterator[bytes]:
    """All streams of a coded body: one or more members of gzip (RFC 1952), or one of deflate.

    An empty member costs as much as kilobytes of data, and one body can hold millions of them.
    """
    is_gzip = coding != "deflate"
    wrapper, most = (_GZIP, MAX_MEMBERS) if is_gzip else (_wrapper(body), 1)
    end = 0
    for _ in range(most):
        end = yield from _inflate(body, end, wrapper)
        if end >= len(body):
            return
    raise _Corrupt(f"it has more than {MAX_MEMBERS} members" if is_gzip else "something follows its end")


def _wrapper(body: bytes) -> int:
    """What zlib has to be told of data that is said to be deflate (RFC 1950, or bare RFC 1951).

    The low four bits of a zlib header are 8. A bare stream that began so would open with a stored block whose
    padding is not zero, which no compressor writes.
    """
    return _ZLIB if not body or body[0] & 0x0F == 8 else _RAW


def _inflate(body: bytes, start: int, window_bits: int) -> Generator[bytes, None, int]:
    """Decode one stream from `start`; returns where it ended."""
    stream = zlib.decompressobj(window_bits)
    view, at, step = memoryview(body), start, _FIRST_INPUT_STEP
    while not stream.eof:
        given: bytes | memoryview = stream.unconsumed_tail
        if not given:
            given = view[at : at + step]
            at += len(given)
            step = min(2 * step, _INPUT_STEP)
        part = stream.decompress(given, _OUTPUT_STEP)
        if not part and not given and not stream.eof:
            raise _Corrupt("it is cut off")
        yield part
    return at - len(stream.unused_data)
