"""Where a program listens: at one address, or everywhere, over IPv6 and IPv4 alike.

Pods have addresses of one family or of both, and a server that listens on 0.0.0.0 is not there for callers over IPv6.
An event loop's own servers keep IPv4 out of a socket for IPv6, so the sockets are made here.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Callable

EVERYWHERE = "::"
"""All addresses of the machine, of both families."""

# There is no IPv6: not in the kernel, or not on this machine.
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.EADDRNOTAVAIL)
_MAPPED = "::ffff:"

Make = Callable[[socket.AddressFamily, tuple[str, int], bool], socket.socket]


def bind(host: str, port: int, make: Make | None = None) -> list[socket.socket]:
    """Sockets that wait for `listen`: one for `EVERYWHERE` (or ""), else one for each address that the host has.

    Where there is no IPv6, everywhere means all addresses of IPv4. Raises OSError, its text with the address. `make`
    makes a bound socket of a family; its third argument: whether one for IPv6 takes IPv4 as well.
    """
    make = make or _bound
    if _is_everywhere(host):
        try:
            return [make(socket.AF_INET6, (EVERYWHERE, port), True)]
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
        return [make(socket.AF_INET, ("0.0.0.0", port), False)]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OSError(error.errno, f"{host} port {port}: {str(error.strerror).lower()}") from None
    except UnicodeError:
        raise OSError(errno.EINVAL, f"{host} port {port}: not an address, and no name that can have one") from None
    made: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            made.append(make(family, address, False))  # type: ignore[arg-type]
    except OSError:
        for each in made:
            each.close()
        raise
    return made


def _is_everywhere(host: str) -> bool:
    """Also for other ways to write the address, as `::0`."""
    try:
        return not host or ipaddress.IPv6Address(host) == ipaddress.IPv6Address(EVERYWHERE)
    except ValueError:
        return False


def _bound(family: socket.AddressFamily, address: tuple[str, int], both: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
        made.bind(address)
    except OSError as error:
        made.close()
        reason = os.strerror(error.errno or 0).lower()
        raise OSError(error.errno, f"{address[0]} port {address[1]}: {reason}") from None
    return made


def plain(address: str) -> str:
    """A caller's address as the caller knows it: IPv4's, where a socket for both families has it as one of IPv6."""
    return address.removeprefix(_MAPPED) if "." in address else address
