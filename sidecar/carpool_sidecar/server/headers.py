"""Which header fields cross the sidecar, and which belong to one connection only (RFC 9110, section 7.6.1)."""

from __future__ import annotations

from aiohttp import HttpVersion11, web
from multidict import CIMultiDict, MultiMapping

from carpool_sidecar import errors
from carpool_sidecar.server import forwarded

# The list of Go's httputil.ReverseProxy. TE goes too, although `TE: trailers` is harmless: trailers are not relayed.
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# A Connection header must not name fields meant for the recipient (RFC 9110, section 7.6.1). Dropping these two on a
# caller's word would change where the message goes or where its body ends.
_NEVER_HOP_BY_HOP = frozenset({"content-length", "host"})
# Upgrading to HTTP/2 in the clear is obsolete (RFC 9113, section 3.1), and would hide requests inside a tunnel.
_REFUSED_UPGRADES = frozenset({"h2c"})


def end_to_end(headers: MultiMapping[str]) -> CIMultiDict[str]:
    """A copy of `headers` without the hop-by-hop ones; order, spelling and duplicates are kept.

    Never returns Content-Length when `headers` has Transfer-Encoding (RFC 9112, section 6.1: the latter wins).
    """
    dropped = HOP_BY_HOP
    if "Connection" in headers:
        dropped = dropped | (connection_options(headers) - _NEVER_HOP_BY_HOP)
    if "Transfer-Encoding" in headers:
        dropped = dropped | {"content-length"}
    return CIMultiDict([item for item in headers.items() if item[0].lower() not in dropped])


def connection_options(headers: MultiMapping[str]) -> frozenset[str]:
    """What the Connection header names, in lower case."""
    values = ",".join(headers.getall("Connection", ()))
    return frozenset(option.strip().lower() for option in values.split(",") if option.strip())


def outgoing_headers(request: web.BaseRequest) -> CIMultiDict[str]:
    """The end-to-end headers of `request`, with the hop through this sidecar recorded.

    Content-Length is kept where the caller sent one; without it the body is chunked or empty. `Expect: 100-continue`
    is left out: the sidecar answers it, because a predictor that never does would be waited for in vain. Raises
    `errors.BadRequest` if a value is not UTF-8.
    """
    headers = end_to_end(request.headers)
    for name, value in headers.items():
        check_utf8(name, value)
    if expects_continue(request):
        headers.popall("Expect")
    forwarded.add_forwarding(headers, request.remote, request.scheme, request.headers.get("Host"))
    return headers


def expects_continue(request: web.BaseRequest) -> bool:
    """Whether the caller waits for `100 Continue` before it sends its body (RFC 9110, section 10.1.1)."""
    return request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11


def send_continue(request: web.BaseRequest) -> None:
    """Let the caller go on with its body; not through the response writer, whose count of bytes is the answer's."""
    if request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def is_utf8(value: str) -> bool:
    """Whether a header value can be forwarded as it is.

    aiohttp reads a byte that is not UTF-8 as a lone surrogate (PEP 383) and leaves it out when it writes.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_utf8(name: str, value: str) -> None:
    """Raises `errors.BadRequest` for a header value that cannot be forwarded as it is."""
    if not is_utf8(value):
        raise errors.BadRequest(f"the value of the header {name} is not valid UTF-8")


def requested_upgrade(request: web.BaseRequest) -> str | None:
    """The value of the Upgrade header to forward, or None if `request` is to be answered as plain HTTP.

    An upgrade needs HTTP/1.1 and `Connection: upgrade` (RFC 9110, section 7.8); `h2c` is left out of the offer.
    Raises `errors.BadRequest` if the offer is not UTF-8.
    """
    if "Upgrade" not in request.headers or request.version < HttpVersion11:
        return None
    if "upgrade" not in connection_options(request.headers):
        return None
    value = ",".join(request.headers.getall("Upgrade"))
    check_utf8("Upgrade", value)
    offers = (offer.strip() for offer in value.split(","))
    return ", ".join(offer for offer in offers if offer and offer.lower() not in _REFUSED_UPGRADES) or None
