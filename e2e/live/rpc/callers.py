"""A pod that sends calls from inside the cluster, and what became of calls sent at once: gRPC passes no ingress."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from e2e import metrics
from e2e.cluster import kubectl as kubectls
from e2e.live.rpc import servers

NAME = "callers"
PYTHON = "/opt/carpool/bin/python"
START_SECONDS, END_SECONDS = 60.0, 60.0
# Does nothing, and ends when it is told to.
IDLE = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); signal.pause()"

Object = dict[str, Any]
# What Triton counts, and what the sidecar does.
ROWS = 'nv_inference_count_total{model="identity"}'
RUNS = 'nv_inference_exec_count_total{model="identity"}'
BATCHED = 'carpool_rpc_requests_total{code="OK",lane="batched"}'
PASSED = 'carpool_rpc_requests_total{code="OK",lane="passthrough"}'
CALLERS, TIMES = 32, 10
CALLS = CALLERS * TIMES


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


class Together(NamedTuple):
    """`right`, `wrong` and `failed` are the callers' own; `rows` and `runs` of the model, `batched` calls of gRPC's."""

    right: int
    wrong: int
    failed: dict[str, int]
    rows: float
    runs: float
    batched: float


def counts(kubectl: kubectls.Kubectl, pod: str) -> dict[str, float]:
    """The counters of the model server and of the sidecar in a pod."""
    ports = (servers.METRICS_PORT, servers.ADMIN_PORT)
    pages = (kubectl.raw(kubectl.path_to(pod, port, "/metrics")) for port in ports)
    return {name: value for page in pages for name, value in metrics.samples(page).items()}


def together(kubectl: kubectls.Kubectl, pod: str, callers: Callers, protocol: str, target: str) -> Together:
    """CALLERS call that pod by its Service at once, each TIMES times."""
    before = counts(kubectl, pod)
    report = callers.run("together", target, f"--protocol={protocol}", f"--callers={CALLERS}", f"--times={TIMES}")
    after = counts(kubectl, pod)
    rows, runs, batched = (after.get(name, 0) - before.get(name, 0) for name in (ROWS, RUNS, BATCHED))
    found = Together(report["right"], report["wrong"], report["failed"], rows, runs, batched)
    print(f"{protocol}: {found}")
    return found
