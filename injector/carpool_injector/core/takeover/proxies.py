"""Takeover behind proxies that send to the app already: KServe's agent (Standard mode) and Knative's queue-proxy.

With `spec.predictor.batcher` KServe's Service points at its agent on port 9081. The sidecar takes the place of an agent
that only batches. An agent that also logs payloads or pulls models stays on 9081, loses its batcher, and sends to the
sidecar. The result is the same in either order of webhooks because the annotation is removed that KServe's webhook
looks for, not only the container that it adds (pkg/webhook/admission/pod/agent_injector.go of kserve/kserve).

queue-proxy sends to the port in its variable USER_PORT, which KServe's own agent changes as well. Its readiness probe
(SERVING_READINESS_PROBE) asked the app. It asks the sidecar instead, which asks the app with that same probe:
otherwise a pod would count as ready before its sidecar is (kserve#5569).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from carpool_injector.core import command_lines, edits, model, pod_annotations, pods, sites
from carpool_injector.core.edits import Draft
from carpool_injector.core.refusals import Reason
from carpool_injector.core.takeover import by_port
from carpool_injector.core.takeover.context import KSERVE_AGENT_PORT, Context

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


def find_agent(pod: pods.Pod) -> Agent:
    """KServe's agent as the pod's annotations and containers show it; none in pods that are not KServe's."""
    if not sites.is_kserve(pod):
        return Agent(batches=False, logs=False, pulls=False, present=False)
    container = pod.container(pods.AGENT)
    words = container.words if container else ()
    flags = {word.partition("=")[0] for word in words}
    annotations = pod.metadata.annotations
    return Agent(
        batches=pods.BATCHER in annotations or "--enable-batcher" in flags,
        logs=_LOGGER in annotations or "--log-url" in flags,
        pulls=_PULLER in annotations or "--enable-puller" in flags,
        present=container is not None and is_agent(words),
    )


def is_agent(words: Sequence[str]) -> bool:
    """Whether these arguments are those of KServe's agent: it is told where to send."""
    return any(word.partition("=")[0] == _PORT_FLAG for word in words)


def plan_agent(asked: Context, native: bool) -> model.Plan:
    """The sidecar listens on 9081, or behind an agent that stays. Raises `Refusal` where no agent is to be expected."""
    site, agent = asked.site, find_agent(asked.pod)
    if not agent.expected or not site.is_kserve:
        raise Reason.NO_KSERVE_AGENT()
    _check_http(site)
    grpc = site.taken_grpc
    if grpc is not None:
        by_port.check(site, grpc)
    ports = asked.ports()
    listen = ports.take() if agent.stays else ports.take(KSERVE_AGENT_PORT, may_be_agents=True)
    if not agent.stays and listen != KSERVE_AGENT_PORT:
        raise Reason.AGENT_PORT_TAKEN(port=KSERVE_AGENT_PORT)
    admin = ports.take(asked.config.admin_port)
    steps = [
        "KServe's agent is left out: its annotation internal.serving.kserve.io/batcher is removed",
        f"the sidecar listens on {listen}, where KServe's Service sends",
    ]
    if agent.stays:
        steps = [
            "KServe's agent stays on 9081 for what else it does, and its batcher is switched off",
            f"the agent sends to the sidecar on {listen}, and the sidecar to the app",
        ]
    moves = []
    if grpc is not None:
        moves = [by_port.swap(grpc, ports.take())]
        steps += [by_port.step(site, grpc, moves[0].new), f"the sidecar listens on {grpc.port} for gRPC"]
    return asked.plan("kserve-agent", native, (listen, admin, grpc.port if grpc else None), steps, moves)


def _check_http(site: sites.Site) -> None:
    """Raises `Refusal` for an app that is entered by gRPC, which KServe's agent does not speak."""
    if site.by_grpc:
        raise Reason.AGENT_SPEAKS_HTTP(port=site.grpc.port if site.grpc else site.port, container=site.container.name)


def apply_agent(draft: Draft, planned: model.Plan, pod: pods.Pod) -> None:
    """Switch KServe's batcher off, and send what an agent that stays passes on to the sidecar."""
    agent = find_agent(pod)
    draft.unannotate(pods.BATCHER)
    if agent.present and not agent.stays:
        draft.remove("containers", pods.AGENT)
    elif agent.present:
        container = draft.container(pods.AGENT)
        container["args"] = edits.without_flags(container.get("args") or [], _BATCHER_FLAGS)
        for at, before, _ in list(command_lines.flag_values(container["args"], _PORT_FLAG)):
            container["args"][at] = f"{before}{planned.listen_port}"


def taken_batcher(pod: pods.Pod, planned: model.Plan) -> str | None:
    """The value of KServe's annotation, to give it back one day; None where it is left to KServe.

    KServe looks at its presence only, so a long one is not kept; and a batcher that only the agent's arguments show is
    given back as that annotation, without which nothing would say any more that there was one.
    """
    if planned.takeover not in ("kserve-agent", "queue-proxy"):
        return None
    value = pod.metadata.annotations.get(pods.BATCHER)
    if value is None:
        return "true" if find_agent(pod).batches else None
    return "true" if len(value) > _KEPT else value


