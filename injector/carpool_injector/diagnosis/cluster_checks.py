"""Checks of the cluster itself: versions, and KServe's configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from carpool_injector.core import model
from carpool_injector.diagnosis import cluster_state, findings

_LISTS = ("serviceAnnotationDisallowedList", "serviceLabelDisallowedList")


def versions(known: cluster_state.Facts) -> Iterator[findings.Finding]:
    """API server and kubelets are new enough for native sidecars."""
    if isinstance(known.server, cluster_state.Failed):
        yield findings.failed("the API server does not tell its version", known.server.why)
        return
    yield findings.ok(f"the API server answers: Kubernetes {_text(known.server)}")
    if isinstance(known.kubelets, cluster_state.Failed):
        yield from findings.unknown("the versions of the nodes", known.kubelets)
        return
    oldest = min(known.kubelets, default=None)
    able = model.Capabilities.of(known.server, oldest)
    shown = f"oldest node {_text(oldest)}" if oldest else "no nodes"
    if not able.native_sidecars:
        yield findings.warning(
            f"sidecars are ordinary containers here ({shown}): Jobs are refused, and they start beside the app",
            "use Kubernetes 1.29 or newer, on the nodes as well",
        )
    elif not able.native_named_ports:
        yield findings.warning(
            f"native sidecars, but Services do not find their named ports ({shown})",
            "use Kubernetes 1.32 or newer; until then pods with a named targetPort get an ordinary container",
        )
    else:
        yield findings.ok(f"native sidecars work everywhere ({shown})")


def kserve(known: cluster_state.Facts) -> Iterator[findings.Finding]:
    """KServe passes our labels and annotations on to its pods."""
    found = known.kserve_config
    name = f"ConfigMap {known.place.kserve_namespace}/{cluster_state.KSERVE_CONFIG}"
    if isinstance(found, cluster_state.Failed):
        yield from findings.unknown(f"KServe's {name}", found)
        return
    if found is None:
        yield findings.ok(f"no KServe here ({name} does not exist; see --kserve-namespace)")
        return
    data = found.get("data") or {}
    yield from _disallowed(_decoded(data, "inferenceService"), name)
    mode = _decoded(data, "deploy").get("defaultDeploymentMode")
    yield findings.ok(f"KServe's default mode is {mode or 'not set'}; its agent is {_agent(data)}")


def _disallowed(service: dict[str, Any], name: str) -> Iterator[findings.Finding]:
    bad = {key: [each for each in service.get(key) or () if str(each).startswith(model.PREFIX)] for key in _LISTS}
    for key, entries in bad.items():
        if entries:
            yield findings.failed(
                f"KServe keeps {', '.join(entries)} from its pods",
                f"remove what begins with {model.PREFIX} from inferenceService.{key} in {name}, and restart KServe's "
                "controller",
            )
    if not any(bad.values()):
        yield findings.ok("KServe passes labels and annotations of Carpool on to its pods")


def _agent(data: dict[str, Any]) -> str:
    return str(_decoded(data, "agent").get("image") or "not set")


def _decoded(data: dict[str, Any], key: str) -> dict[str, Any]:
    """A value of the ConfigMap, which holds JSON in strings; {} for what is none."""
    try:
        found = json.loads(data.get(key) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(version: model.Version) -> str:
    return ".".join(map(str, version))
