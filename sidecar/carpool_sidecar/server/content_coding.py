"""Undoing Content-Encoding, with a cap on what may come out.

A few kilobytes can decode to gigabytes, so every coding is undone in steps whose output is bounded, and the sum is
checked after each step. Between steps the event loop gets its turn, as there are no threads on the data path.
Codings: RFC 9110, 8.4; zstd: RFC 8878 and RFC 9659.
"""

from __future__ import annotations

import asyncio
import io
import re
import zlib
from collections.abc import Callable, Generator, Iterator

import zstandard

from carpool_sidecar import errors

MAX_CODINGS = 2
MAX_PARTS = 2000  # gzip members or zstd frames: block-wise writers make one for each 64 KiB, 1028 in 64 MiB
_OUTPUT_STEP = 256 * 1024
_INPUT_STEP = 64 * 1024
_FIRST_INPUT_STEP = 512  # a part's; the next are twice as large, so that what follows a small one is hardly copied
_TURN = 1024 * 1024  # bytes of work between two turns of the event loop: 1 to 10 ms
_STEP_COST = _INPUT_STEP  # bytes of work that a step counts at least: it may take in so much and give nothing

_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_ZSTD_WINDOW = 8 * 1024 * 1024  # RFC 9659: the most a receiver of HTTP has to grant
_ZSTD_BLOCK = 128 * 1024  # RFC 8878, 3.1.1.2.4: the most a block may decode to
_ZSTD_MAX_HEADER = 18
_RUN_LENGTH = 1  # the kind of block that has one byte of content, whatever its size says
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18....", re.DOTALL)
_TRUNCATED = "it is cut off"


class _Corrupt(Exception):
    """The text says what is wrong with the coded data."""


async def decode(
    body: bytes, content_encoding: str, limit: int, reserve: Callable[[int], object] | None = None
) -> bytes:
    """Undo `content_encoding`, the value of the header, last coding first; at most two, `identity` not counted.

    gzip (also `x-gzip`; several members), deflate (with the zlib wrapper or, as some clients send it, without), zstd
    (several frames). Raises `errors.UnsupportedEncoding` for other codings, `errors.BadRequest` for data that is
    corrupt, cut off, followed by something else or in more than `MAX_PARTS` members or frames, and
    `errors.PayloadTooLarge` as soon as any coding's result has more than `limit` bytes. `reserve` is told the number
    of bytes before they are kept, and may raise to refuse. Lets the event loop run after every megabyte.
    """
    if len(body) > limit:
        raise too_large(limit)
    for coding in reversed(_codings(content_encoding)):
        try:
            body = await _collect(_DECODERS[coding](body), limit, reserve)
        except (_Corrupt, zlib.error, zstandard.ZstdError) as error:
            raise errors.BadRequest(f"the body is not valid {coding} data: {error}") from None
    return body


def can_undo(content_encoding: str) -> bool:
    """Whether `decode` knows all codings in the value of the header."""
    try:
        _codings(content_encoding)
    except errors.UnsupportedEncoding:
        return False
    return True


def too_large(limit: int) -> errors.PayloadTooLarge:
    """The refusal of a body, or decoded body, of more than `limit` bytes."""
    return errors.PayloadTooLarge(f"the body is larger than the limit of {limit} bytes")


def _codings(content_encoding: str) -> list[str]:
    names = [name.strip().lower() for name in content_encoding.split(",")]
    codings = [name for name in names if name not in ("", "identity")]
    unknown = next((name for name in codings if name not in _DECODERS), None)
    if unknown is not None:
        raise errors.UnsupportedEncoding(
            f"unsupported Content-Encoding {unknown[:40]!r}; allowed: gzip, deflate, zstd, identity"
        )
    if len(codings) > MAX_CODINGS:
        raise errors.UnsupportedEncoding(f"at most {MAX_CODINGS} Content-Encodings can be undone")
    return codings


async def _collect(steps: Iterator[bytes], limit: int, reserve: Callable[[int], object] | None) -> bytes:
    decoded = io.BytesIO()  # unlike a list of parts, its value is had without a second copy
    size = work = 0
    for part in steps:
        size += len(part)
        if size > limit:
            raise too_large(limit)
        if reserve is not None:
            reserve(len(part))
        decoded.write(part)
        work += max(len(part), _STEP_COST)
        if work >= _TURN:
            work = 0
            await asyncio.sleep(0)
    return decoded.getvalue()


def _gzip(body: bytes) -> Iterator[bytes]:
    """RFC 1952: one or more members."""
    yield from _each_part(body, lambda start: _inflate(body, start, _GZIP))


def _deflate(body: bytes) -> Iterator[bytes]:
    """RFC 1950, or bare RFC 1951.

    The low four bits of a zlib header are 8. A bare stream that began so would open with a stored block whose
    padding is not zero, which no compressor writes.
    """
    has_wrapper = not body or body[0] & 0x0F == 8
    end = yield from _inflate(body, 0, _ZLIB if has_wrapper else _RAW)
    if end < len(body):
        raise _Corrupt("something follows its end")


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
            raise _Corrupt(_TRUNCATED)
        yield part
    return at - len(stream.unused_data)


def _zstd(body: bytes) -> Iterator[bytes]:
    """RFC 8878: one or more frames."""
    context = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    yield from _each_part(body, lambda start: _zstd_frame(context, body, start))


def _zstd_frame(context: zstandard.ZstdDecompressor, body: bytes, start: int) -> Generator[bytes, None, int]:
    """Decode one frame from `start` block by block; returns where it ended.

    The library can bound its output only where it does not tell a cut-off frame from a complete one. Its blocks say
    both, how much can come out and whether they are the last, so this follows their headers (RFC 8878, 3.1.1).
    """
    if _SKIPPABLE.match(body, start):
        yield b""  # a step, however little it does: a body can consist of millions of these
        return _within(body, start + 8 + int.from_bytes(body[start + 4 : start + 8], "little"))
    frame = body[start : start + _ZSTD_MAX_HEADER]
    header = zstandard.get_frame_parameters(frame)
    stream, view = context.decompressobj(), memoryview(body)
    at, is_last = start + zstandard.frame_header_size(frame), False
    stream.decompress(view[start:at])
    while not is_last:
        block = int.from_bytes(view[at : _within(body, at + 3)], "little")
        is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if size > _ZSTD_BLOCK:
            raise _Corrupt("a block is too large")
        end = _within(body, at + 3 + (1 if kind == _RUN_LENGTH else size))
        yield stream.decompress(view[at:end])
        at = end
    if header.has_checksum:
        end = _within(body, at + 4)
        yield stream.decompress(view[at:end])
        at = end
    return at


def _each_part(body: bytes, decode_from: Callable[[int], Generator[bytes, None, int]]) -> Iterator[bytes]:
    """All parts of a body, one behind the other; a body has at least one.

    An empty part costs as much as kilobytes of data, and a few kilobytes can hold millions of them in a coding.
    """
    rest = yield from decode_from(0)
    for _ in range(MAX_PARTS - 1):
        if rest >= len(body):
            return
        rest = yield from decode_from(rest)
    if rest < len(body):
        raise _Corrupt(f"it has more than {MAX_PARTS} parts")


def _within(body: bytes, end: int) -> int:
    if end > len(body):
        raise _Corrupt(_TRUNCATED)
    return end


_DECODERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
}
