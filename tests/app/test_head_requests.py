"""HEAD asks for what GET would be told, without the body (RFC 9110, section 9.3.2): the sidecar's own answers too."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import pytest

from tests.app.conftest import Bench

Start = Callable[..., Awaitable[Bench]]

pytestmark = pytest.mark.looptime

PREDICTORS_OWN = "/v1/models/m"


@pytest.fixture
async def bench(sidecar_of: Start) -> Bench:
    return await sidecar_of(max_latency=0, quiet_period=0)


def parted(answer: bytes) -> tuple[bytes, bytes]:
    """The head without its date, and the body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return re.sub(rb"\r\nDate: [^\r]*", b"", head), body


async def check(bench: Bench, target: str, headers: str, status: bytes) -> None:
    get, body = parted(await bench.raw("GET", target, headers))
    head, nothing = parted(await bench.raw("HEAD", target, headers))
    assert get.split()[1] == status
    assert body
    assert b"\r\nContent-Length: %d" % len(body) in get
    assert nothing == b""
    assert _fields(head) == _fields(get)


def _fields(head: bytes) -> list[bytes]:
    """The status line, then the fields in any order, their names in any case."""
    first, *fields = head.split(b"\r\n")
    pairs = (field.partition(b": ") for field in fields)
    return [first, *sorted(name.lower() + b": " + value for name, _, value in pairs)]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("K-Network-Probe: queue\r\n", b"200"),
        ("K-Network-Probe: probe\r\n", b"400"),
        ("K-Network-Probe: unknown\r\n", b"400"),
    ],
)
async def test_a_probe_by_head_is_told_the_same_without_a_body(bench: Bench, headers: str, status: bytes) -> None:
    await check(bench, "/", headers, status)
    assert bench.predictor.seen == []


async def test_a_prober_by_head_is_told_of_the_end_without_a_body(bench: Bench) -> None:
    bench.sidecar.life.draining = True
    await check(bench, "/", "User-Agent: kube-probe/1.34\r\n", b"503")


async def test_the_sidecars_own_errors_come_without_a_body(bench: Bench) -> None:
    bench.predictor.behave = lambda seen, request: request.transport.close()  # type: ignore[union-attr,func-returns-value]
    await check(bench, PREDICTORS_OWN, "", b"502")


async def test_what_follows_on_the_same_connection_is_not_taken_for_a_body(bench: Bench) -> None:
    """A client that gets a body where there must be none reads it as its next answer."""
    probe = "K-Network-Probe: other\r\n"
    answers = await bench.raw("HEAD", "/", f"{probe}\r\nGET /next HTTP/1.1\r\nHost: h\r\n")
    before, first, second = answers.split(b"HTTP/1.1 ")
    assert before == b""
    assert first.startswith(b"400 ")
    assert first.endswith(b"\r\n\r\n")
    assert second.startswith(b"200 ")
    assert [seen.target for seen in bench.predictor.seen] == ["/next"]


async def test_models_of_a_v2_predictor_are_told_of_by_head_without_a_body(sidecar_of: Start) -> None:
    bench = await sidecar_of(upstream="triton-http")
    for target in (PREDICTORS_OWN, "/v1/models/m?x=y"):
        await check(bench, target, "", b"200")
