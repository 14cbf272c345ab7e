"""What an attack may do: to whom, for how long, with how many bytes and connections.

Only loopback is ever attacked. Bounds are for the attacker's own process, so that no mistake in an attack makes it
one on the machine.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import resource
import time
from dataclasses import asdict, dataclass, field

MOST_BYTES = 2_000_000_000
MOST_CONNECTIONS = 2_000
MOST_SECONDS = 120.0
MOST_MEMORY = 4 * 1024**3
"""Address space of the attacker's process."""


class NotLoopback(Exception):
    """An address that is not this machine's own loopback; `str()` says which."""


class Exhausted(Exception):
    """The attack has used up what it may use: it ends here."""


def check_loopback(host: str) -> None:
    """Raises `NotLoopback` unless `host` is an address, not a name, of loopback."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    raise NotLoopback(f"{host!r} is not a loopback address; only servers that this program started are attacked")


@dataclass
class Told:
    """What an attack did and how it ended, as it goes from its process to the harness."""

    began: float = 0.0
    """By `time.monotonic`, which all processes share."""

    bytes_sent: int = 0
    connections: int = 0
    cut: int = 0
    """Connections that the server closed."""

    resets: int = 0
    """Streams that the server reset."""

    last_words: dict[str, int] = field(default_factory=dict)
    """GOAWAY's code, a status, or how the socket ended: how often."""

    first_cut: float | None = None
    """Seconds until the first was cut."""

    seconds: float = 0.0

    def note_end(self, words: str, seconds: float) -> None:
        """The server has cut a connection, with these words."""
        self.cut += 1
        self.last_words[words] = self.last_words.get(words, 0) + 1
        if self.first_cut is None:
            self.first_cut = seconds

    def as_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Told:
        """Raises `ValueError` and `TypeError` for anything else."""
        return cls(**json.loads(line))


class Target:
    """The servers under attack, and the attacker's means. Raises `NotLoopback` for any other host."""

    # State: what has been used so far, in `told`.
    def __init__(self, host: str, grpc_port: int, http_port: int, seconds: float, admin_port: int = 0) -> None:
        check_loopback(host)
        self.host = host
        self.grpc_port = grpc_port
        self.http_port = http_port
        self.admin_port = admin_port
        self.seconds = min(seconds, MOST_SECONDS)
        self.told = Told(time.monotonic())

    @property
    def elapsed(self) -> float:
        """Seconds since the attack began."""
        return time.monotonic() - self.told.began

    @property
    def left(self) -> float:
        """Seconds until it has to end."""
        return max(0.0, self.seconds - self.elapsed)

    def spend_bytes(self, count: int) -> None:
        """So many are to be sent. Raises `Exhausted` when that, or the time, is over the bound."""
        if not self.left:
            raise Exhausted("time")
        if self.told.bytes_sent + count > MOST_BYTES:
            raise Exhausted("bytes")
        self.told.bytes_sent += count

    def spend_connection(self) -> None:
        """One more is to be made. Raises `Exhausted`."""
        if not self.left:
            raise Exhausted("time")
        if self.told.connections >= MOST_CONNECTIONS:
            raise Exhausted("connections")
        self.told.connections += 1


def limit_own_memory() -> None:
    """Hold this process to `MOST_MEMORY`."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
