"""Probes on the data port, as KServe's agent answers them, and v1's questions about models for a v2 predictor."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import pytest
from multidict import CIMultiDict

from carpool_sidecar import errors
from carpool_sidecar.protocols import models
from carpool_sidecar.server import local_answers
from carpool_sidecar.server.http1 import handler
from carpool_sidecar.upstream import readiness
from tests.server import front
from tests.server.bodies_site import Arriving, Site

CASES = [
    # headers, ready, draining; status, headers of the answer but its type, body
    ({"K-Network-Probe": "queue"}, True, False, 200, {}, b"queue"),
    ({"K-Network-Probe": "queue"}, False, False, 503, {}, b"queue not ready\n"),
    ({"k-network-probe": "queue"}, True, True, 503, {}, b"shutting down\n"),
    ({"K-Network-Probe": "probe", "K-Network-Hash": "h"}, False, False, 200, {"K-Network-Hash": "h"}, b""),
    ({"K-Network-Probe": "probe", "K-Network-Hash": "h"}, True, True, 503, {}, b"shutting down\n"),
    ({"K-Network-Probe": "probe", "K-Network-Hash": "\udcff"}, True, False, 400, {}, b"is not valid UTF-8\n"),
    ({"K-Network-Probe": "probe"}, True, False, 400, {}, b"must contain a non-empty"),
    ({"K-Network-Probe": "probe", "K-Network-Hash": ""}, True, False, 400, {}, b"must contain a non-empty"),
    ({"K-Network-Probe": "Queue"}, True, False, 400, {}, b'unexpected probe header value: "Queue"\n'),
    ({"K-Network-Probe": ""}, True, False, 400, {}, b'unexpected probe header value: ""\n'),
    ({"K-Network-Probe": "\udcff"}, True, False, 400, {}, b'unexpected probe header value: "?"\n'),
]


@pytest.mark.parametrize(("sent", "ready", "draining", "status", "headers", "body"), CASES)
async def test_what_probes_are_told(
    sent: dict[str, str], ready: bool, draining: bool, status: int, headers: dict[str, str], body: bytes
) -> None:
    async def is_ready() -> bool:
        return ready

    answer = await local_answers.probe_answer(CIMultiDict(sent), draining, is_ready)
    stated = dict(answer.headers)
    assert answer.status == status
    assert stated.pop("Content-Type", None) == ("text/plain; charset=utf-8" if answer.body else None)
    assert stated == headers
    assert body in answer.body
    assert bool(body) is bool(answer.body)


async def test_only_the_readiness_probe_asks_the_predictor() -> None:
    async def is_ready() -> bool:
        raise AssertionError("was asked")

    for kind in ("probe", "other"):
        await local_answers.probe_answer(CIMultiDict({"K-Network-Probe": kind, "K-Network-Hash": "h"}), False, is_ready)
    await local_answers.probe_answer(CIMultiDict({"K-Network-Probe": "queue"}), True, is_ready)


async def test_nothing_of_a_probes_body_is_kept_while_the_predictor_is_asked(site: Site) -> None:
    class Asked:
        is_asked, was_left = asyncio.Event(), asyncio.Event()

        async def check(self) -> bool:
            self.is_asked.set()
            try:
                return await asyncio.Event().wait()
            finally:
                self.was_left.set()

    ready, before = Asked(), front.Front(1)
    answering = handler.Handler(before.rules, None, before.relays, cast(readiness.Readiness, ready))
    request = Arriving(site, 300_000, K_Network_Probe="queue")
    request.feed(bytes(100_000))
    answering.begin(request.asked)
    await ready.is_asked.wait()
    request.feed(bytes(100_000))
    assert request.asked.unread.size == 0
    assert request.asked.wants_more
    request.asked.lost()
    await ready.was_left.wait()
    await before.close()


@pytest.mark.parametrize(
    ("agent", "is_prober"),
    [
        ("kube-probe/1.30", True),
        ("Knative-Activator-Probe", True),
        ("kube-probe", False),
        ("curl kube-probe/1", False),
        ("", False),
    ],
)
def test_probers_are_known_by_their_agent(agent: str, is_prober: bool) -> None:
    assert local_answers.comes_from_prober(CIMultiDict({"User-Agent": agent})) is is_prober
    assert not local_answers.comes_from_prober(CIMultiDict())
    assert not local_answers.is_probe(CIMultiDict({"User-Agent": agent}))


class Questions:
    """A predictor with a model that is ready, and one that is not."""

    def __init__(self) -> None:
        self.asked: list[models.ModelName] = []
        self.error: errors.CarpoolError | None = None

    async def model_ready(self, name: models.ModelName) -> bool:
        self.asked.append(name)
        if self.error is not None:
            raise self.error
        return name.name == "ready"

    async def models(self) -> list[str]:
        return ["ready", "b c"]


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        ("/v1/models", 200, {"models": ["ready", "b c"]}),
        ("/v1/models/ready", 200, {"name": "ready", "ready": True}),
        ("/v1/models/ready/versions/2?x=1", 200, {"name": "ready", "ready": True}),
        ("http://host/v1/models/b%20c", 503, {"name": "b c", "ready": False}),
    ],
)
async def test_readiness_is_told_in_v1s_words(target: str, status: int, body: object) -> None:
    v1_models = local_answers.V1Models(Questions())
    assert v1_models.answers("GET", target)
    assert v1_models.answers("HEAD", target)
    answer = await v1_models.answer(target)
    assert (answer.status, json.loads(answer.body)) == (status, body)


@pytest.mark.parametrize(
    ("method", "target"),
    [("POST", "/v1/models/m"), ("GET", "/v2/models"), ("GET", "/v1/models/m:predict"), ("GET", "/v1/modelsx")],
)
def test_nothing_else_is_answered(method: str, target: str) -> None:
    assert not local_answers.V1Models(Questions()).answers(method, target)


@pytest.mark.parametrize(("is_http", "name"), [(True, ("b%20c", "1%2F2")), (False, ("b c", "1/2"))])
async def test_the_predictor_is_asked_by_names_as_its_protocol_has_them(is_http: bool, name: tuple[str, str]) -> None:
    questions = Questions()
    await local_answers.V1Models(questions, is_http).answer("/v1/models/b%20c/versions/1%2F2")
    assert questions.asked == [models.ModelName(*name)]


async def test_a_predictor_that_cannot_be_asked_is_told_as_such() -> None:
    questions = Questions()
    questions.error = errors.UpstreamUnreachable()
    answer = await local_answers.V1Models(questions).answer("/v1/models/m")
    assert (answer.status, json.loads(answer.body)) == (502, {"error": "the predictor cannot be reached"})
