"""Knative's queue-proxy: it sends to the port in its variable USER_PORT, the lever that KServe's own agent uses.

Its readiness probe (SERVING_READINESS_PROBE) asked the app. It asks the sidecar instead, which asks the app with that
same probe: else a pod would count as ready before its sidecar is (kserve#5569).
"""

from __future__ import annotations

import json

from carpool_injector.core import edits, model, pods, status
from carpool_injector.core.copy_on_write import Draft
from carpool_injector.core.errors import Refusal
from carpool_injector.core.takeover import context, kserve_agent

QUEUE_PROXY = "queue-proxy"
_PORT = "USER_PORT"
PROBE = "SERVING_READINESS_PROBE"


def plan(asked: context.Context, native: bool) -> model.Plan:
    """queue-proxy sends to the sidecar. Raises `Refusal` where it is not there."""
    site = asked.site
    if asked.pod.container(QUEUE_PROXY) is None:
        raise Refusal(
            "no-takeover", "the pod has no queue-proxy: it is not Knative's", "set carpool.dev/takeover: auto"
        )
    stays = kserve_agent.find(asked.pod).stays
    if stays:
        kserve_agent.check_http(site)
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
    return model.Plan("queue-proxy", native, site.container.name, site.port, listen, admin, steps, reached, rpc)


def apply(draft: Draft, planned: model.Plan, asked: context.Context) -> context.Effects:
    """Put the sidecar between queue-proxy (or an agent that stays) and the app."""
    agent = kserve_agent.find(asked.pod)
    kserve_agent.detach(draft, agent, planned.listen_port)
    queue = draft.container(QUEUE_PROXY)
    probe = _probe(edits.variable(queue, PROBE))
    behind_agent = agent.present and agent.stays
    if not behind_agent:
        edits.set_variable(queue, _PORT, str(planned.grpc_listen_port or planned.listen_port))
    if probe is not None:
        edits.set_variable(queue, PROBE, _ask_sidecar(planned.admin_port, probe))
    if behind_agent:
        _align(draft.container(kserve_agent.AGENT), planned)
    batcher = kserve_agent.batcher(asked.pod)
    return context.Effects(
        context.data_port(planned.listen_port),
        readiness=probe,
        batcher=batcher,
        grpc=context.grpc_port(planned.grpc_listen_port),
    )


def _probe(text: str | None) -> str | None:
    """The probe's text, if it is one a sidecar can make: it does not start with anything else, exec probes included."""
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    probes = found if isinstance(found, list) else [found]
    is_usable = all(isinstance(probe, dict) and probe and not probe.get("exec") for probe in probes)
    return text if probes and is_usable else None


def _ask_sidecar(admin_port: int, instead_of: str) -> str:
    """A probe of the sidecar, in a list where there was one (ENABLE_MULTI_CONTAINER_PROBES)."""
    action = {"path": "/readyz", "port": admin_port, "host": "127.0.0.1", "scheme": "HTTP"}
    text = json.dumps({"httpGet": action, "successThreshold": 1}, separators=(",", ":"))
    return f"[{text}]" if instead_of.lstrip().startswith("[") else text


def _align(agent: model.Object, planned: model.Plan) -> None:
    """KServe copies queue-proxy's variables into its agent, as they are at that moment: make both moments the same."""
    if edits.variable(agent, _PORT) is not None:
        edits.set_variable(agent, _PORT, str(planned.app_port))
    probe = _probe(edits.variable(agent, PROBE))
    if probe is not None:
        edits.set_variable(agent, PROBE, _ask_sidecar(planned.admin_port, probe))


def revert(draft: Draft, done: status.Injected) -> None:
    """Let queue-proxy send to the app and probe it again."""
    kserve_agent.revert(draft, done)
    if not draft.has(QUEUE_PROXY):
        return
    queue = draft.container(QUEUE_PROXY)
    ours, apps = done.listen_port, done.app_port
    if done.grpc_listen_port and done.grpc_app_port:
        ours, apps = done.grpc_listen_port, done.grpc_app_port
    if edits.variable(queue, _PORT) == str(ours) and not _is_agents(draft, done):
        edits.set_variable(queue, _PORT, str(apps))
    probe = edits.variable(draft.sidecar() or {}, PROBE)
    for name in (QUEUE_PROXY, kserve_agent.AGENT):
        if probe is None or not draft.has(name):
            continue
        if edits.variable(draft.container(name), PROBE) == _ask_sidecar(done.admin_port, probe):
            edits.set_variable(draft.container(name), PROBE, probe)


def _is_agents(draft: Draft, done: status.Injected) -> bool:
    """Whether USER_PORT means an agent that stays, which happens to be where a sidecar would listen as well."""
    agents = (item for item in draft.pod["spec"]["containers"] if item.get("name") == kserve_agent.AGENT)
    passes_on = any(kserve_agent.passes_on(agent.get("args") or ()) for agent in agents)
    return passes_on and done.listen_port == context.KSERVE_AGENT_PORT


def concurrency(pod: pods.Pod) -> int:
    """How many requests queue-proxy lets through at once; 0: any number."""
    queue = pod.container(QUEUE_PROXY)
    value = (queue.variable("CONTAINER_CONCURRENCY") if queue else None) or "0"
    return int(value) if value.isascii() and value.isdecimal() else 0
