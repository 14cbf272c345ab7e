"""The peers as systems of the GPU benchmark: other people's servers, each around the same model as Carpool's predictor.

Every server runs under this Python, for its torch, and imports the predictor's model class: what differs between the
systems is how requests come to the model and answers go back. A peer's own packages lie in a folder that goes in front
of Python's path for its server alone: installed as `benchmarks.peers` pins them, or brought along where nothing can be
fetched (`Place`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import string
import struct
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import processes
from benchmarks.gpu import systems
from benchmarks.peers import environments, triton
from tests import loopback

SERVERS = pathlib.Path(__file__).with_name("servers")
TRITON_MODEL = pathlib.Path(__file__).with_name("triton_model")
SIZE = 384  # numbers in an embedding


@dataclass(frozen=True)
class Place:
    """Where peers' packages are.

    `packages` has those of all Python peers, and `triton` the server as `TritonFolder` wants it; what is None is
    installed into `cache`.
    """

    cache: pathlib.Path
    say: Callable[[str], None]
    packages: pathlib.Path | None = None
    triton: pathlib.Path | None = None


@dataclass(frozen=True)
class Tuning:
    """How a peer is set: batches of at most `max_batch`, so many processes in front of the model, and `wait_ms` at most
    for the first of a batch; None where the peer finds out by itself."""

    max_batch: int
    wait_ms: float | None
    fronts: int = 1

    def __str__(self) -> str:
        wait = f"{self.wait_ms:g} ms" if self.wait_ms is not None else "learned wait"
        fronts = f", {self.fronts} front ends" if self.fronts > 1 else ""
        return f"{self.max_batch}, {wait}{fronts}"


@dataclass(frozen=True)
class PythonPeer:
    """A `systems.System`: a program of `servers/` under this Python.

    `key` names its pins in `benchmarks.peers`. `arguments` follow the interpreter. `read` takes the numbers out of an
    answer; None: they are in an answer as the predictor gives it. It `has_fronts` if it can have several processes in
    front of the model, and `learns_to_wait` if it is not told how long.
    """

    name: str
    key: str
    arguments: Callable[[int], Sequence[str]]
    ready_path: str
    place: Place
    tuning: Tuning = Tuning(32, 5.0)
    predict_path: str = "/predict"
    read: Callable[[bytes], list[float]] | None = None
    has_fronts: bool = False
    learns_to_wait: bool = False

    def tuned(self, tuning: Tuning) -> PythonPeer:
        """The same, set so."""
        return dataclasses.replace(self, tuning=tuning)

    def missing(self, setup: systems.Setup) -> str | None:
        """See `systems.System`."""
        return setup.model.missing() or (None if self.place.packages else environments.missing(self.key))

    def prepare(self) -> None:
        """Install it, unless that was done. Raises `OSError`."""
        if self.place.packages is None:
            environments.prepare(self.place.cache, self.key, self.place.say)

    @property
    def version(self) -> str:
        return environments.pinned_version(self.key, self.key)

    @contextlib.contextmanager
    def running(self, setup: systems.Setup) -> Iterator[systems.Running]:
        """See `systems.System`."""
        (port,) = loopback.free_ports(1)
        with tempfile.TemporaryDirectory(prefix=f"carpool-{self.key}-") as home:
            # A home of its own: several of them write there.
            variables = {"HOME": home, "BENTOML_HOME": home, "BENTOML_DO_NOT_TRACK": "True"}
            packages, programs = self._installed()
            # mosec looks for its front end where this Python's programs are, and those of a user.
            variables |= {"PYTHONPATH": _path(SERVERS, packages), "PYTHONUSERBASE": str(programs.parent)}
            variables |= _told(setup, self.tuning, port)
            command = _with_environment(variables, [sys.executable, *self.arguments(port)])
            with processes.running(self.key, command, _cores(setup.cores)) as child:
                address = f"http://{processes.HOST}:{port}"
                child.wait_until_ready(address + self.ready_path, systems.READY_SECONDS)
                requests = systems.bodies(setup.model)
                read = self.read or setup.model.first
                yield systems.Running(address + self.predict_path, requests, read, {"server": child.pid})

    def _installed(self) -> tuple[pathlib.Path, pathlib.Path]:
        """The folders of its packages and of their programs, of which mosec starts one."""
        if self.place.packages is not None:
            return self.place.packages, self.place.packages / "bin"
        programs = environments.program(self.place.cache, self.key).parent
        return _site_packages(self.place.cache, self.key), programs


def _bare(answer: bytes) -> list[float]:
    """Of an answer that is the list of embeddings itself. Raises `ValueError` if it is none."""
    try:
        return systems.flat(json.loads(answer)[0])
    except (TypeError, LookupError) as error:
        raise ValueError(f"no list of embeddings: {error!r}") from None


def _python_peers(place: Place) -> list[PythonPeer]:
    """Those that are Python packages."""

    def uvicorn(port: int) -> list[str]:
        # As its documentation advises for production: uvloop and httptools (`auto` takes them), no access log.
        where = ["--app-dir", str(SERVERS), "--host", processes.HOST, "--port", str(port)]
        return ["-m", "uvicorn", "batched_app:app", *where, "--no-access-log", "--log-level", "warning"]

    def bentoml(port: int) -> list[str]:
        where = ["--working-dir", str(SERVERS), "--host", processes.HOST, "--port", str(port)]
        return ["-m", "bentoml", "serve", "bentoml_app:Embed", *where]

    def mosec(port: int) -> list[str]:
        where = ["--address", processes.HOST, "--port", str(port)]
        # Its time-out would turn callers away where others make them wait, which could not be compared.
        return [str(SERVERS / "mosec_app.py"), *where, "--timeout", "60000", "--log-level", "warning"]

    def litserve(port: int) -> list[str]:
        return [str(SERVERS / "litserve_app.py")]

    return [
        PythonPeer("mosec", "mosec", mosec, "/", place, predict_path="/inference"),
        PythonPeer("LitServe", "litserve", litserve, "/health", place, has_fronts=True),
        PythonPeer("BentoML", "bentoml", bentoml, "/readyz", place, read=_bare, learns_to_wait=True),
        PythonPeer("batched", "batched", uvicorn, "/ready", place),
    ]


@dataclass(frozen=True)
class Triton:
    """A `systems.System`: Triton with its Python backend. With `binary`, answers are asked for as bytes.

    Set as its optimization guide advises: dynamic batching with a largest batch and a queue delay, no preferred sizes
    ("should not be used for most models"), a single instance because the model is a single device.
    """

    place: Place
    tuning: Tuning = Tuning(32, 5.0)
    binary: bool = False
    key: str = "triton"
    has_fronts: bool = False
    learns_to_wait: bool = False

    def tuned(self, tuning: Tuning) -> Triton:
        """The same, set so."""
        return dataclasses.replace(self, tuning=tuning)

    @property
    def name(self) -> str:
        return "Triton, binary answers" if self.binary else "Triton"

    @property
    def version(self) -> str:
        return triton.PEER.version(self.place.cache)

    def missing(self, setup: systems.Setup) -> str | None:
        """See `systems.System`."""
        return setup.model.missing() or (None if self.place.triton else triton.PEER.missing())

    def prepare(self) -> None:
        """Install it, unless that was done. Raises `OSError`."""
        if self.place.triton is None:
            triton.PEER.prepare(self.place.cache, self.place.say)

    @contextlib.contextmanager
    def running(self, setup: systems.Setup) -> Iterator[systems.Running]:
        """See `systems.System`."""
        (port,) = loopback.free_ports(1)
        folder, numpy, python = self._server()
        with tempfile.TemporaryDirectory(prefix="carpool-triton-") as repository:
            _write_repository(pathlib.Path(repository), self.tuning)
            folders = [f"--model-repository={repository}", f"--backend-directory={folder / 'backends'}"]
            where = [f"--http-address={processes.HOST}", f"--http-port={port}"]
            # No gRPC and no metrics: nobody asks for them here, and each would want a port.
            options = ["--allow-grpc=false", "--allow-metrics=false"]
            # Not PYTHONPATH: the backend's stub runs a Python that reads no variables of Python's.
            variables = python | _told(setup, self.tuning, port) | {"PEER_PATH": _path(numpy)}
            command = _with_environment(variables, [str(folder / "bin" / "tritonserver"), *folders, *where, *options])
            with processes.running(self.key, command, _cores(setup.cores)) as child:
                address = f"http://{processes.HOST}:{port}/v2"
                child.wait_until_ready(f"{address}/health/ready", systems.READY_SECONDS)
                requests = [_infer_body(instance, self.binary) for instance in setup.model.instances()]
                read = _last_floats if self.binary else _outputs
                url = f"{address}/models/{setup.model.name}/infer"
                yield systems.Running(url, requests, read, {"server": child.pid})

    def _server(self) -> tuple[pathlib.Path, pathlib.Path, dict[str, str]]:
        """The server's folder, that of the NumPy which its backend can read, and the variables that it starts with.

        As it was brought along, with `pytriton/tritonserver` as in the package nvidia-pytriton, the stub for this
        version of Python beside the backend, in `python` one with a shared library, and in `site` NumPy 1; else as
        installed.
        """
        brought = self.place.triton
        if brought is None:
            cache = self.place.cache
            return triton.server(cache), _site_packages(cache, triton.ENVIRONMENT), triton.interpreter(cache)
        home = brought / "python"
        variables = {"PATH": f"{home / 'bin'}:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(home / "lib")}
        return brought / "pytriton" / "tritonserver", brought / "site", variables


Peer = PythonPeer | Triton


def all_of(place: Place) -> list[Peer]:
    """Every peer."""
    return [*_python_peers(place), Triton(place), Triton(place, binary=True)]


def _write_repository(repository: pathlib.Path, tuning: Tuning) -> None:
    """Lay out the one model as Triton wants it: its configuration, `1/model.py` and what that imports."""
    version = repository / systems.MINILM / "1"
    version.mkdir(parents=True)
    for source in (TRITON_MODEL / "model.py", SERVERS / "embedder.py"):
        shutil.copyfile(source, version / source.name)
    template = string.Template((TRITON_MODEL / "config.pbtxt").read_text())
    told = template.substitute(max_batch=tuning.max_batch, wait_us=round((tuning.wait_ms or 0.0) * 1000))
    (version.parent / "config.pbtxt").write_text(told)


def _infer_body(instance: bytes, binary: bool) -> bytes:
    """One sentence, which is JSON, as a v2 request."""
    request = {"inputs": [{"name": "sentences", "shape": [1, 1], "datatype": "BYTES", "data": [json.loads(instance)]}]}
    if binary:
        request["outputs"] = [{"name": "embeddings", "parameters": {"binary_data": True}}]
    return json.dumps(request, separators=(",", ":")).encode()


def _outputs(answer: bytes) -> list[float]:
    try:
        (output,) = json.loads(answer)["outputs"]
        return [float(value) for value in output["data"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"no outputs in the answer: {error!r}") from None


def _last_floats(answer: bytes) -> list[float]:
    """The binary output, which stands behind a JSON head: 384 floats, little-endian."""
    if len(answer) < 4 * SIZE:
        raise ValueError(f"an answer of {len(answer)} bytes has no {SIZE} floats")
    return list(struct.unpack(f"<{SIZE}f", answer[-4 * SIZE :]))


def _told(setup: systems.Setup, tuning: Tuning, port: int) -> dict[str, str]:
    """What `servers/embedder.py` reads."""
    return {
        "PEER_PREDICTOR": shlex.join(systems.predictor_flags(setup)),
        "PEER_MAX_BATCH": str(tuning.max_batch),
        "PEER_WAIT_MS": repr(tuning.wait_ms or 0.0),
        "PEER_FRONTS": str(tuning.fronts),
        "PEER_PORT": str(port),
        # As the predictor starts its own workers: idle threads of torch's on the CPU let others run.
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
    }


def _path(*first: pathlib.Path) -> str:
    """These folders, then all of this process's that are not the standard library's.

    So a server with a Python of its own finds the same packages.
    """
    own = [each for each in sys.path if pathlib.Path(each).is_dir() and not _is_of_the_library(pathlib.Path(each))]
    return ":".join(map(str, (*first, *own)))


def _is_of_the_library(folder: pathlib.Path) -> bool:
    library = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    inside = any(folder.is_relative_to(each) for each in library)
    return inside and not {"site-packages", "dist-packages"} & set(folder.parts)


def _site_packages(cache: pathlib.Path, key: str) -> pathlib.Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environments.program(cache, key).parents[1] / "lib" / version / "site-packages"


def _with_environment(variables: Mapping[str, str], command: Sequence[str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in variables.items()), *command]


def _cores(cores: systems.Cores) -> systems.Core:
    """All that Carpool's processes have together: how a peer spreads over them is its own business."""
    return None if cores.sidecar is None else cores.sidecar | (cores.server or set()) | (cores.worker or set())
