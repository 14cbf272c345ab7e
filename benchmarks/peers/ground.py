"""What a peer stands on and in front of: its core, and the predictor that sidecars share."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import machine, processes
from benchmarks.peers import carpool, peer, stub
from tests import loopback

READY_SECONDS = 120.0


@dataclass(frozen=True)
class Cores:
    """Which core whom: the peer one, the load generator (and a sidecar's predictor) another; None: no pinning."""

    peer: set[int] | None
    load: set[int] | None


def split_cores() -> Cores:
    split = machine.split_cores()
    return Cores(split[1], split[0]) if split else Cores(None, None)


@dataclass(frozen=True)
class Behind:
    """The predictor that sidecars share: its port, and whether it is the stub."""

    port: int
    is_stub: bool


@contextlib.contextmanager
def predictor(model: peer.Model, cores: set[int] | None, as_stub: bool = False) -> Iterator[int]:
    """Run Carpool's predictor of this model, or the stub, which has no service time; gives its port."""
    (port,) = loopback.free_ports(1)
    arguments = processes.predictor_command(port, carpool.predictor_arguments(model))
    started = stub.command(sys.executable, port) if as_stub else arguments
    with processes.running("predictor", started, cores) as child:
        child.wait_until_ready(processes.ready_url(port), READY_SECONDS)
        yield port
