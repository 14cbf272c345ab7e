"""Requests that aiohttp's parser lets pass and Go's net/http server refuses.

Whoever stands before or behind the sidecar may read them in another way than it does, and such differences are what
request smuggling is made of.
"""

from __future__ import annotations

import re

from aiohttp import HttpVersion, HttpVersion10, HttpVersion11, hdrs
from multidict import MultiMapping

from carpool_sidecar.server import dialects

# RFC 3986, 3.2.2, for a host with its port, as Go has it: no check of the structure, but no other bytes.
_HOST = re.compile(r"[A-Za-z0-9!$%&'()*+,\-.:;=\[\]_~]*")
_NO_VERSION = HttpVersion(0, 9)


def is_host(value: str) -> bool:
    """Whether this may be the value of a Host header; an empty one may."""
    return _HOST.fullmatch(value) is not None


def objection(version: HttpVersion, headers: MultiMapping[str]) -> dialects.Answer | None:
    """Why a request is not served, or None: 400, 501 or 505. The connection must not be used again.

    A request line without a version counts as HTTP/0.9.
    """
    if version == _NO_VERSION:
        return _refusal(400, "the request line has no version, or HTTP/0.9; allowed: HTTP/1.1 and HTTP/1.0")
    if version not in (HttpVersion10, HttpVersion11):
        return _refusal(505, f"HTTP/{version.major}.{version.minor} is not supported; allowed: HTTP/1.1 and HTTP/1.0")
    codings = headers.getall(hdrs.TRANSFER_ENCODING, ())
    if codings and [coding.strip().lower() for coding in codings] != ["chunked"]:
        return _refusal(501, "unsupported Transfer-Encoding; allowed: chunked")
    if not all(is_host(value) for value in headers.getall(hdrs.HOST, ())):
        return _refusal(400, "the Host header is malformed")
    return None


def _refusal(status: int, words: str) -> dialects.Answer:
    body = b'{"error":"%b"}' % words.encode()
    return dialects.Answer(status, (("Content-Type", "application/json"),), body, close=True)
