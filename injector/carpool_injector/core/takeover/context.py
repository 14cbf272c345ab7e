"""What the ways of taking a port over decide from, and what they hand on to the sidecar container."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from carpool_injector.core import command_lines, edits, listening, model, pods, sites
from carpool_injector.core.config import Config
from carpool_injector.core.refusals import Reason
from carpool_injector.core.settings import Settings

KSERVE_AGENT_PORT = 9081  # constants.InferenceServiceDefaultAgentPort of kserve/kserve

# What queue-proxy, KServe's agent and the usual meshes (Linkerd, Istio) listen on, whether they are in the pod yet or
# not: other webhooks may come later.
_KNATIVE = (8008, 8012, 8013, 8022, 8112, KSERVE_AGENT_PORT, 9088, 9090, 9091)
_MESHES = (4140, 4143, 4190, 4191, 15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090)
_RESERVED = frozenset((*_KNATIVE, *_MESHES))
_FIRST_FREE, _LAST = 9083, 65535


@dataclass(frozen=True, slots=True)
class Context:
    """A pod, where predictions enter it, and what was set for it."""

    pod: pods.Pod
    site: sites.Site
    settings: Settings
    config: Config
    capabilities: model.Capabilities

    def ports(self) -> Ports:
        """The ports that are still free in this pod."""
        grpc = {self.site.grpc.port} if self.site.grpc else set()
        return Ports(frozenset(_used(self.pod)) | {self.site.port} | grpc)


@dataclass(frozen=True, slots=True)
class GrpcEffects:
    """The declared port of a sidecar that listens for gRPC, and what goes into the status of how the app was told."""

    port: model.Object
    told_by: str | None = None
    added: bool | None = None


@dataclass(frozen=True, slots=True)
class Effects:
    """What a takeover means for the sidecar container.

    `data_port` is its declared port. `readiness` is the predictor's probe (SERVING_READINESS_PROBE), None: the app
    container's own. `told_by`, `added` and `batcher` go into the status. `grpc` is there if it listens for gRPC.
    """

    data_port: model.Object
    readiness: str | None = None
    told_by: str | None = None
    added: bool = False
    batcher: str | None = None
    grpc: GrpcEffects | None = None

    def with_readiness(self, probe: str | None) -> Effects:
        """The same with this probe for the predictor."""
        return replace(self, readiness=probe)


@dataclass(slots=True)
class Ports:
    """Hands out ports of a pod: the same ones for the same pod, whichever webhook came first."""

    used: frozenset[int]
    _taken: set[int] = field(default_factory=set)

    def take(self, wanted: int | None = None, may_be_agents: bool = False) -> int:
        """The wanted port where it is free, else the first free one from 9083 up.

        `may_be_agents`: KServe's agent will not be there, so its port may be had. Raises `Refusal` if none is free.
        """
        blocked = self.used | self._taken
        reserved = _RESERVED - {KSERVE_AGENT_PORT} if may_be_agents else _RESERVED
        port = _FIRST_FREE if wanted is None or wanted in blocked | reserved else wanted
        while port in blocked | reserved:
            port += 1
        if port > _LAST:
            raise Reason.NO_FREE_PORT(first=_FIRST_FREE)
        self._taken.add(port)
        return port


def data_port(port: int) -> model.Object:
    """The declared port for HTTP of a sidecar that keeps its own port name."""
    return {"name": DATA_PORT_NAME, "containerPort": port, "protocol": "TCP"}


DATA_PORT_NAME = "carpool-http"
GRPC_PORT_NAME = "carpool-grpc"


def grpc_port(port: int | None) -> GrpcEffects | None:
    """The same for gRPC; None where the sidecar does not listen for it."""
    return GrpcEffects({"name": GRPC_PORT_NAME, "containerPort": port, "protocol": "TCP"}) if port else None


def moved_grpc(port: model.Object | None, setting: listening.PortSetting | None) -> GrpcEffects | None:
    """The same where the sidecar has the app's port for gRPC, and `setting` tells the app another one."""
    return GrpcEffects(port, setting.name, not setting.present) if port and setting else None


def _is_port(variable: model.Object) -> bool:
    value = variable.get("value") or ""
    return "PORT" in variable["name"] and value.isascii() and value.isdecimal() and len(value) <= 5


def _used(pod: pods.Pod) -> Iterator[int]:
    for container in pod.all_containers:
        if container.name in pods.MIRRORED:
            continue
        yield from (port.container_port for port in container.ports)
        yield from (port.host_port for port in container.ports if port.host_port)
        for _, handler in container.handlers:
            yield from (action.port for action in handler.actions if isinstance(action.port, int))
            yield from command_lines.ports(handler.words)
        yield from edits.ports_in_flags(container.words)
        yield from (int(item["value"]) for item in container.env if _is_port(item))
