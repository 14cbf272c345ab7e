"""A pod of the cluster, as far as the injector is concerned: what it asks, and what was done to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from carpool_injector.core import model, pod_annotations
from carpool_injector.objects import parts, restarts


@dataclass(frozen=True, slots=True)
class PodState:
    """What a pod's metadata and containers say."""

    pod: model.Object

    @property
    def metadata(self) -> model.Object:
        return self.pod.get("metadata") or {}

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace"))

    @property
    def name(self) -> str:
        """With the namespace."""
        return f"{self.namespace}/{self.metadata.get('name')}"

    @property
    def asks(self) -> bool:
        """Whether the pod itself asks for the sidecar; its label counts before its annotation."""
        labels, annotations = (self.metadata.get(kind) or {} for kind in ("labels", "annotations"))
        return bool(labels.get(pod_annotations.INJECT, annotations.get(pod_annotations.INJECT)) == "true")

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return (self.pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")

    @property
    def restart(self) -> str:
        """What makes a new pod in its place."""
        return restarts.advice(self.pod)

    @property
    def _status(self) -> model.Object:
        """The status that the injector left on it, that of a refusal included; {} for none."""
        try:
            found = json.loads((self.metadata.get("annotations") or {}).get(pod_annotations.STATUS) or "")
        except ValueError:
            return {}
        return found if isinstance(found, dict) and ("refused" in found or "native" in found) else {}

    @property
    def refused(self) -> str:
        """Why it has no sidecar; "" where it was not refused."""
        return str(self._status.get("message") or self._status.get("refused") or "")

    @property
    def injected(self) -> model.Object | None:
        """The status of an injection; None where there was none."""
        return None if self.refused else self._status or None

    @property
    def takeover(self) -> str:
        """How the sidecar got in front of the app; "" where it did not."""
        return str((self.injected or {}).get("takeover") or "")

    @property
    def pull_secrets(self) -> list[str]:
        """The pull secrets that the injector added."""
        found = (self.injected or {}).get("pullSecrets")
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []

    @property
    def release(self) -> tuple[Any, Any] | None:
        """Version and hash of the configuration that it was injected with."""
        return (self.injected.get("version"), self.injected.get("config")) if self.injected else None

    @property
    def moves(self) -> Mapping[int, int]:
        """The ports on which the sidecar stands for the app, by the app's own."""
        status = self.injected or {}
        pairs = [(status.get(app), status.get(ours)) for app, ours in _PORTS]
        return {app: ours for app, ours in pairs if isinstance(app, int) and isinstance(ours, int)}

    @property
    def lost(self) -> bool:
        """Whether the sidecar is not where the status says it is."""
        if self.injected is None:
            return False
        place, container = self.sidecar or ("", {})
        is_native = place == "initContainers" and container.get("restartPolicy") == "Always"
        return not (is_native if self.injected.get("native") else place == "containers")

    @property
    def sidecar(self) -> tuple[str, model.Object] | None:
        """The sidecar's container, and where in the spec it stands."""
        places = ("initContainers", "containers")
        found = ((place, each) for place in places for each in parts.parts(self.pod, "spec", place))
        return next(((place, each) for place, each in found if each.get("name") == model.CONTAINER), None)


_PORTS = (("appPort", "listenPort"), ("grpcAppPort", "grpcListenPort"))