def revert_agent(draft: Draft, done: pod_annotations.Injected) -> None:
    """Give KServe its annotation back (its webhook adds the agent again), and let the agent send to the app."""
    if done.batcher is not None:
        draft.annotate(pods.BATCHER, done.batcher)
    if draft.has(pods.AGENT):
        edits.change_flag_port(draft.container(pods.AGENT), _PORT_FLAG, done.listen_port, done.app_port)


PROBE = "SERVING_READINESS_PROBE"


def plan_queue_proxy(asked: Context, native: bool) -> model.Plan:
    """queue-proxy sends to the sidecar. Raises `Refusal` where it is not there."""
    site = asked.site
    if asked.pod.queue_proxy is None:
        raise Reason.NO_QUEUE_PROXY()
    stays = find_agent(asked.pod).stays
    if stays:
        _check_http(site)
    ports = asked.ports()
    listen = ports.take() if stays else ports.take(asked.config.port, may_be_agents=True)
    admin = ports.take(asked.config.admin_port)
    rpc = ports.take() if site.by_grpc else None  # Knative lets one port of a pod through
    sender = "KServe's agent, which stays," if stays else "queue-proxy"
    reached = site.grpc.port if site.grpc else None
    calls, to = ("gRPC to the sidecar on", reached) if rpc else ("to the sidecar on", site.port)
    steps = (
        f"{sender} sends {calls} {rpc or listen}, and the sidecar to the app on {to}",
        "queue-proxy's readiness probe asks the sidecar, which asks the app with the probe it had",
    )
    return asked.plan("queue-proxy", native, (listen, admin, rpc), steps)


def apply_queue_proxy(draft: Draft, planned: model.Plan, pod: pods.Pod) -> str | None:
    """Put the sidecar behind queue-proxy (or an agent that stays). Returns the probe that asked the app."""
    agent = find_agent(pod)
    apply_agent(draft, planned, pod)
    queue = draft.container(pods.QUEUE_PROXY)
    probe = _ask_sidecar(queue, planned.admin_port)
    if not (agent.present and agent.stays):
        edits.set_variable(queue, pods.USER_PORT, str(planned.grpc_listen_port or planned.listen_port))
        return probe
    # KServe copied queue-proxy's variables into its agent, as they were at that moment: make both moments the same.
    behind = draft.container(pods.AGENT)
    if edits.variable(behind, pods.USER_PORT) is not None:
        edits.set_variable(behind, pods.USER_PORT, str(planned.app_port))
    _ask_sidecar(behind, planned.admin_port)
    return probe


def _ask_sidecar(container: model.Object, admin_port: int) -> str | None:
    """Let queue-proxy, or an agent with a copy of its variables, ask the sidecar. Returns whom it asked before."""
    probe = _probe(edits.variable(container, PROBE))
    if probe is not None:
        edits.set_variable(container, PROBE, _probe_of_sidecar(admin_port, probe))
    return probe


def _probe(text: str | None) -> str | None:
    """The probe's text, if it is one a sidecar can make: it does not start with anything else, exec probes included."""
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    probes = found if isinstance(found, list) else [found]
    is_usable = all(isinstance(probe, dict) and probe and not probe.get("exec") for probe in probes)
    return text if probes and is_usable else None


def _probe_of_sidecar(admin_port: int, instead_of: str) -> str:
    """In a list where there was one (ENABLE_MULTI_CONTAINER_PROBES)."""
    action = {"path": "/readyz", "port": admin_port, "host": "127.0.0.1", "scheme": "HTTP"}
    text = json.dumps({"httpGet": action, "successThreshold": 1}, separators=(",", ":"))
    return f"[{text}]" if instead_of.lstrip().startswith("[") else text


def revert_queue_proxy(draft: Draft, done: pod_annotations.Injected) -> None:
    """Let queue-proxy send to the app and probe it again."""
    revert_agent(draft, done)
    if not draft.has(pods.QUEUE_PROXY):
        return
    queue = draft.container(pods.QUEUE_PROXY)
    ours, apps = done.listen_port, done.app_port
    if done.grpc_listen_port and done.grpc_app_port:
        ours, apps = done.grpc_listen_port, done.grpc_app_port
    if edits.variable(queue, pods.USER_PORT) == str(ours) and not _is_agents(draft, done):
        edits.set_variable(queue, pods.USER_PORT, str(apps))
    probe = edits.variable(draft.sidecar() or {}, PROBE)
    for container in (queue, *([draft.container(pods.AGENT)] if draft.has(pods.AGENT) else [])):
        if probe is not None and edits.variable(container, PROBE) == _probe_of_sidecar(done.admin_port, probe):
            edits.set_variable(container, PROBE, probe)


def _is_agents(draft: Draft, done: pod_annotations.Injected) -> bool:
    """Whether USER_PORT means an agent that stays, which happens to be where a sidecar would listen as well."""
    agent = draft.container(pods.AGENT) if draft.has(pods.AGENT) else {}
    return is_agent(agent.get("args") or ()) and done.listen_port == KSERVE_AGENT_PORT


def concurrency(pod: pods.Pod) -> int:
    """How many requests queue-proxy lets through at once; 0: any number."""
    queue = pod.queue_proxy
    value = queue.variable("CONTAINER_CONCURRENCY") if queue else None
    return command_lines.whole(value, digits=9) or 0
