"""Pods that are no place for a sidecar, whoever asks: not the serving part, or not able to run one."""

from __future__ import annotations

from carpool_injector.core import pods, sites
from carpool_injector.core.errors import Refusal


def skip_reason(pod: pods.Pod, components: str | None) -> str | None:
    """A slug where the wish was meant for another pod, None where it was meant for this one.

    Annotations of an InferenceService reach its transformer, its explainer and the workers of a multi-node predictor.
    """
    if "kubernetes.io/config.mirror" in pod.metadata.annotations:
        return "mirror-pod"
    if not sites.is_kserve(pod):
        return None
    if pod.container("worker-container") is not None:
        return "multi-node-worker"
    component = pod.metadata.labels.get(pods.COMPONENT)
    wanted = (components or "predictor").split(",")
    return "other-component" if component is not None and component not in wanted else None


def check(pod: pods.Pod) -> None:
    """Raises `Refusal` for a pod that cannot run the sidecar at all."""
    if _is_windows(pod):
        raise Refusal("windows", "the pod is for Windows nodes; the sidecar is a Linux image", "leave it without")
    if pod.spec.host_network:
        raise Refusal(
            "host-network",
            "the pod uses the host's network, where the sidecar's ports would be the node's",
            "remove hostNetwork, or run carpool-sidecar yourself on ports you choose",
        )


def check_mode(pod: pods.Pod, native: bool) -> None:
    """Raises `Refusal` for a pod that ends by itself, as only a native sidecar ends with it."""
    if not native and pod.spec.restart_policy in ("Never", "OnFailure"):
        raise Refusal(
            "job-needs-native",
            f"the pod has restartPolicy {pod.spec.restart_policy} and would never end beside a classic sidecar",
            "use Kubernetes 1.29 or newer, and no carpool.dev/sidecar-mode: classic",
        )


def _is_windows(pod: pods.Pod) -> bool:
    os = pod.spec.os.name if pod.spec.os else None
    return "windows" in (os, pod.spec.node_selector.get("kubernetes.io/os"))
