"""All checks, in the order in which they are told: what comes first explains what fails later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from carpool_injector.diagnosis import cluster_checks, cluster_state, findings, pod_checks, webhook_checks

Check = Callable[[cluster_state.Facts], Iterator[findings.Finding]]

CHECKS: Mapping[str, Sequence[Check]] = {
    "Kubernetes": (cluster_checks.versions,),
    "Webhooks": (webhook_checks.registration, webhook_checks.endpoints),
    "Certificates": (webhook_checks.certificate,),
    "Injection": (webhook_checks.trial,),
    "Pods": (pod_checks.coverage, pod_checks.drift),
    "KServe": (cluster_checks.kserve,),
}


def run(known: cluster_state.Facts) -> dict[str, list[findings.Finding]]:
    """The findings under their headings."""
    return {title: [finding for check in checks for finding in check(known)] for title, checks in CHECKS.items()}
