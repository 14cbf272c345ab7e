"""What the sidecar answers itself on the data port: probes, and v1's questions about models for a v2 predictor.

Kubelet and Knative's activator probe the port that serves traffic, and recognise the sidecar by answers like those of
KServe's agent (knative.dev/pkg network/handlers/drain.go, knative.dev/serving pkg/queue/health; the agent container's
readiness probe sends `K-Network-Probe: queue`).
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec
from multidict import MultiMapping, istr

from carpool_sidecar import errors
from carpool_sidecar.batching import routes
from carpool_sidecar.protocols import models
from carpool_sidecar.server import headers as headers_
from carpool_sidecar.server import responses

PROBER_AGENTS: Final[tuple[str, str]] = ("kube-probe/", "Knative-Activator-Probe")
_KIND = istr("K-Network-Probe")
_HASH = "K-Network-Hash"
_MODELS = re.compile(r"/v1/models(?:/?|/([^/:]+)(?:/versions/([^/:]+))?)")


def is_probe(headers: MultiMapping[str]) -> bool:
    """Whether a request is a probe that asks the sidecar, not the predictor, on any path.

    A kubelet's probe without `K-Network-Probe` is meant for the predictor, whose port the sidecar may have taken over.
    """
    return _KIND in headers


def comes_from_prober(headers: MultiMapping[str]) -> bool:
    """Whether the sender says it is a kubelet or an activator."""
    return headers.get("User-Agent", "").startswith(PROBER_AGENTS)


async def probe_answer(
    headers: MultiMapping[str], draining: bool, is_ready: Callable[[], Awaitable[bool]]
) -> responses.Response:
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
        return responses.Response(200, ((_HASH, token),), b"")
    if kind != "queue":
        return _text(400, f'unexpected probe header value: "{kind}"')
    return _text(200, "queue", end="") if await is_ready() else _text(503, "queue not ready")


def shutting_down() -> responses.Response:
    """What every prober is told once shutdown began."""
    return _text(503, "shutting down")


def _text(status: int, text: str, end: str = "\n") -> responses.Response:
    return responses.Response(
        status, (("Content-Type", "text/plain; charset=utf-8"),), (text + end).encode(errors="replace")
    )


class Questions(Protocol):
    """Asks the predictor; both raise `errors.UpstreamError`."""

    async def model_ready(self, name: models.ModelName) -> bool: ...

    async def models(self) -> list[str]: ...


class V1Models:
    """Answers GET and HEAD of `/v1/models` and `/v1/models/NAME`.

    Names are asked for with their `%` escapes if that `is_http`, else plain.
    """

    def __init__(self, questions: Questions, is_http: bool = True) -> None:
        self._questions = questions
        self._is_http = is_http

    def answers(self, method: str, target: str) -> bool:
        """Whether this is such a question; `target` as received."""
        return method in ("GET", "HEAD") and _asked(target) is not None

    async def answer(self, target: str) -> responses.Response:
        """The answer to a question."""
        found = _asked(target)
        try:
            if found is None or found[1] is None:
                return _json(200, {"models": await self._questions.models()})
            return await self._model(found[1], found[2] or "")
        except errors.CarpoolError as error:
            return responses.Dialect().error(errors.bare(error))

    async def _model(self, name: str, version: str) -> responses.Response:
        plain = urllib.parse.unquote(name)
        asked = models.ModelName(name, version)
        if not self._is_http:
            asked = models.ModelName(plain, urllib.parse.unquote(version))
        ready = await self._questions.model_ready(asked)
        return _json(200 if ready else 503, {"name": plain, "ready": ready})


def _asked(target: str) -> re.Match[str] | None:
    return _MODELS.fullmatch(routes.origin_form(target).partition("?")[0])


def _json(status: int, value: object) -> responses.Response:
    return responses.Response(status, (("Content-Type", "application/json"),), msgspec.json.encode(value))
