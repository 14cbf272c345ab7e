"""Who may read what the admin port shows, and who may change something.

Reading is open to all who reach the port, but not to pages of other sites, in the browser of somebody who may reach it.
Whoever forwards the port to their own machine (`kubectl port-forward`) lets every page that they open send requests to
it, and such requests come from inside the pod. Two things give them away. `Origin`, which browsers send with every
request that changes something, has to be the address that the request went to. That address (`Host`) has to be one
that no stranger can have made: pages of a name that an attacker owns may reach 127.0.0.1 by that name (DNS rebinding).
Programs other than browsers send no `Origin`. Changing anything takes the token of --admin-token-file where there is
one, and is for callers inside the pod where there is none, unless the settings say otherwise.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from aiohttp import web

from carpool_sidecar import config

_PRIVATE_NAME = re.compile(r"localhost|[^.]+|.+\.localhost|.+\.svc|.+\.local|.+\.internal", re.IGNORECASE)
_JSON = "application/json"
_OWN_SITES = ("same-origin", "none")
_FROM_ELSEWHERE = "this request comes from a page of another site"
_SCHEME = "Bearer "
_MOST_BYTES = 4096  # of the file with the token
_INSIDE: Final = frozenset(map(ipaddress.ip_address, ("127.0.0.1", "::1", "::ffff:127.0.0.1")))

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def check_may_write(request: web.Request, chosen: config.Settings) -> None:
    """Raises the answer to a request that may change nothing."""
    objection = objection_to_writing(request.headers)
    if objection is not None:
        raise web.HTTPForbidden(text=objection + "\n")
    if objection := _lacks_token(request, chosen):
        raise web.HTTPUnauthorized(text=objection + "\n", headers={"WWW-Authenticate": "Bearer"})
    if not may_write(request, chosen):
        text = "changes are allowed from inside the pod only; --admin-write any lifts that\n"
        raise web.HTTPForbidden(text=text)


def may_write(request: web.Request, chosen: config.Settings) -> bool:
    """Whether a request's sender may change settings."""
    if chosen.admin_token_file:
        return not _lacks_token(request, chosen)
    return chosen.admin_write == "any" or _is_inside(request.remote or "")


def _lacks_token(request: web.Request, chosen: config.Settings) -> str:
    """Why a request lacks the token that changes take; "" if it has it, or if they take none."""
    path = chosen.admin_token_file
    return objection_to_token(request.headers, path) if path else ""


@web.middleware
async def keep_out(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Show nothing at all to pages of other sites."""
    objection = objection_to_reading(request.headers)
    if objection is not None:
        raise web.HTTPForbidden(text=f"{objection}\n")
    return await handler(request)


def objection_to_token(headers: Mapping[str, str], path: str) -> str:
    """Why a request may change nothing, "" if it has the token: `Authorization: Bearer TOKEN` (RFC 6750).

    The file is read each time, as a mounted Secret changes. One that cannot be read, or is empty, lets nobody in.
    """
    try:
        with Path(path).open("rb") as file:
            wanted = file.read(_MOST_BYTES).strip()
    except OSError as error:
        return f"changes take the token in {path}, which cannot be read: {error.strerror}"
    if not wanted:
        return f"changes take the token in {path}, which is empty"
    given = headers.get("Authorization", "")
    token = given.removeprefix(_SCHEME).strip().encode(errors="surrogateescape") if given.startswith(_SCHEME) else b""
    if hmac.compare_digest(token, wanted):
        return ""
    return "changes take the token of --admin-token-file: Authorization: Bearer TOKEN"


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
    if _address(host) is not None or _PRIVATE_NAME.fullmatch(host.removesuffix(".")):
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


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_inside(address: str) -> bool:
    """Whether a caller is in this pod.

    The rest of 127.0.0.0/8 is not: Istio's sidecar delivers what comes from outside from 127.0.0.6.
    """
    return _address(address) in _INSIDE
