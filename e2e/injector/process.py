"""The injector as a process of its own, started by the command that its container runs."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from e2e.cluster import control_plane, processes
from e2e.injector import installation
from tests import loopback

ROOT = Path(__file__).parent.parent.parent
READY_SECONDS = 60.0
# The admin's choices that every injector here is started with.
CONFIG = {"image": "registry.example.com/carpool-sidecar:e2e"}


class Injector:
    """A running `carpool-injector serve` for one installation. Several may serve the same one."""

    def __init__(
        self,
        installed: installation.Installation,
        kubeconfig: Path,
        folder: Path,
        more: Sequence[str] = (),
        port: int = 0,
    ) -> None:
        """Listens on a free port, or on `port`. `more` are further flags of `serve`."""
        self.port = port or loopback.free_port()
        self._metrics_port = loopback.free_port()
        self._installed = installed
        self._command = [
            *(sys.executable, "-m", "carpool_injector", "serve"),
            *("--kubeconfig", str(kubeconfig)),
            *("--host", control_plane.HOST),
            *("--port", str(self.port)),
            *("--config", str(self._write_config(folder))),
            *("--metrics-port", str(self._metrics_port)),
            *("--service-name", installed.name),
            *("--namespace", installed.namespace),
            *("--secret-name", installed.secret),
            *("--mutating-webhook", installed.name),
            *("--validating-webhook", installed.name),
            *("--quiet-period", "0"),  # no endpoints here that would have to forget it first
            *more,
        ]
        self._log = folder / f"{installed.name}-{self.port}.log"
        self._process: processes.Process | None = None

    @staticmethod
    def _write_config(folder: Path) -> Path:
        path = folder / "config.yaml"
        path.write_text(json.dumps(CONFIG))
        return path

    def start(self, within: float = READY_SECONDS) -> None:
        """Returns when the injector says that the API server can call it. Raises processes.ProcessFailed."""
        # From the root of the checkout, where `-m carpool_injector` finds this tree's injector and no installed one.
        self._process = processes.Process(self._installed.name, self._command, self._log, ROOT)
        self._process.wait_until_ready(self.is_ready, within)

    def stop(self) -> None:
        """Ends it as a kubelet does, and waits. A second call does nothing."""
        if self._process is not None:
            self._process.stop()

    close = stop

    def is_ready(self) -> bool:
        return control_plane.answers_ok(self._url("readyz"))

    def readiness(self) -> str:
        """What a kubelet, or a person, is told who asks whether it is ready."""
        try:
            return self._get("readyz")
        except urllib.error.HTTPError as not_ready:
            with not_ready:
                return not_ready.read().decode()

    def metrics(self) -> str:
        return self._get("metrics")

    def _url(self, path: str) -> str:
        return f"http://{control_plane.HOST}:{self._metrics_port}/{path}"

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(self._url(path), timeout=5) as answer:
            return str(answer.read().decode())
