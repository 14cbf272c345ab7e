"""Which header fields cross the sidecar, and which belong to one connection only (RFC 9110, section 7.6.1)."""

from __future__ import annotations

from aiohttp import HttpVersion11, web
from multidict import CIMultiDict, MultiMapping

from sidecar.http import forwarded

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
    is left out: the sidecar answers it, because a predictor that never does would be waited for in vain.
    """
    headers = end_to_end(request.headers)
    if expects_continue(request):
        headers.popall("Expect")
    forwarded.add_forwarding(headers, request.remote, request.scheme, request.headers.get("Host"))
    return headers


def expects_continue(request: web.BaseRequest) -> bool:
    """Whether the caller waits for `100 Continue` before it sends its body (RFC 9110, section 10.1.1)."""
    return request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11


def requested_upgrade(request: web.BaseRequest) -> str | None:
    """The value of the Upgrade header to forward, or None if `request` is to be answered as plain HTTP.

    An upgrade needs HTTP/1.1 and `Connection: upgrade` (RFC 9110, section 7.8); `h2c` is left out of the offer.
    """
    if "Upgrade" not in request.headers or request.version < HttpVersion11:
        return None
    if "upgrade" not in connection_options(request.headers):
        return None
    offers = (offer.strip() for offer in ",".join(request.headers.getall("Upgrade")).split(","))
    return ", ".join(offer for offer in offers if offer and offer.lower() not in _REFUSED_UPGRADES) or None
