"""What an ingress sends: requests of many callers, whose heads differ, and among them some that are no plain predicts.

One list of requests is sent over and over, in an order that chance made once, so all runs send the same.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from typing import Literal

from benchmarks import bodies

Kind = Literal["repeated", "varied", "mixed"]
"""Predict requests whose heads are equal; whose heads vary; and these with others among them."""

COUNT = 2000
"""Requests of a list."""

MODELS, GZIP, INVALID = 0.05, 0.05, 0.01
"""Shares of requests for GET /v1/models, of bodies in gzip, and of bodies that are no JSON, in a mixed list."""

_AGENTS = ("curl/8.5.0", "python-requests/2.32.3", "Go-http-client/1.1", "okhttp/4.12.0", "Mozilla/5.0 (X11; Linux)")
_SEED = 20261123


def requests(kind: Kind, host: str, path: str, size: int) -> list[bytes]:
    """So many requests, of which those that predict have bodies of `size` bytes."""
    chance = random.Random(_SEED)
    return list(_requests(kind, host, path, bodies.exact(size), chance))


def refused(kind: Kind, count: int) -> float:
    """How many of `count` requests of a list are refused, about."""
    return count * INVALID if kind == "mixed" else 0


def _requests(kind: Kind, host: str, path: str, body: bytes, chance: random.Random) -> Iterator[bytes]:
    repeated = _headers(chance)
    models, zipped = round(COUNT * MODELS), round(COUNT * GZIP)
    invalid = round(COUNT * INVALID)
    odd = ["models"] * models + ["gzip"] * zipped + ["invalid"] * invalid if kind == "mixed" else []
    what = odd + ["predict"] * (COUNT - len(odd))
    chance.shuffle(what)
    for each in what:
        lines = repeated if kind == "repeated" else _headers(chance)
        if each == "models":
            yield _join(["GET /v1/models HTTP/1.1", f"Host: {host}", *lines[:-1]], b"")
        elif each == "gzip":
            yield _post(host, path, [*lines, "Content-Encoding: gzip"], gzip.compress(body, mtime=0))
        else:
            yield _post(host, path, lines, body if each == "predict" else body[:-1])


def _headers(chance: random.Random) -> list[str]:
    """What one caller, and the proxies before the pod, write beside Host and length; the media type is the last."""
    trace, span = chance.randbytes(16).hex(), chance.randbytes(8).hex()
    lines = [
        f"User-Agent: {chance.choice(_AGENTS)}",
        "Accept: */*",
        "Accept-Encoding: gzip, deflate",
        f"Cookie: session={chance.randbytes(12).hex()}",
        f"traceparent: 00-{trace}-{span}-01",
        f"X-Request-ID: {chance.randbytes(16).hex()}",
        f"X-Forwarded-For: 10.{chance.randrange(256)}.{chance.randrange(256)}.{chance.randrange(1, 255)}",
        "X-Forwarded-Proto: https",
    ]
    chance.shuffle(lines)
    return [*lines, "Content-Type: application/json"]


def _post(host: str, path: str, lines: list[str], body: bytes) -> bytes:
    return _join([f"POST {path} HTTP/1.1", f"Host: {host}", *lines, f"Content-Length: {len(body)}"], body)


def _join(lines: list[str], body: bytes) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode() + body
