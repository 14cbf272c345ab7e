"""What a peer is: something people batch predict requests with today, installed, started and asked alike.

The harness knows nothing but this interface. A peer says whether it can be had on this machine, installs itself into
a folder of its own, and says how to start it and what to send it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

SERVER, SIDECAR = "server", "sidecar"

SERVERS = pathlib.Path(__file__).with_name("servers")
"""Where the programs are that serve the model, and the model itself, `sleep_model.py`."""


@dataclass(frozen=True)
class Model:
    """The affine sleep model: a batch of n takes `fixed_ms` + `per_row_ms` * n, one batch at a time.

    A peer is to put at most `max_batch` rows into a batch, and to let the first one wait `wait_ms` at most.
    """

    fixed_ms: float
    per_row_ms: float
    max_batch: int
    wait_ms: float

    @property
    def limit(self) -> float:
        """Rows/s of full batches one after another without a pause; infinite when batches cost nothing."""
        batch_ms = self.fixed_ms + self.per_row_ms * self.max_batch
        return self.max_batch / batch_ms * 1000 if batch_ms else float("inf")

    def environment(self, port: int) -> dict[str, str]:
        """What `sleep_model.py` reads."""
        return {
            "PEER_FIXED_MS": repr(self.fixed_ms),
            "PEER_PER_ROW_MS": repr(self.per_row_ms),
            "PEER_MAX_BATCH": str(self.max_batch),
            "PEER_WAIT_MS": repr(self.wait_ms),
            "PEER_PORT": str(port),
        }


@dataclass(frozen=True)
class Launch:
    """How to run a peer that is prepared.

    `env` is added to the environment. The peer is ready once `ready_url` answers 200; `body` is then posted to
    `predict_url` as JSON, and `check` says whether an answer's body is right for it. With `needs_predictor` (a
    sidecar) the harness starts a predictor of the same model on the component port first. One that `stays_awake` is
    not stopped while others are measured: it costs nothing without requests, and its parts give each other up if they
    are stopped.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    ready_url: str
    predict_url: str
    body: bytes
    check: Callable[[bytes], bool]
    needs_predictor: bool = False
    stays_awake: bool = False


class Peer(Protocol):
    """One system under comparison. `role` is "server" (with its own model worker) or "sidecar"."""

    name: str
    role: str

    def missing(self) -> str | None:
        """None if it can be prepared here, else the reason in words, e.g. "no Go toolchain on PATH"."""
        ...

    def prepare(self, cache: pathlib.Path, say: Callable[[str], None]) -> None:
        """Install or build into `cache`; does nothing if that was done for the same pinned versions.

        Raises `OSError` or `subprocess.CalledProcessError` if that does not work.
        """
        ...

    def version(self, cache: pathlib.Path) -> str:
        """The version that is installed in `cache`, as it goes into the report."""
        ...

    def launch(self, cache: pathlib.Path, model: Model, port: int, component_port: int) -> Launch:
        """How to run it on `port`; a sidecar's predictor listens on `component_port`."""
        ...
