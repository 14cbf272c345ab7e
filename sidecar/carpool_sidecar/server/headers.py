"""What the heads of requests may say, and which of it crosses the sidecar.

Requests that llhttp lets pass and Go's net/http server refuses are refused here: whoever stands before or
behind the sidecar may read them in another way than it does, and such differences are what request smuggling is made
of. Fields that belong to one connection do not cross (RFC 9110, section 7.6.1). The predictor is told who really called
by `X-Forwarded-*` and `Forwarded` (RFC 7239): what earlier proxies wrote is kept and ours is appended, so that a
predictor behind several proxies can read the whole chain from left (the caller) to right (the nearest proxy).
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from aiohttp import hdrs
from multidict import CIMultiDict, MultiMapping

from carpool.program import addresses
from carpool_sidecar import caches, errors
from carpool_sidecar.protocols import hop_by_hop
from carpool_sidecar.server import responses

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# RFC 3986, 3.2.2, for a host with its port, as Go has it: no check of the structure, but no other bytes.
_HOST = re.compile(r"[A-Za-z0-9!$%&'()*+,\-.:;=\[\]_~]*")
_NO_VERSION = (0, 9)
_SERVED = ((1, 0), (1, 1))
# Of a Content-Length. Go's server refuses what is not below 2 ** 63.
_MOST_DIGITS = 18
# Upgrading to HTTP/2 in the clear is obsolete (RFC 9113, section 3.1), and would hide requests inside a tunnel.
_REFUSED_UPGRADES = frozenset({"h2c"})
_CONTINUE = "100-continue"


def end_to_end(headers: MultiMapping[str]) -> CIMultiDict[str]:
    """A copy of `headers` without the hop-by-hop ones; order, spelling and duplicates are kept.

    Never returns Content-Length when `headers` has Transfer-Encoding (RFC 9112, section 6.1: the latter wins).
    """
    dropped = hop_by_hop.FIELDS
    if "Connection" in headers:
        dropped = hop_by_hop.fields(headers.getall("Connection"))
    if "Transfer-Encoding" in headers:
        dropped = dropped | {"content-length"}
    return CIMultiDict([item for item in headers.items() if item[0].lower() not in dropped])


def connection_options(headers: MultiMapping[str]) -> frozenset[str]:
    """What the Connection header names, in lower case."""
    return hop_by_hop.options(headers.getall("Connection", ()))


def outgoing_headers(headers: MultiMapping[str], peer: str | None, host: str | None) -> CIMultiDict[str]:
    """The end-to-end headers of a request of `peer`, an IP address, that asks for `host`; with this hop recorded.

    `Expect: 100-continue` is left out: the sidecar answers it, because a predictor that never does would be waited for
    in vain.
    """
    outgoing = end_to_end(headers)
    if expects_continue(headers):
        others = [each for each in hop_by_hop.members(outgoing.popall("Expect", ())) if each.lower() != _CONTINUE]
        if others:
            outgoing["Expect"] = ", ".join(others)
    add_forwarding(outgoing, peer, "http", host)
    return outgoing


def expects_continue(headers: MultiMapping[str]) -> bool:
    """Whether a caller of HTTP/1.1 waits for `100 Continue` before it sends its body (RFC 9110, section 10.1.1)."""
    return "Expect" in headers and any(
        each.lower() == _CONTINUE for each in hop_by_hop.members(headers.getall("Expect"))
    )


def is_utf8(value: str) -> bool:
    """Whether a header value can be forwarded as it is.

    aiohttp reads a byte that is not UTF-8 as a lone surrogate (PEP 383) and leaves it out when it writes.
    """
    return _SURROGATE.search(value) is None


def has_control(value: str) -> bool:
    """Whether there is a character in it that no field value may have (RFC 9110, section 5.5)."""
    return _CONTROL.search(value) is not None


def check_utf8(name: str, value: str) -> None:
    """Raises `errors.BadHeader` for a header value that cannot be forwarded as it is."""
    if not is_utf8(value):
        raise errors.BadHeader(f"the value of the header {name} is not valid UTF-8")


def requested_upgrade(headers: MultiMapping[str]) -> str | None:
    """The value of the Upgrade header to forward, or None if a request of HTTP/1.1 is to be answered as plain HTTP.

    An upgrade needs `Connection: upgrade` (RFC 9110, section 7.8); `h2c` is left out of the offer.
    """
    if "Upgrade" not in headers or "upgrade" not in connection_options(headers):
        return None
    offers = hop_by_hop.members(headers.getall("Upgrade"))
    return ", ".join(offer for offer in offers if offer.lower() not in _REFUSED_UPGRADES) or None


def accepts_upgrade(offered: str, headers: MultiMapping[str]) -> bool:
    """Whether an answer switches to protocols that were `offered`, and no others (RFC 9110, section 7.8)."""
    offers = {offer.lower() for offer in hop_by_hop.members([offered])}
    return offers.issuperset(protocol.lower() for protocol in hop_by_hop.members(headers.getall("Upgrade", ())))


def add_forwarding(headers: CIMultiDict[str], peer: str | None, scheme: str, host: str | None) -> None:
    """Record one hop in `headers`, in place.

    `peer` is the caller's IP address (None on a Unix socket), `scheme` how it reached us, `host` the Host it asked
    for. `X-Forwarded-For` and `Forwarded` grow by one element; `X-Forwarded-Proto` and `X-Forwarded-Host` describe
    the outermost hop, so the first proxy's word stands.
    """
    if peer:
        peer = addresses.plain(peer)
        _append(headers, "X-Forwarded-For", peer)
    headers.setdefault("X-Forwarded-Proto", scheme)
    if host:
        headers.setdefault("X-Forwarded-Host", host)
    _append(headers, "Forwarded", forwarded_element(peer, scheme, host))


def forwarded_element(peer: str | None, scheme: str, host: str | None) -> str:
    """One `forwarded-element` (RFC 7239, section 4): `for`, then `host` if known, then `proto`."""
    pairs = [f"for={_quoted_if_needed(_nodes[peer or ''])}"]
    if host:
        pairs.append(f"host={_quoted_if_needed(host)}")
    pairs.append(f"proto={_quoted_if_needed(scheme)}")
    return ";".join(pairs)


def _append(headers: CIMultiDict[str], name: str, element: str) -> None:
    # Several lines of a list-valued field mean the same as one line joined by commas (RFC 9110, section 5.3); many
    # readers of X-Forwarded-For look at one line only.
    headers[name] = ", ".join([*headers.getall(name, ()), element])


def _node(peer: str) -> str:
    """The node name (RFC 7239, section 6): IPv6 in brackets and without its zone, which means nothing elsewhere."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return "unknown"
    return f"[{address}]" if address.version == 6 else str(address)


