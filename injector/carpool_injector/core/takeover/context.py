"""What the ways of taking a port over decide from, and the ports that they hand out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from carpool_injector.core import model, pods, references, sites
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
        own = {self.site.port, *([self.site.grpc.port] if self.site.grpc else [])}
        return Ports(frozenset(references.ports_named(self.pod)) | own)

    def plan(
        self,
        takeover: model.Takeover,
        native: bool,
        listen: tuple[int, int, int | None],
        steps: Sequence[str],
        moves: Sequence[model.Move] = (),
    ) -> model.Plan:
        """A plan: the app is where the `moves` let it go, or where it is.

        The sidecar is to `listen` for HTTP, on its admin port, and for gRPC if it does.
        """
        site, new = self.site, {each.old: each.new for each in moves}
        http, admin, grpc = listen
        return model.Plan(
            takeover=takeover,
            native=native,
            container=site.container.name,
            app_port=new.get(site.port, site.port),
            listen_port=http,
            admin_port=admin,
            steps=tuple(steps),
            grpc_app_port=new.get(site.grpc.port, site.grpc.port) if site.grpc else None,
            grpc_listen_port=grpc,
            moves=tuple(moves),
        )


@dataclass(frozen=True, slots=True)
class Effects:
    """What a takeover means for the sidecar: its declared ports, and the predictor's probe that it makes."""

    ports: Sequence[model.Object]
    readiness: str | None = None


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
