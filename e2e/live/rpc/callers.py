"""A pod of callers in the cluster: gRPC goes from pods to Services here, by way of no ingress."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

from e2e.live import kubectl as kubectls
from e2e.live.rpc import servers

NAME = "callers"
PYTHON = "/opt/carpool/bin/python"
START_SECONDS, END_SECONDS = 60.0, 60.0
# Does nothing, and ends when it is told to.
IDLE = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); signal.pause()"

Object = dict[str, Any]


def pod() -> Object:
    """The callers' pod, without the sidecar."""
    container = {
        "name": NAME,
        "image": servers.IMAGE,
        "command": [PYTHON, "-c", IDLE],
        "volumeMounts": [servers.VOLUME],
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
    }
    spec = {"containers": [container], "volumes": [servers.volume()]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec}


class Callers:
    """Runs programs/caller.py in the pod, which is Ready."""

    def __init__(self, kubectl: kubectls.Kubectl) -> None:
        self._kubectl = kubectl

    def run(self, *words: str) -> Object:
        """What it reports."""
        said = self._kubectl.run("exec", NAME, "--", PYTHON, servers.CALLER, *words)
        report: Object = json.loads(said.output)
        return report

    @contextlib.contextmanager
    def load(self, target: str, *words: str) -> Iterator[Object]:
        """Keeps callers busy from the first right answers until the block ends; fills in what it yields then."""
        command = self._kubectl.command("exec", "--stdin", NAME, "--", PYTHON, servers.CALLER, "load", target, *words)
        reports: Object = {}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                _wait_until_settled(process)
                yield reports
                output, errors = process.communicate(timeout=END_SECONDS)
            finally:
                process.kill()
        if process.returncode:
            raise RuntimeError(f"the load ended with status {process.returncode}:\n{errors}{output}")
        reports |= json.loads(output)


def _wait_until_settled(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    too_late = threading.Timer(START_SECONDS, process.kill)
    too_late.start()
    line = process.stdout.readline()
    too_late.cancel()
    if not line:
        raise RuntimeError(f"no right answers within {START_SECONDS:g} s:\n{process.stderr.read()}")


def ready(kubectl: kubectls.Kubectl) -> Callers:
    """Callers in a pod of their own."""
    kubectl.apply([servers.programs(), pod()])
    kubectl.wait(f"pod/{NAME}", "Ready")
    return Callers(kubectl)
