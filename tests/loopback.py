"""Ports to listen on, for servers that have to be told theirs before they start."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Mapping

HOST = "127.0.0.1"

# Below those that Linux (32768) and macOS (49152) give to outgoing connections, one of which might be made meanwhile,
# and those of Kubernetes for Services.
_ALL = range(16_384, 30_000)


def share(environment: Mapping[str, str]) -> range:
    """The ports of one of pytest-xdist's workers, all of them where there is none.

    A port is free until the server that was told it listens there. Another worker would be given it meanwhile, and its
    tests would talk to a stranger.
    """
    count = int(environment.get("PYTEST_XDIST_WORKER_COUNT") or 1)
    size = len(_ALL) // count
    number = int(environment.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % count
    return _ALL[number * size : (number + 1) * size]


_PORTS = share(os.environ)


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
