"""NVIDIA Triton with its Python backend, on the CPU: the server binary that the package `nvidia-pytriton` carries.

Of PyTriton itself nothing runs; Triton is started on an ordinary model repository. It is set up as its optimization
guide advises: dynamic batching with a largest batch and a queue delay, no preferred batch sizes ("should not be used
for most models"), a single instance because the model is a single device.
"""

from __future__ import annotations

import json
import pathlib
import platform
import shutil
import string
import sys
import sysconfig
from collections.abc import Callable

from benchmarks import processes
from benchmarks.peers import environments, peer, python_servers

ENVIRONMENT = "nvidia_pytriton"
_MODEL = pathlib.Path(__file__).with_name("triton_model")
_TRITON = "2.51.0"  # what the binary of the pinned package says of itself at /v2; nothing in the package tells
_PYTHONS = {(3, 11), (3, 12)}
BODY = json.dumps(
    # FP64, so that the answer is the row itself and not its nearest FP32.
    {"inputs": [{"name": "rows", "shape": [1, 4], "datatype": "FP64", "data": python_servers.ROW}]},
    separators=(",", ":"),
).encode()

# One thread for HTTP instead of eight, since there is one core: 1,960 to 1,970 requests/s on the 10 ms model where
# eight give 1,840 to 1,950. No gRPC and no metrics: nobody asks for them here, and each would want a port.
_OPTIONS = ("--http-thread-count=1", "--allow-grpc=false", "--allow-metrics=false")


class Triton:
    """A `peer.Peer`; see there for what each method promises. Whether it `batches` by itself is the model's setting."""

    role = peer.SERVER

    def __init__(self, name: str = "Triton", batches: bool = True) -> None:
        self.name = name
        self._batches = batches

    def missing(self) -> str | None:
        if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
            return "there is no Triton binary for this system"
        if sys.version_info[:2] not in _PYTHONS:
            return "its Python backend needs Python 3.11 or 3.12"
        if _libpython() is None:
            return "its Python backend needs a Python with a shared library, which this one is not"
        return environments.missing(ENVIRONMENT)

    def prepare(self, cache: pathlib.Path, say: Callable[[str], None]) -> None:
        environments.prepare(cache, ENVIRONMENT, say)
        # The backend looks for its stub beside itself, for one version of Python; the package has one for each.
        folder = server(cache)
        stub = folder / "backends" / "python" / "triton_python_backend_stub"
        if not stub.exists():
            shutil.copy2(folder / "python_backend_stubs" / _python() / stub.name, stub)

    def version(self, cache: pathlib.Path) -> str:
        return f"{_TRITON} (nvidia-pytriton {environments.pinned_version(ENVIRONMENT)})"

    def launch(self, cache: pathlib.Path, model: peer.Model, port: int, component_port: int) -> peer.Launch:
        repository = cache / ENVIRONMENT / (f"models-{model.wait_ms:g}" if self._batches else "models-alone")
        write_repository(repository, model, self._batches)
        folder, address = server(cache), f"http://{processes.HOST}:{port}"
        folders = [f"--model-repository={repository}", f"--backend-directory={folder / 'backends'}"]
        where = [f"--http-address={processes.HOST}", f"--http-port={port}"]
        return peer.Launch(
            argv=[str(folder / "bin" / "tritonserver"), *folders, *where, *_OPTIONS],
            env=_variables(cache, model),
            ready_url=f"{address}/v2/health/ready",
            predict_url=f"{address}/v2/models/echo/infer",
            body=BODY,
            check=_is_right,
            stays_awake=True,
        )


def write_repository(repository: pathlib.Path, model: peer.Model, batches: bool = True) -> None:
    """Lay out the one model as Triton wants it: `echo/config.pbtxt`, `echo/1/model.py` and what that imports."""
    version = repository / "echo" / "1"
    version.mkdir(parents=True, exist_ok=True)
    for source in (_MODEL / "model.py", peer.SERVERS / "sleep_model.py"):
        shutil.copyfile(source, version / source.name)
    template = string.Template((_MODEL / "config.pbtxt").read_text())
    batching = f"dynamic_batching {{ max_queue_delay_microseconds: {round(model.wait_ms * 1000)} }}" if batches else ""
    (version.parent / "config.pbtxt").write_text(template.substitute(max_batch=model.max_batch, batching=batching))


def _variables(cache: pathlib.Path, model: peer.Model) -> dict[str, str]:
    return {
        **interpreter(cache),
        # For servers/sleep_model.py, which all servers share.
        "PEER_FIXED_MS": repr(model.fixed_ms),
        "PEER_PER_ROW_MS": repr(model.per_row_ms),
        "PEER_MAX_BATCH": str(model.max_batch),
    }


def interpreter(cache: pathlib.Path) -> dict[str, str]:
    """The stub embeds Python: it finds the environment by PATH, the interpreter's library by LD_LIBRARY_PATH."""
    programs = environments.program(cache, ENVIRONMENT).parent
    return {"PATH": f"{programs}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(_libpython())}


def server(cache: pathlib.Path) -> pathlib.Path:
    """The folder of the server: `bin/tritonserver` and `backends/`."""
    environment = environments.program(cache, ENVIRONMENT).parents[1]
    return environment / "lib" / f"python{_python()}" / "site-packages" / "pytriton" / "tritonserver"


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _libpython() -> pathlib.Path | None:
    """The folder of this interpreter's shared library; None if it has none."""
    folder = pathlib.Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    candidates = [pathlib.Path(sys.base_prefix, "lib"), folder, folder / (sysconfig.get_config_var("MULTIARCH") or "")]
    return next((each for each in candidates if (each / f"libpython{_python()}.so.1.0").exists()), None)


def _is_right(answer: bytes) -> bool:
    try:
        (output,) = json.loads(answer)["outputs"]
        return bool(output["data"] == python_servers.ROW)
    except (ValueError, KeyError, TypeError):
        return False


PEER: peer.Peer = Triton()
ALONE: peer.Peer = Triton("Triton without its batcher", batches=False)
