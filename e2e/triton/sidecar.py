"""The sidecar's own process in front of a v2 predictor, and its counters."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import urllib.request
from collections.abc import Iterator

from e2e import metrics
from e2e.cluster import processes
from e2e.triton import servers
from tests import loopback

START_SECONDS = 20.0


class Sidecar:
    """`http`, `grpc` and `admin` are `host:port`."""

    def __init__(self, folder: pathlib.Path, predictor: servers.Server, options: tuple[str, ...]) -> None:
        port, grpc_port, admin_port = loopback.free_ports(3)
        self.http, self.grpc, self.admin = (f"{servers.HOST}:{each}" for each in (port, grpc_port, admin_port))
        flags = {
            "host": servers.HOST,
            "port": port,
            "grpc-port": grpc_port,
            "admin-host": servers.HOST,
            "admin-port": admin_port,
            "component-port": predictor.http_port,
            "component-grpc-port": predictor.grpc_port,
            "quiet-period": 0,
            "log-format": "text",
        }
        command = [sys.executable, "-m", "carpool_sidecar", *processes.flags(flags), *options]
        self._process = processes.Process("sidecar", command, folder / f"sidecar-{port}.log")

    def wait_until_ready(self) -> None:
        """Raises `processes.ProcessFailed`, with the end of its log, if that takes too long."""
        self._process.wait_until_ready(self.is_ready, START_SECONDS)

    def is_ready(self) -> bool:
        """Whether it says so itself."""
        return processes.answers_ok(f"http://{self.admin}/readyz")

    def counts(self) -> dict[str, float]:
        """Every sample of its metrics, as `metrics.samples` names them."""
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=5) as answer:
            return metrics.samples(answer.read().decode())

    def stop(self) -> None:
        """Ends it as Kubernetes does."""
        self._process.stop()


class Changes:
    """How far counters have come since this was made."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._before = sidecar.counts()

    def of(self, name: str) -> float:
        """Of what `metrics.total` takes."""
        return metrics.total(self._sidecar.counts(), name) - metrics.total(self._before, name)

    @property
    def mean_batch(self) -> float:
        """Rows in a batch."""
        return self.of("carpool_batch_size_sum") / max(1, self.of("carpool_batch_size_count"))


@contextlib.contextmanager
def running(folder: pathlib.Path, predictor: servers.Server, *options: str) -> Iterator[Sidecar]:
    """One with these flags besides those for its ports, ready to serve."""
    sidecar = Sidecar(folder, predictor, options)
    try:
        sidecar.wait_until_ready()
        yield sidecar
    finally:
        sidecar.stop()
