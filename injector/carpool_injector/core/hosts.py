"""Hosts as settings and probes name them: who reaches what listens there, and whether the pod itself is meant. Pure."""

from __future__ import annotations

import re
from typing import Literal

from carpool_injector.core import command_lines

Kind = Literal["any", "loopback", "one", "unknown"]
"""All addresses of the pod; its own containers only; one address or name; not known, as a variable is not."""

_LOOPBACK = re.compile(
    r"localhost(\.localdomain)?\.?|ip6-(localhost|loopback)|(::ffff:)?127(\.[0-9]{1,3}){1,3}|(0{0,4}:){2,7}0{0,3}1",
    re.ASCII,
)
_ANY = re.compile(r"|\*|\+|0|0\.0\.0\.0|(0{0,4}:){2,7}0{0,4}", re.ASCII)


def kind(host: str) -> Kind:
    """Who reaches what listens on a host."""
    text = host.strip("[]'\"").lower()
    if _ANY.fullmatch(text):
        return "any"
    if _LOOPBACK.fullmatch(text):
        return "loopback"
    return "unknown" if "$" in text else "one"


def is_own(host: str | None) -> bool:
    """Whether a probe or hook that names this host asks the pod itself; without one it does."""
    return kind(host or "") in ("any", "loopback")


def host_of(address: str) -> str:
    """The host of an address, with or without a port; IPv6 may stand without brackets."""
    return split(address)[0]


def split(address: str) -> tuple[str, int | None]:
    """The host of an address, and its port if it names one; of a URL as well, whatever its path."""
    scheme, _, rest = address.rpartition("://")
    text = rest.partition("/")[0] if scheme else rest.rstrip("/")
    host, colon, port = text.rpartition(":")
    is_split = colon and port.isdecimal() and (host.startswith("[") or ":" not in host or kind(host) != "one")
    return (host, command_lines.whole(port)) if is_split else (text, None)
