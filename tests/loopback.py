"""Ports to listen on, for servers that have to be told theirs before they start."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import itertools
import os
import random
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

HOST = "127.0.0.1"

# Below those that Linux (32768) and macOS (49152) give to outgoing connections, one of which might be made meanwhile,
# and those of Kubernetes for Services.
ALL = range(16_384, 30_000)
_BLOCKS = 16
_SIZE = len(ALL) // _BLOCKS


class Lease:
    """Ports that no other process has, until this one ends or closes the lease.

    A port is free until the server that was told it listens there. Another process would be given it meanwhile, and
    its tests would talk to a stranger. Where all are leased, `ports` are those of everybody.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.ports = ALL
        self._lock: IO[bytes] | None = None
        for number in random.sample(range(_BLOCKS), _BLOCKS):
            lock = (folder / str(number)).open("wb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
            else:
                self._lock = lock
                self.ports = ALL[number * _SIZE : (number + 1) * _SIZE]
                return

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


@functools.cache
def _lease() -> Lease:
    lease = Lease(Path(tempfile.gettempdir()) / f"carpool-ports-of-{os.getuid()}")
    atexit.register(lease.close)
    return lease


@functools.cache
def _in_turn() -> Iterator[int]:
    return itertools.cycle(random.sample(_lease().ports, len(_lease().ports)))


def free_ports(count: int) -> list[int]:
    """Different loopback ports that nobody listens on right now, and that were not given out lately.

    Who was given one may listen there only after somebody has asked for more.
    """
    return free_among(itertools.islice(_in_turn(), len(_lease().ports)), count)


def free_among(ports: Iterable[int], count: int) -> list[int]:
    """The first of these that nobody listens on."""
    found: list[int] = []
    for port in ports:
        with socket.socket() as attempt, contextlib.suppress(OSError):
            # As servers do: that a connection of a server before it ended there a moment ago is no matter.
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            attempt.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"{count} free ports are wanted, and {len(found)} are free")


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
