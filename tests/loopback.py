"""Ports to listen on, for servers that have to be told theirs before they start."""

from __future__ import annotations

import contextlib
import random
import socket

HOST = "127.0.0.1"

# Below those that Linux (32768) and macOS (49152) give to outgoing connections, one of which might be made meanwhile,
# and those of Kubernetes for Services.
_PORTS = range(16_384, 30_000)


def free_ports(count: int) -> list[int]:
    """Different loopback ports that nobody listens on right now."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port = random.choice(_PORTS)
            attempt = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                attempt.bind((HOST, port))
                found.append(port)
    return found


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]


def has_ipv6() -> bool:
    """Whether this machine has IPv6's loopback address."""
    try:
        with socket.socket(socket.AF_INET6) as attempt:
            attempt.bind(("::1", 0))
    except OSError:
        return False
    return True