_nodes: Final = caches.Cache("forwarding", 64 * 1024, make=_node)


def _quoted_if_needed(value: str) -> str:
    if _TOKEN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def is_host(value: str) -> bool:
    """Whether this may be the value of a Host header; an empty one may."""
    return _HOST.fullmatch(value) is not None


def objection(version: tuple[int, int], headers: MultiMapping[str]) -> responses.Response | None:
    """Why a request is not served, or None: 400, 501 or 505. The connection must not be used again.

    A request line without a version counts as HTTP/0.9.
    """
    if version == _NO_VERSION:
        return responses.refusal(400, "the request line has no version, or HTTP/0.9; allowed: HTTP/1.1 and HTTP/1.0")
    if version not in _SERVED:
        return responses.refusal(
            505, f"HTTP/{version[0]}.{version[1]} is not supported; allowed: HTTP/1.1 and HTTP/1.0"
        )
    codings = headers.getall(hdrs.TRANSFER_ENCODING, ())
    if codings and [coding.strip().lower() for coding in codings] != ["chunked"]:
        return responses.refusal(501, "unsupported Transfer-Encoding; allowed: chunked")
    length = headers.get(hdrs.CONTENT_LENGTH, "").strip(" \t").lstrip("0")
    if len(length) > _MOST_DIGITS:
        return responses.refusal(400, f"Content-Length has more than {_MOST_DIGITS} digits")
    if not all(is_host(value) for value in headers.getall(hdrs.HOST, ())):
        return responses.refusal(400, "the Host header is malformed")
    return None
