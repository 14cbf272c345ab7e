"""Probes on the data port, answered as KServe's agent answers them.

Kubelet and Knative's activator probe the port that serves traffic, and recognise the sidecar by these answers
(knative.dev/pkg network/handlers/drain.go, knative.dev/serving pkg/queue/health; the agent container's readiness
probe sends `K-Network-Probe: queue`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from multidict import MultiMapping, istr

from carpool_sidecar.server import dialects
from carpool_sidecar.server import headers as headers_

_PROBER_AGENTS = ("kube-probe/", "Knative-Activator-Probe")
_KIND = istr("K-Network-Probe")
_HASH = "K-Network-Hash"


def is_probe(headers: MultiMapping[str]) -> bool:
    """Whether a request is a probe that asks the sidecar, not the predictor, on any path.

    A kubelet's probe without `K-Network-Probe` is meant for the predictor, whose port the sidecar may have taken over.
    """
    return _KIND in headers


def comes_from_prober(headers: MultiMapping[str]) -> bool:
    """Whether the sender says it is a kubelet or an activator."""
    return headers.get("User-Agent", "").startswith(_PROBER_AGENTS)


async def answer(
    headers: MultiMapping[str], draining: bool, is_ready: Callable[[], Awaitable[bool]]
) -> dialects.Answer:
    """What to say to a probe."""
    if draining:
        return shutting_down()
    kind = headers.get(_KIND)
    if kind == "probe":
        token = headers.get(_HASH)
        if token and not headers_.is_utf8(token):
            return _text(400, f'the "{_HASH}" header is not valid UTF-8')
        if not token:
            return _text(400, f'a probe request must contain a non-empty "{_HASH}" header')
        return dialects.Answer(200, ((_HASH, token),), b"")
    if kind != "queue":
        return _text(400, f'unexpected probe header value: "{kind}"')
    return _text(200, "queue", end="") if await is_ready() else _text(503, "queue not ready")


def shutting_down() -> dialects.Answer:
    """What every prober is told once shutdown began."""
    return _text(503, "shutting down")


def _text(status: int, text: str, end: str = "\n") -> dialects.Answer:
    return dialects.Answer(
        status, (("Content-Type", "text/plain; charset=utf-8"),), (text + end).encode(errors="replace")
    )
