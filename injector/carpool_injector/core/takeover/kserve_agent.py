"""KServe's agent: in Standard mode with `spec.predictor.batcher` KServe's Service already points at port 9081.

The sidecar takes the place of an agent that only batches. An agent that also logs payloads or pulls models stays on
9081, loses its batcher, and sends to the sidecar. What makes this the same in either order of webhooks is that the
annotation goes, which KServe's webhook looks for, and not only the container it adds (pkg/webhook/admission/pod/
agent_injector.go of kserve/kserve).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carpool_injector.core import edits, model, pods, sites, status
from carpool_injector.core.copy_on_write import Draft
from carpool_injector.core.errors import Refusal
from carpool_injector.core.takeover import context, moves, port_swap

AGENT = "agent"
_INTERNAL = "internal.serving.kserve.io/"
_LOGGER, _PULLER = _INTERNAL + "logger", _INTERNAL + "agent"
# Flags of the agent, and whether their value is a word of its own as KServe writes them.
_BATCHER_FLAGS = {"--enable-batcher": False, "--max-batchsize": True, "--max-latency": True}
_PORT_FLAG = "--component-port"
_KEPT = 64  # characters of the annotation that fit into the status


@dataclass(frozen=True, slots=True)
class Agent:
    """KServe's agent in a pod, there already or to be expected: it batches, logs payloads, pulls models."""

    batches: bool
    logs: bool
    pulls: bool
    present: bool

    @property
    def expected(self) -> bool:
        """Whether KServe's Service points at it (service_reconciler.go): not where it only pulls models."""
        return self.batches or self.logs

    @property
    def stays(self) -> bool:
        """Whether it does more than batch."""
        return self.logs or self.pulls


def find(pod: pods.Pod) -> Agent:
    """What is known of the agent from the pod's annotations and containers; none in pods that are not KServe's."""
    if not sites.is_kserve(pod):
        return Agent(batches=False, logs=False, pulls=False, present=False)
    container = pod.container(AGENT)
    words = container.words if container else ()
    flags = {word.partition("=")[0] for word in words}
    annotations = pod.metadata.annotations
    return Agent(
        batches=pods.BATCHER in annotations or "--enable-batcher" in flags,
        logs=_LOGGER in annotations or "--log-url" in flags,
        pulls=_PULLER in annotations or "--enable-puller" in flags,
        present=container is not None and passes_on(words),
    )


def passes_on(words: Sequence[str]) -> bool:
    """Whether these arguments are those of KServe's agent: it is told where to send."""
    return any(word.partition("=")[0] == _PORT_FLAG for word in words)


def plan(asked: context.Context, native: bool) -> model.Plan:
    """The sidecar listens on 9081, or behind an agent that stays. Raises `Refusal` where no agent is to be expected."""
    site, agent = asked.site, find(asked.pod)
    if not agent.expected or not site.is_kserve:
        raise Refusal(
            "no-takeover",
            "this pod has no batcher or logger of KServe, so KServe's Service does not point at its agent",
            "set spec.predictor.batcher in the InferenceService (batcher: {} is enough)",
        )
    check_http(site)
    port_swap.check_grpc(site)
    ports = asked.ports()
    listen = ports.take() if agent.stays else _agents_port(asked, ports)
    admin = ports.take(asked.config.admin_port)
    steps, reached, rpc = list(_steps(agent, listen)), site.grpc.port if site.grpc else None, None
    if site.taken_grpc:
        reached, rpc = ports.take(), reached
        steps += [port_swap.grpc_step(site, reached), f"the sidecar listens on {rpc} for gRPC"]
    return model.Plan("kserve-agent", native, site.container.name, site.port, listen, admin, tuple(steps), reached, rpc)


def check_http(site: sites.Site) -> None:
    """Raises `Refusal` for an app that is entered by gRPC, which KServe's agent does not speak."""
    if site.by_grpc:
        raise Refusal(
            "not-http",
            f"port {site.grpc.port if site.grpc else site.port} of container {site.container.name!r} speaks gRPC, and "
            "KServe's agent in front of it HTTP/1.1 only",
            "remove spec.predictor.batcher and logger from the InferenceService; Carpool batches without them",
        )


def _agents_port(asked: context.Context, ports: context.Ports) -> int:
    port = ports.take(context.KSERVE_AGENT_PORT, may_be_agents=True)
    if port != context.KSERVE_AGENT_PORT:
        raise Refusal(
            "port-taken",
            f"KServe's Service sends to {context.KSERVE_AGENT_PORT}, where another container of the pod listens",
            f"move that container to another port than {context.KSERVE_AGENT_PORT}",
        )
    return port


def _steps(agent: Agent, listen: int) -> tuple[str, ...]:
    if agent.stays:
        return (
            "KServe's agent stays on 9081 for what else it does, and its batcher is switched off",
            f"the agent sends to the sidecar on {listen}, and the sidecar to the app",
        )
    return (
        "KServe's agent is left out: its annotation internal.serving.kserve.io/batcher is removed",
        f"the sidecar listens on {listen}, where KServe's Service sends",
    )


def apply(draft: Draft, planned: model.Plan, asked: context.Context) -> context.Effects:
    """Take the batcher's place; an agent that stays sends to the sidecar."""
    detach(draft, find(asked.pod), planned.listen_port)
    (rpc, *_) = [*moves.apply(draft.container(planned.container), moves.of_plan(planned, asked.site, http=False)), None]
    grpc = asked.site.taken_grpc
    return context.Effects(
        context.data_port(planned.listen_port),
        batcher=batcher(asked.pod),
        grpc=context.moved_grpc(rpc, grpc.setting if grpc else None),
    )


def batcher(pod: pods.Pod) -> str | None:
    """The annotation's value, to give it back one day; KServe looks at its presence only, so a long one is not kept."""
    value = pod.metadata.annotations.get(pods.BATCHER)
    return "true" if value is not None and len(value) > _KEPT else value


def detach(draft: Draft, agent: Agent, listen: int) -> None:
    """Switch KServe's batcher off, and send what an agent that stays passes on to `listen`."""
    draft.unannotate(pods.BATCHER)
    if not agent.present:
        return
    if not agent.stays:
        draft.remove("containers", AGENT)
        return
    container = draft.container(AGENT)
    container["args"] = edits.without_flags(container.get("args") or [], _BATCHER_FLAGS)
    for at, before, _ in list(edits.flag_values(container["args"], _PORT_FLAG)):
        container["args"][at] = f"{before}{listen}"


def revert(draft: Draft, done: status.Injected) -> None:
    """Give KServe its annotation back (its webhook adds the agent again), and let the agent send to the app."""
    moves.revert(draft, done)
    if done.batcher is not None:
        draft.annotate(pods.BATCHER, done.batcher)
    if draft.has(AGENT):
        edits.change_flag_port(draft.container(AGENT), _PORT_FLAG, done.listen_port, done.app_port)
