"""The peers that are Python packages with a server of their own, or a library under FastAPI and uvicorn.

How each is configured, and why, stands beside the code it concerns, in `servers/`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks import processes
from benchmarks.peers import environments, peer

ROW = [5.1, 3.5, 1.4, 0.25]
BODY = json.dumps({"instances": [ROW]}, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Ports:
    """What a command is built from: the port, and the environment's folder of programs."""

    port: int
    programs: pathlib.Path

    def python(self, script: str, *arguments: str) -> list[str]:
        return [str(self.programs / "python"), str(peer.SERVERS / script), *arguments]

    def uvicorn(self, app: str) -> list[str]:
        # As its documentation advises for production: uvloop and httptools (both installed, so `auto` takes them), no
        # access log. One process, since there is one core.
        where = ["--app-dir", str(peer.SERVERS), "--host", processes.HOST, "--port", str(self.port)]
        return [str(self.programs / "uvicorn"), f"{app}:app", *where, "--no-access-log", "--log-level", "warning"]

    def bentoml(self, service: str) -> list[str]:
        where = ["--working-dir", str(peer.SERVERS), "--host", processes.HOST, "--port", str(self.port)]
        return [str(self.programs / "bentoml"), "serve", service, *where]


@dataclass(eq=False)
class PythonServer:
    """A `peer.Peer`. `key` names its requirements and its environment, `package` what the version is of.

    `bare` says that answers are the list of predictions itself, without `{"predictions": ...}` around it.
    """

    name: str
    key: str
    package: str
    command: Callable[[Ports], Sequence[str]]
    ready_path: str
    predict_path: str = "/predict"
    env: Mapping[str, str] = field(default_factory=dict)
    bare: bool = False
    role: str = peer.SERVER

    def missing(self) -> str | None:
        return environments.missing(self.key)

    def prepare(self, cache: pathlib.Path, say: Callable[[str], None]) -> None:
        environments.prepare(cache, self.key, say)

    def version(self, cache: pathlib.Path) -> str:
        return environments.pinned_version(self.key, self.package)

    def launch(self, cache: pathlib.Path, model: peer.Model, port: int, component_port: int) -> peer.Launch:
        address = f"http://{processes.HOST}:{port}"
        programs = environments.program(cache, self.key).parent
        return peer.Launch(
            argv=self.command(Ports(port, programs)),
            # A home of its own: several of them write there.
            env={
                "HOME": str(cache / self.key),
                "PATH": f"{programs}:/usr/bin:/bin",
                **self.env,
                **model.environment(port),
            },
            ready_url=address + self.ready_path,
            predict_url=address + self.predict_path,
            body=BODY,
            check=self._is_right,
        )

    def _is_right(self, answer: bytes) -> bool:
        try:
            decoded = json.loads(answer)
        except ValueError:
            return False
        return bool(decoded == ([ROW] if self.bare else {"predictions": [ROW]}))


MOSEC = PythonServer(
    name="mosec",
    key="mosec",
    package="mosec",
    # The default capacity of 1024 requests and time-out of 3 s stay.
    command=lambda at: at.python(
        "mosec_app.py", "--address", processes.HOST, "--port", str(at.port), "--log-level", "warning"
    ),
    ready_path="/",
    predict_path="/inference",
)
LITSERVE = PythonServer(
    name="LitServe",
    key="litserve",
    package="litserve",
    command=lambda at: at.python("litserve_app.py"),
    ready_path="/health",  # 503 until the worker is there
)
BENTOML = PythonServer(
    name="BentoML",
    key="bentoml",
    package="bentoml",
    command=lambda at: at.bentoml("bentoml_app:Echo"),
    ready_path="/readyz",
    env={"BENTOML_DO_NOT_TRACK": "True"},
    bare=True,
)
BATCHED = PythonServer(
    name="batched",
    key="batched",
    package="batched",
    command=lambda at: at.uvicorn("batched_app"),
    ready_path="/ready",
)
FAST_DYNAMIC_BATCHER = PythonServer(
    name="fast_dynamic_batcher",
    key="fast_dynamic_batcher",
    package="fast-dynamic-batcher",
    command=lambda at: at.uvicorn("fast_dynamic_batcher_app"),
    ready_path="/ready",
)
RAY_SERVE = PythonServer(
    name="Ray Serve",
    key="ray_serve",
    package="ray",
    command=lambda at: at.python("ray_serve_app.py"),
    ready_path="/-/healthz",
    env={
        "RAY_USAGE_STATS_ENABLED": "0",
        # What its documentation switches on for high throughput.
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
    },
)

PEERS: tuple[PythonServer, ...] = (MOSEC, LITSERVE, BENTOML, BATCHED, FAST_DYNAMIC_BATCHER, RAY_SERVE)
