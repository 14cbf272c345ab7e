"""Predictors that speak v2, as they are: NVIDIA Triton and MLServer, on free loopback ports.

Both come from packages, each into an environment of its own, pinned, that is made once (`benchmarks.peers`).
"""

from __future__ import annotations

import abc
import contextlib
import pathlib
import signal
from collections.abc import Iterator, Mapping, Sequence

import psutil

from benchmarks.peers import environments, triton
from e2e.cluster import binaries, processes
from e2e.triton import repository
from tests import loopback

HOST = "127.0.0.1"
START_SECONDS = 60.0

_SHARED_MEMORY = pathlib.Path("/dev/shm")


class Server(abc.ABC):
    """A server that can be started, killed and started again where it was. `http` and `grpc` are `host:port`."""

    name = "predictor"
    ready_path = "/v2/health/ready"
    start_seconds = START_SECONDS

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self.http_port, self.grpc_port, self.metrics_port = loopback.free_ports(3)
        self.http = f"{HOST}:{self.http_port}"
        self.grpc = f"{HOST}:{self.grpc_port}"
        self._process: processes.Process | None = None

    def start(self) -> None:
        """Returns when it is ready, with all its models. Raises `processes.ProcessFailed` if that takes too long."""
        words = [f"{name}={value}" for name, value in self.variables().items()]
        log = self._folder / f"{self.name}.log"
        self._process = processes.Process(self.name, ["env", *words, *self.command()], log, self._folder)
        self._process.wait_until_ready(self.is_ready, self.start_seconds)

    def is_ready(self) -> bool:
        """Whether it says so itself."""
        return processes.answers_ok(f"http://{self.http}{self.ready_path}")

    def kill(self) -> None:
        """Ends it at once, without a chance to answer anybody."""
        assert self._process is not None
        for child in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """Ends it; a second call does nothing."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    @abc.abstractmethod
    def command(self) -> Sequence[str]:
        """What starts it."""

    @abc.abstractmethod
    def variables(self) -> Mapping[str, str]:
        """Its environment."""


class Triton(Server):
    """Triton's CPU binary with its Python backend and the models of `repository`."""

    name = "tritonserver"

    def __init__(self, folder: pathlib.Path, models: Sequence[repository.Model] = repository.MODELS) -> None:
        """Raises `binaries.Unavailable`, and `OSError` when it cannot be installed."""
        problem = triton.PEER.missing()
        if problem:
            raise binaries.Unavailable(f"no Triton: {problem}")
        super().__init__(folder)
        self._cache = environments.default_cache()
        triton.PEER.prepare(self._cache, print)
        self._models = folder / "models"
        self._region = f"carpool_{self.http_port}_"
        repository.write(self._models, models)

    def command(self) -> Sequence[str]:
        server = triton.server(self._cache)
        return [
            str(server / "bin" / "tritonserver"),
            f"--model-repository={self._models}",
            f"--backend-directory={server / 'backends'}",
            f"--backend-config=python,shm-region-prefix-name={self._region}",
            *(f"--{port}-address={HOST}" for port in ("http", "grpc", "metrics")),
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            # Its default is at least 4: on a busy machine a stub comes up too late then, and takes the server with it.
            "--model-load-thread-count=2",
        ]

    def variables(self) -> Mapping[str, str]:
        return triton.interpreter(self._cache)

    def stop(self) -> None:
        super().stop()
        for left in _SHARED_MEMORY.glob(f"{self._region}*"):  # a killed one leaves its memory behind
            left.unlink()


class MLServer(Server):
    """MLServer with models of its own custom runtime."""

    name = "mlserver"

    def __init__(self, folder: pathlib.Path) -> None:
        """Raises `binaries.Unavailable`, and `OSError` when it cannot be installed."""
        problem = environments.missing(self.name)
        if problem:
            raise binaries.Unavailable(f"no MLServer: {problem}")
        super().__init__(folder)
        self._cache = environments.default_cache()
        environments.prepare(self._cache, self.name, print)
        ports = {"http_port": self.http_port, "grpc_port": self.grpc_port, "metrics_port": self.metrics_port}
        repository.write_for_mlserver(folder, {"host": HOST, **ports})

    def command(self) -> Sequence[str]:
        return [str(environments.program(self._cache, self.name, "mlserver")), "start", str(self._folder)]

    def variables(self) -> Mapping[str, str]:
        programs = environments.program(self._cache, self.name).parent
        return {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(self._folder)}


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Start it for the length of a `with` block."""
    try:
        server.start()
        yield server
    finally:
        server.stop()
