"""The values that the injector's parts exchange: what is known of the cluster, the decision, the plan, the outcome.

Pods and other Kubernetes objects are decoded JSON throughout (`Object`), never client models: those drop the fields
they do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from carpool_injector.core import refusals

Object = dict[str, Any]
"""A Kubernetes object, or a part of one, as decoded JSON."""

PREFIX = "carpool.dev/"
"""The prefix of all labels and annotations of Carpool."""

CONTAINER = "carpool"
"""Name of the sidecar container."""

Takeover = Literal["queue-proxy", "kserve-agent", "port-swap", "named-port", "none"]
Result = Literal["injected", "skipped", "refused", "unconcerned"]
Version = tuple[int, int]

_NATIVE_SIDECARS: Version = (1, 29)  # SidecarContainers is on by default (KEP-753)
# Services find named ports of restartable init containers: Endpoints from 1.32 on, and EndpointSlices, by which traffic
# goes, from 1.33 on (kubernetes#127976, #128850).
_NATIVE_NAMED_PORTS: Version = (1, 33)


@dataclass(frozen=True, slots=True)
class Namespace:
    """What the injector looks at of the namespace a pod is for."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the cluster can do.

    `native_sidecars`: init containers with `restartPolicy: Always`. `native_named_ports`: a Service's named targetPort
    may be a port of such a container.
    """

    native_sidecars: bool = True
    native_named_ports: bool = True

    @classmethod
    def of(cls, server: Version, oldest_kubelet: Version | None) -> Capabilities:
        """From the API server's version and that of the oldest kubelet; None: no nodes are known yet."""
        oldest = server if oldest_kubelet is None else min(server, oldest_kubelet)
        return cls(oldest >= _NATIVE_SIDECARS, server >= _NATIVE_NAMED_PORTS and oldest >= _NATIVE_SIDECARS)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a pod was asked to get the sidecar.

    `explicit`: asked by the pod itself (label or annotation), not by its namespace or the admin's default. `source`
    says where the answer was found, `reason` is a slug for metrics, `concerned` tells a pod that was switched off or
    cannot be meant from one that nobody spoke of.
    """

    inject: bool
    explicit: bool
    source: str
    reason: str
    concerned: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """A declared port of the app passes to the sidecar, which listens on `listen`; the app goes from `old` to `new`.

    Where it stays on `old`, only its port's name passes. `told_by` is the flag or variable that tells the app its port,
    `added`: which was not there.
    """

    old: int
    new: int
    listen: int
    by_grpc: bool = False
    told_by: str | None = None
    added: bool = False

    @property
    def stays(self) -> bool:
        """Whether the app goes on listening where it did."""
        return self.new == self.old


@dataclass(frozen=True, slots=True)
class Plan:
    """How the sidecar gets in front of the app: who listens where afterwards, and what is changed for it.

    `app_port` is where the app listens afterwards and `listen_port` where the sidecar does. `grpc_app_port` and
    `grpc_listen_port` are the same for gRPC; None: it is not known, or none of the sidecar's business. `steps` are
    sentences. `lists` is the built-in rule that was chosen for the app's server; empty: none was, or one was set.
    `moves` are of the app's ports, the one for HTTP first.
    """

    takeover: Takeover
    native: bool
    container: str
    app_port: int
    listen_port: int
    admin_port: int
    steps: tuple[str, ...] = ()
    grpc_app_port: int | None = None
    grpc_listen_port: int | None = None
    lists: str = ""
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `inject` or `uninject` made of a pod.

    `pod` is the result, and the very object that was given when nothing changes; `patch` are the RFC 6902 operations
    from the one to the other. `status` is the value of the annotation `carpool.dev/status`.
    """

    pod: Object
    decision: Decision
    patch: list[Object] = field(default_factory=list)
    plan: Plan | None = None
    refusal: refusals.Refusal | None = None
    status: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def result(self) -> Result:
        """injected; refused: asked for explicitly and impossible; skipped: off or not suitable; else unconcerned."""
        if self.plan is not None:
            return "injected"
        if self.refusal is not None and self.decision.explicit:
            return "refused"
        return "skipped" if self.refusal is not None or self.decision.concerned else "unconcerned"
