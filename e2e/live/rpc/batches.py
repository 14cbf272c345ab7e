"""Calls made at the same time, and what became of them: by the callers, by the model server, and by the sidecar."""

from __future__ import annotations

from typing import NamedTuple

from e2e.live import kubectl as kubectls
from e2e.live.rpc import callers as callers_in_pods
from e2e.live.rpc import servers

CALLERS, TIMES = 32, 10
CALLS = CALLERS * TIMES
# What Triton counts, and what the sidecar does.
ROWS = 'nv_inference_count_total{model="identity"}'
RUNS = 'nv_inference_exec_count_total{model="identity"}'
BATCHED = 'carpool_rpc_requests_total{code="OK",lane="batched"}'
PASSED = 'carpool_rpc_requests_total{code="OK",lane="passthrough"}'


class Together(NamedTuple):
    """`right`, `wrong` and `failed` are the callers' own; `rows` and `runs` of the model, `batched` calls of gRPC's."""

    right: int
    wrong: int
    failed: dict[str, int]
    rows: float
    runs: float
    batched: float


def counts(kubectl: kubectls.Kubectl, pod: str) -> dict[str, float]:
    """Those of the model server and of the sidecar in a pod."""
    ports = (servers.METRICS_PORT, servers.ADMIN_PORT)
    return {name: value for port in ports for name, value in servers.counts(kubectl, pod, port).items()}


def together(
    kubectl: kubectls.Kubectl, pod: str, callers: callers_in_pods.Callers, protocol: str, target: str
) -> Together:
    """CALLERS call that pod by its Service at once, each TIMES times."""
    before = counts(kubectl, pod)
    report = callers.run("together", target, f"--protocol={protocol}", f"--callers={CALLERS}", f"--times={TIMES}")
    after = counts(kubectl, pod)
    rows, runs, batched = (after.get(name, 0) - before.get(name, 0) for name in (ROWS, RUNS, BATCHED))
    found = Together(report["right"], report["wrong"], report["failed"], rows, runs, batched)
    print(f"{protocol}: {found}")
    return found
