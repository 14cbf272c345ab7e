"""Checks of the pods that run: who was missed, who lost a sidecar, who has an old one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from carpool_injector.core import model, pod_annotations
from carpool_injector.diagnosis import cluster_state, findings

_SHOWN = 5  # pods that a line names
_RESTART = "restart them when it suits: kubectl rollout restart, or let KServe roll out a new revision"


class State(NamedTuple):
    """A pod, as far as the injector is concerned. `injected` is its status, `refused` why it has no sidecar."""

    name: str
    asks: bool
    injected: model.Object | None
    refused: str
    sidecar: str
    """Where the sidecar is: "native", "classic", or "" for nowhere."""

    @property
    def release(self) -> tuple[Any, Any] | None:
        """Version and hash of the configuration that it was injected with."""
        return (self.injected.get("version"), self.injected.get("config")) if self.injected else None

    @property
    def lost(self) -> bool:
        """Whether the sidecar is not where the status says it is."""
        return self.injected is not None and self.sidecar != ("native" if self.injected.get("native") else "classic")


def state(pod: model.Object) -> State:
    """What a pod's metadata and containers say."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    status = _decoded(annotations.get(pod_annotations.STATUS))
    name = f"{metadata.get('namespace')}/{metadata.get('name')}"
    asks = labels.get(pod_annotations.INJECT, annotations.get(pod_annotations.INJECT)) == "true"
    refused = str(status.get("message") or status.get("refused") or "") if status else ""
    return State(name, asks, status if status and not refused else None, refused, _sidecar(spec))


def coverage(known: cluster_state.Facts) -> Iterator[findings.Finding]:
    """Who asked has a sidecar, or was told why not."""
    if isinstance(known.pods, cluster_state.Failed):
        yield from findings.unknown("pods", known.pods)
        return
    states = [state(pod) for pod in known.pods if _runs(pod)]
    injected = [each for each in states if each.injected is not None]
    yield findings.ok(f"{len(injected)} of {len(states)} running pods have been injected")
    missed = [each.name for each in states if each.asks and each.injected is None and not each.refused]
    if missed:
        yield findings.warning(f"asked for the sidecar and were missed: {_named(missed)}", _RESTART)
    for each in [each for each in states if each.asks and each.refused][:_SHOWN]:
        yield findings.warning(f"{each.name} was refused: {each.refused}", "see carpool-injector explain")
    lost = [each.name for each in injected if each.lost]
    if lost:
        yield findings.warning(
            f"another webhook removed or changed the sidecar of: {_named(lost)}",
            "set carpool.dev/sidecar-mode: classic there, or update that webhook",
        )


def drift(known: cluster_state.Facts) -> Iterator[findings.Finding]:
    """Who was injected has what a new pod would get."""
    if isinstance(known.pods, cluster_state.Failed) or isinstance(known.sample, cluster_state.Failed):
        return
    newest = state(known.sample).release
    if newest is None:
        return
    states = [state(pod) for pod in known.pods if _runs(pod)]
    old = [each.name for each in states if each.release is not None and each.release != newest]
    if old:
        yield findings.warning(f"injected by an older version or configuration: {_named(old)}", _RESTART)
    else:
        yield findings.ok(f"all sidecars are of version {newest[0]} with configuration {newest[1]}")


def _sidecar(spec: model.Object) -> str:
    for container in spec.get("initContainers") or ():
        if container.get("name") == model.CONTAINER:
            return "native" if container.get("restartPolicy") == "Always" else ""
    names = [container.get("name") for container in spec.get("containers") or ()]
    return "classic" if model.CONTAINER in names else ""


def _runs(pod: model.Object) -> bool:
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _decoded(text: str | None) -> model.Object | None:
    try:
        found = json.loads(text or "")
    except ValueError:
        return None
    return found if isinstance(found, dict) and ("refused" in found or "native" in found) else None


def _named(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(sorted(names)[:_SHOWN]) + rest
