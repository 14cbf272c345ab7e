"""Probes on the data port, as KServe's agent answers them."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from carpool_sidecar.server import health

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

    answer = await health.answer(CIMultiDict(sent), draining, is_ready)
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
        await health.answer(CIMultiDict({"K-Network-Probe": kind, "K-Network-Hash": "h"}), False, is_ready)
    await health.answer(CIMultiDict({"K-Network-Probe": "queue"}), True, is_ready)


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
    assert health.comes_from_prober(CIMultiDict({"User-Agent": agent})) is is_prober
    assert not health.comes_from_prober(CIMultiDict())
    assert not health.is_probe(CIMultiDict({"User-Agent": agent}))
