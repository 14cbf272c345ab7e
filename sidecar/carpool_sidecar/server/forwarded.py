"""Telling the predictor who really called: `X-Forwarded-*` and `Forwarded` (RFC 7239).

Pure functions on a header map. What earlier proxies wrote is kept and ours is appended, so that a predictor behind
several proxies can read the whole chain from left (the caller) to right (the nearest proxy).
"""

from __future__ import annotations

import functools
import ipaddress
import re

from multidict import CIMultiDict

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def add_forwarding(headers: CIMultiDict[str], peer: str | None, scheme: str, host: str | None) -> None:
    """Record one hop in `headers`, in place.

    `peer` is the caller's IP address (None on a Unix socket), `scheme` how it reached us, `host` the Host it asked
    for. `X-Forwarded-For` and `Forwarded` grow by one element; `X-Forwarded-Proto` and `X-Forwarded-Host` describe
    the outermost hop, so the first proxy's word stands.
    """
    if peer:
        _append(headers, "X-Forwarded-For", peer)
    headers.setdefault("X-Forwarded-Proto", scheme)
    if host:
        headers.setdefault("X-Forwarded-Host", host)
    _append(headers, "Forwarded", forwarded_element(peer, scheme, host))


def forwarded_element(peer: str | None, scheme: str, host: str | None) -> str:
    """One `forwarded-element` (RFC 7239, section 4): `for`, then `host` if known, then `proto`."""
    pairs = [f"for={_quoted_if_needed(_node(peer))}"]
    if host:
        pairs.append(f"host={_quoted_if_needed(host)}")
    pairs.append(f"proto={_quoted_if_needed(scheme)}")
    return ";".join(pairs)


def _append(headers: CIMultiDict[str], name: str, element: str) -> None:
    # Several lines of a list-valued field mean the same as one line joined by commas (RFC 9110, section 5.3); many
    # readers of X-Forwarded-For look at one line only.
    headers[name] = ", ".join([*headers.getall(name, ()), element])


@functools.lru_cache(maxsize=256)
def _node(peer: str | None) -> str:
    """The node name (RFC 7239, section 6): IPv6 in brackets and without its zone, which means nothing elsewhere."""
    try:
        address = ipaddress.ip_address((peer or "").partition("%")[0])
    except ValueError:
        return "unknown"
    return f"[{address}]" if address.version == 6 else str(address)


def _quoted_if_needed(value: str) -> str:
    if _TOKEN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
