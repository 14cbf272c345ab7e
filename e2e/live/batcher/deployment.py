"""Puts the services of all sides into the cluster and finds out where each is called."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import urllib.parse
from collections.abc import Iterator, Mapping

from e2e.cluster import client, processes
from e2e.injector import steps
from e2e.live import kubectl as kubectls
from e2e.live.batcher import sides, targets

# Twenty pods at once, on two cores.
READY_SECONDS = 240
ROUTED_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class Deployed:
    """All services on all sides."""

    called: Mapping[tuple[str, str], targets.Target]  # by the key of the side and the name of the service
    tools: Mapping[str, kubectls.Kubectl]  # by the key of the side, in its namespace

    def target(self, side: sides.Side, service: sides.Service) -> targets.Target:
        return self.called[side.key, service.name]


@contextlib.contextmanager
def deployed(admin: client.Client, kubectl: kubectls.Kubectl, ingress: str) -> Iterator[Deployed]:
    """Every service on every side, ready and routed to by the ingress; their namespaces go at the end."""
    with contextlib.ExitStack() as stack:
        tools = {}
        for side in sides.SIDES:
            namespace = _create(side, admin, stack)
            tools[side.key] = kubectls.Kubectl(kubectl.kubeconfig, namespace)
            tools[side.key].apply([sides.recorder_config(), *manifests(side)])
        found: dict[tuple[str, str], targets.Target] = {}
        for side in sides.SIDES:
            found |= _ready(side, tools[side.key], ingress)
        yield Deployed(found, tools)


def manifests(side: sides.Side) -> list[sides.Object]:
    return [sides.inference_service(service, side) for service in sides.SERVICES if service.is_on(side)]


def is_routed(target: targets.Target) -> bool:
    """Whether the ingress leads to the service's predictor now."""
    return asyncio.run(target.send("GET", "/recorded?word=none")).status == 200


def wait_until_routed(target: targets.Target) -> None:
    processes.eventually(lambda: is_routed(target), ROUTED_SECONDS, f"the ingress sends to {target.host}")


def _create(side: sides.Side, admin: client.Client, stack: contextlib.ExitStack) -> str:
    name = f"batcher-{side.key}-{secrets.token_hex(3)}"
    steps.create_namespace(admin, name, dict(side.labels))
    stack.callback(admin.delete, "Namespace", name)
    return name


def _ready(side: sides.Side, kubectl: kubectls.Kubectl, ingress: str) -> dict[tuple[str, str], targets.Target]:
    """Where the side's services are called, all that can start."""
    names = [service.name for service in sides.SERVICES if service.is_on(side) and service.starts_on(side)]
    for name in names:
        kubectl.wait(f"isvc/{name}", "Ready", READY_SECONDS)
    urls = {each["metadata"]["name"]: each["status"].get("url", "") for each in kubectl.list("isvc")}
    found = {}
    for name in names:
        found[side.key, name] = targets.Target(ingress, str(urllib.parse.urlsplit(urls[name]).hostname))
        wait_until_routed(found[side.key, name])
    return found
