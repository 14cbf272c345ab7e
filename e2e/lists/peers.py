"""Servers that take lists, as they are, on free loopback ports, each in an environment of its own.

An environment is made once, from files that pin everything, under `~/.cache/carpool/lists`.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.peers import environments
from e2e.cluster import binaries, processes
from e2e.triton import servers

HERE = pathlib.Path(__file__).parent
REPOSITORY = HERE.parents[1]
SERVERS = HERE / "servers"
PROGRAMS = HERE / "programs"
MODEL = "all-MiniLM-L6-v2"
KEY = "sk-right"
# Where Python is told to write no bytecode, each start would compile torch and all else anew.
BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}

_REQUIREMENTS = HERE / "requirements"
_TORCH = REPOSITORY / "predictor" / "requirements.txt"
_SAVE_SECONDS = 200.0

Say = Callable[[str], None]


class Environment(NamedTuple):
    """Python with what its files pin."""

    name: str
    pins: tuple[pathlib.Path, ...]

    def prepare(self, say: Say) -> None:
        """Make it, unless it is there. Raises `binaries.Unavailable` where that is not possible."""
        problem = environments.not_installable(self.name, self.pins)
        if problem:
            raise binaries.Unavailable(f"no environment for {self.name}: {problem}")
        try:
            environments.install(_cache(), self.name, self.pins, say)
        except OSError as error:
            words = " ".join(str(error).split())
            raise binaries.Unavailable(f"no environment for {self.name}: {words[:300]}") from None

    def program(self, executable: str = "python") -> pathlib.Path:
        """One of its programs."""
        return environments.program(_cache(), self.name, executable)

    @property
    def packages(self) -> pathlib.Path:
        """Where its packages lie."""
        return next(self.program().parents[1].glob("lib/python*/site-packages"))


CLIENTS = Environment("clients", (_REQUIREMENTS / "clients.txt",))
MLFLOW = Environment("mlflow", (_REQUIREMENTS / "mlflow.txt",))
EMBEDDER = Environment("embedder", (_TORCH, _REQUIREMENTS / "embedder.txt"))
TABLES = Environment("tables", (_REQUIREMENTS / "tables.txt",))
KSERVE = Environment("kserve", (_TORCH, _REQUIREMENTS / "kserve.txt", _REQUIREMENTS / "vllm.txt"))


def openai_tokens() -> dict[str, str]:
    """The variable that shows tiktoken the tables inside LlamaIndex's package, since it would download them."""
    return {"TIKTOKEN_CACHE_DIR": str(CLIENTS.packages / "llama_index" / "core" / "_static" / "tiktoken_cache")}


class _Server(servers.Server):
    """One that is ready when `ready_path` answers 200."""

    ready_path = "/"
    start_seconds = 200.0  # torch, vLLM and MLflow take long to import on a busy machine
    environment: Environment | None = None

    def __init__(self, folder: pathlib.Path, say: Say) -> None:
        """Raises `binaries.Unavailable` where it cannot be installed."""
        if self.environment is not None:
            self.environment.prepare(say)
        super().__init__(folder)

    def variables(self) -> Mapping[str, str]:
        python = self.environment.program() if self.environment else pathlib.Path(sys.executable)
        return {
            **BYTECODE,
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "HOME": str(self._folder),
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'predictor'}",
        }

    def uvicorn(self, app: str, *words: str) -> list[str]:
        """The command that serves an ASGI application here."""
        assert self.environment is not None
        where = ["--host", servers.HOST, "--port", str(self.http_port), "--no-access-log", "--log-level", "warning"]
        return [str(self.environment.program("uvicorn")), app, *where, *words]


class Embedder(_Server):
    """`servers/embedder.py`."""

    name = "embedder"
    environment = EMBEDDER
    ready_path = "/healthz"

    def __init__(self, folder: pathlib.Path, say: Say) -> None:
        CLIENTS.prepare(say)
        super().__init__(folder, say)

    def command(self) -> Sequence[str]:
        return self.uvicorn("embedder:app", "--app-dir", str(SERVERS))

    def variables(self) -> Mapping[str, str]:
        return {**super().variables(), **openai_tokens()}


class KServe(_Server):
    """`servers/kserve_server.py`."""

    name = "kserve"
    environment = KSERVE

    def command(self) -> Sequence[str]:
        return [str(KSERVE.program()), str(SERVERS / "kserve_server.py"), str(self.http_port)]


class Tables(_Server):
    """`servers/tables.py`."""

    name = "tables"
    environment = TABLES

    def command(self) -> Sequence[str]:
        return [str(TABLES.program()), str(SERVERS / "tables.py"), str(self.http_port)]


class Documented(_Server):
    """`servers/documented.py`."""

    name = "documented"

    def command(self) -> Sequence[str]:
        return [sys.executable, str(SERVERS / "documented.py"), str(self.http_port)]


class MLflow(_Server):
    """MLflow's scoring server, started by the command that `mlflow models serve` ends in, with a model of ours."""

    environment = MLFLOW
    ready_path = "/ping"
    model = ""

    def __init__(self, folder: pathlib.Path, say: Say) -> None:
        super().__init__(folder, say)
        self.name = f"mlflow-{self.model}"
        self._model = folder / "model"
        say(f"saving a model of MLflow's ({self.model})")
        words = [str(MLFLOW.program()), str(SERVERS / "mlflow_model.py"), self.model, str(self._model)]
        saved = processes.run(*words, seconds=_SAVE_SECONDS)
        if saved.status:
            raise processes.ProcessFailed(f"{self.name} could not be saved:\n{saved.words}")

    def command(self) -> Sequence[str]:
        return self.uvicorn("mlflow.pyfunc.scoring_server.app:app")

    def variables(self) -> Mapping[str, str]:
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
        return {**super().variables(), **quiet, "__pyfunc_model_path__": str(self._model)}


class MLflowFrame(MLflow):
    """A model of columns, with parameters."""

    model = "frame"


class MLflowTensor(MLflow):
    """A model of arrays."""

    model = "tensor"


class TEI(_Server):
    """`servers/tei.py`, as version 1.9."""

    name = "tei"
    ready_path = "/health"
    generation = "1.9"

    def command(self) -> Sequence[str]:
        where = ["--host", servers.HOST, "--port", str(self.http_port)]
        return [sys.executable, str(SERVERS / "tei.py"), *where, "--generation", self.generation]


class OlderTEI(TEI):
    """The same, as version 1.8."""

    generation = "1.8"


def _cache() -> pathlib.Path:
    return environments.default_cache().with_name("lists")
