"""Carpool among the peers: sidecar and predictor together as a server, and the sidecar alone against KServe's agent."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import carpool_sidecar
from tests import loopback
from tests.bench import bodies, processes
from tests.bench.peers import peer

PATH = "/v1/models/echo:predict"
BODY = bodies.exact(bodies.SMALLEST, 4321)


@dataclass(eq=False)
class Carpool:
    """A `peer.Peer`. The harness starts the predictor, on the core that the role says."""

    name: str
    role: str
    flags: Callable[[peer.Model], Sequence[str]]

    def missing(self) -> str | None:
        return None

    def prepare(self, cache: pathlib.Path, say: Callable[[str], None]) -> None:
        """There is nothing to install: it runs from this checkout."""

    def version(self, cache: pathlib.Path) -> str:
        return carpool_sidecar.__version__

    def launch(self, cache: pathlib.Path, model: peer.Model, port: int, component_port: int) -> peer.Launch:
        (admin_port,) = loopback.free_ports(1)
        return peer.Launch(
            argv=processes.sidecar_command(port, component_port, admin_port, self.flags(model)),
            env={},
            ready_url=processes.ready_url(admin_port),
            predict_url=f"http://{processes.HOST}:{port}{PATH}",
            body=BODY,
            check=_is_right,
            needs_predictor=True,
        )


def predictor_arguments(model: peer.Model) -> list[str]:
    """Flags of Carpool's predictor for such a model."""
    times = ["--echo-fixed-ms", repr(model.fixed_ms), "--echo-per-instance-ms", repr(model.per_row_ms)]
    return ["--models", "echo", *times]


def _window(model: peer.Model) -> list[str]:
    return ["--policy", "window", "--max-batch-size", str(model.max_batch), "--max-latency", f"{model.wait_ms:g}"]


def _adaptive(model: peer.Model) -> list[str]:
    # It learns when to send and how many at once; only the predictor's batch size it has to be told.
    return ["--policy", "adaptive", "--max-batch-size", str(model.max_batch)]


def _is_right(answer: bytes) -> bool:
    try:
        return bool(bodies.prediction_of(answer) == json.loads(BODY)["instances"][0])
    except ValueError:
        return False


WINDOW = Carpool("Carpool window", peer.SERVER, _window)
ADAPTIVE = Carpool("Carpool adaptive", peer.SERVER, _adaptive)
SIDECAR = Carpool("Carpool sidecar", peer.SIDECAR, _window)

PEERS: tuple[Carpool, ...] = (WINDOW, ADAPTIVE, SIDECAR)
