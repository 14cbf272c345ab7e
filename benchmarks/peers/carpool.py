"""Carpool among the peers: sidecar and predictor together as a server, and the sidecar alone against KServe's agent.

Where the hot path is compiled, the sidecar alone takes part a second time, as Python.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import carpool_sidecar
from benchmarks import bodies, processes
from benchmarks.peers import peer
from carpool import compiled
from tests import loopback

PATH = "/v1/models/echo:predict"
BODY = bodies.exact(bodies.SMALLEST, 4321)


@dataclass(eq=False)
class Carpool:
    """A `peer.Peer`. The harness starts the predictor, on the core that the role says.

    It runs as it is installed. One that is `as_python` leaves compiled modules alone, and is missing where there are
    none.
    """

    name: str
    role: str
    flags: Callable[[peer.Model], Sequence[str]]
    as_python: bool = False

    def missing(self) -> str | None:
        if self.as_python and carpool_sidecar.build() == "python":
            return "nothing is compiled here, so it is the same as the other"
        return None

    def prepare(self, cache: pathlib.Path, say: Callable[[str], None]) -> None:
        """There is nothing to install: it runs from this checkout."""

    def version(self, cache: pathlib.Path) -> str:
        return f"{carpool_sidecar.__version__} ({'python' if self.as_python else carpool_sidecar.build()})"

    def launch(self, cache: pathlib.Path, model: peer.Model, port: int, component_port: int) -> peer.Launch:
        (admin_port,) = loopback.free_ports(1)
        return peer.Launch(
            argv=processes.sidecar_command(port, component_port, admin_port, self.flags(model)),
            env={compiled.VARIABLE: "1"} if self.as_python else {},
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


def server_predictor(model: peer.Model, port: int) -> tuple[list[str], dict[str, str]]:
    """The predictor that is a server together with the sidecar, with the model of all servers: command, environment.

    `predictor_arguments` will not do there: the echo model has a queue, as a GPU does and the other servers' has not.
    """
    paths = [str(peer.SERVERS), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = processes.predictor_command(port, ["--models", "echo=carpool_app:Sleeping"])
    return command, {**model.environment(port), "PYTHONPATH": os.pathsep.join(paths)}


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
AS_PYTHON = Carpool("Carpool sidecar as Python", peer.SIDECAR, _window, as_python=True)

PEERS: tuple[Carpool, ...] = (WINDOW, ADAPTIVE, SIDECAR, AS_PYTHON)
