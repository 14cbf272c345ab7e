"""Whether a request to the admin port was made by a page of another site, in the browser of somebody who may reach it.

Whoever forwards the port to their own machine (`kubectl port-forward`) lets every page that they open send requests to
it, and such requests come from inside the pod. Two things give them away. `Origin`, which browsers send with every
request that changes something, has to be the address that the request went to. That address (`Host`) has to be one
that no stranger can have made: pages of a name that an attacker owns may reach 127.0.0.1 by that name (DNS rebinding).
Programs other than browsers send no `Origin` and may change what they may change.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

_PRIVATE_NAME = re.compile(r"localhost|[^.]+|.+\.localhost|.+\.svc|.+\.local|.+\.internal", re.IGNORECASE)
_JSON = "application/json"
_OWN_SITES = ("same-origin", "none")
_FROM_ELSEWHERE = "this request comes from a page of another site"


def objection_to_reading(headers: Mapping[str, str]) -> str | None:
    """Why a page may not be shown anything, or None.

    A name is one that nobody can register: a single word, or one that ends in .localhost, .svc, .local or .internal. No
    browser leaves `Host` out, which HTTP/1.0 allows. A link on another site may be followed: its page sees no answer.
    """
    is_link = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
    if headers.get("Sec-Fetch-Site", "none") not in _OWN_SITES and not is_link:
        return _FROM_ELSEWHERE
    if "Host" not in headers:
        return None
    host = _name_of(headers["Host"])
    if _is_address(host) or _PRIVATE_NAME.fullmatch(host.removesuffix(".")):
        return None
    return (
        f"the host {host[:200]!r} could be anybody's name for this address; ask by IP address, as localhost, or by "
        "a name inside the cluster (NAME.NAMESPACE.svc.cluster.local)"
    )


def objection_to_writing(headers: Mapping[str, str]) -> str | None:
    """Why a browser's request may change nothing, or None: it is the live page's own, or no browser's."""
    origin = headers.get("Origin")
    if origin is None:
        return None if headers.get("Sec-Fetch-Site", "none") in _OWN_SITES else _FROM_ELSEWHERE
    if origin.partition("://")[2].lower() != headers.get("Host", "").lower():
        return f"{_FROM_ELSEWHERE} ({origin[:200]!r})"
    if headers.get("Content-Type", _JSON).partition(";")[0].strip().lower() != _JSON:
        return f"a page has to send {_JSON}"
    return objection_to_reading(headers)


def _name_of(host: str) -> str:
    """Without the port; IPv6 addresses stand in brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
