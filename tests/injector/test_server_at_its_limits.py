"""The webhook's server at its limits: the last review and byte there is room for, bodies too large or too late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from carpool_injector.core import refusals
from carpool_injector.objects import review
from carpool_injector.webhook import connections, metrics, options, server
from tests.injector import reviews
from tests.injector.metric_samples import sample


async def at_once(_: review.Request) -> review.Answer:
    return review.Answer()


def a_server(handler: server.Handler = at_once, **limits: Any) -> tuple[server.Server, metrics.Metrics]:
    counts = metrics.Metrics()
    return server.Server({"/mutate": handler}, counts, list, options.Options(**limits)), counts


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    yield body


# --- Capacity


def test_room_is_there_up_to_the_last_review_and_the_last_byte() -> None:
    place = server.Capacity(reviews=2, held_bytes=100)
    with place.take(40), place.take(60):
        assert (place.taken, place.taken_bytes) == (2, 100)
        with pytest.raises(refusals.Unanswered, match="2 reviews are at work"), place.take(0):
            pass
    with place.take(100), pytest.raises(refusals.Unanswered, match="100 bytes"), place.take(1):
        pass
    assert (place.taken, place.taken_bytes) == (0, 0)


# --- The server


@pytest.mark.parametrize("spare", [0, -1])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_may_have_exactly_as_many_bytes_as_are_allowed(spare: int, chunked: bool) -> None:
    body = json.dumps(reviews.asking()).encode()
    subject, _ = a_server(max_body_bytes=len(body) + spare)
    async with reviews.serving(subject) as endpoint:
        answer = await endpoint.post("/mutate", in_pieces(body) if chunked else body)
        assert answer.status == (413 if spare else 200)


async def test_a_body_of_unknown_length_holds_room_for_the_largest() -> None:
    seen: list[float | None] = []

    async def look(_: review.Request) -> review.Answer:
        seen.append(sample(counts, "held_bytes"))
        return review.Answer()

    subject, counts = a_server(look, max_body_bytes=50_000)
    async with reviews.serving(subject) as endpoint:
        await endpoint.post("/mutate", in_pieces(json.dumps(reviews.asking()).encode()))
    assert seen == [50_000]


@pytest.mark.parametrize(
    ("headers", "length", "status", "closes"),
    [
        ({"Content-Type": "text/yaml"}, 10, 415, True),
        ({"Content-Encoding": "gzip"}, 10, 415, True),
        ({}, 20_001, 413, True),
        ({}, 10, 400, False),
    ],
)
async def test_a_connection_whose_body_was_not_read_is_closed_and_any_other_kept(
    headers: dict[str, str], length: int, status: int, closes: bool
) -> None:
    subject, _ = a_server(max_body_bytes=20_000)
    async with reviews.serving(subject) as endpoint:
        answer = await endpoint.post("/mutate", b"x" * length, headers=headers)
        assert (answer.status, answer.headers.get("Connection") == "close") == (status, closes)


async def test_a_review_for_which_there_is_no_room_gets_503_on_a_connection_that_is_closed() -> None:
    subject, _ = a_server(max_concurrent=0)
    async with reviews.serving(subject) as endpoint:
        answer = await endpoint.post("/mutate", reviews.asking())
        assert (answer.status, answer.headers.get("Connection")) == (503, "close")


@pytest.mark.looptime
async def test_a_body_that_came_too_late_closes_its_connection() -> None:
    async def begun() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(1000)

    subject, _ = a_server()
    async with reviews.serving(subject) as endpoint:
        answer = await endpoint.post("/mutate?timeout=1m", begun())
        assert (answer.status, answer.headers.get("Connection")) == (408, "close")


async def test_readiness_is_counted_as_it_was_told() -> None:
    subject, counts = a_server()
    async with reviews.serving(subject) as endpoint:
        assert (await endpoint.get("/readyz"))[0] == 200
        assert sample(counts, "ready") == 1
        subject.draining = True
        assert (await endpoint.get("/readyz"))[0] == 503
        assert sample(counts, "ready") == 0


@pytest.mark.parametrize(("text", "seconds"), [("2m", 120), ("10s junk", None), ("x10s", None), ("1h", None)])
def test_a_duration_is_read_whole_or_not_at_all(text: str, seconds: float | None) -> None:
    assert server.seconds(text) == seconds


@pytest.mark.looptime
async def test_an_idle_connection_is_kept_for_longer_than_gos_client_keeps_it() -> None:
    subject, _ = a_server()
    async with reviews.serving(subject) as endpoint:
        host, _, port = endpoint.url.removeprefix("https://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=endpoint.tls)
        for _ in range(2):
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(95)
        writer.close()
        await writer.wait_closed()


@pytest.mark.looptime
async def test_a_body_that_is_announced_as_too_large_is_not_waited_for() -> None:
    subject, _ = a_server()
    async with reviews.serving(subject) as endpoint:
        host, _, port = endpoint.url.removeprefix("https://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=endpoint.tls)
        head = "POST /mutate HTTP/1.1", "Host: x", "Content-Type: application/json", "Content-Length: 9999999999"
        writer.write("\r\n".join([*head, "", ""]).encode())
        assert b" 413 " in await reader.readline()
        await reader.read()
        writer.close()


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("size", "kind", "trimmed"),
    [(300_000, "AdmissionReview", 1), (300_000, "Nonsense", 1), (1_000, "AdmissionReview", 0)],
)
async def test_memory_is_given_back_after_a_large_review_whatever_came_of_it(
    monkeypatch: pytest.MonkeyPatch, size: int, kind: str, trimmed: int
) -> None:
    times: list[int] = []
    monkeypatch.setattr(connections, "give_back", lambda: times.append(1))
    subject, _ = a_server()
    padded = {**reviews.asking(), "kind": kind}
    padded["request"]["options"]["padding"] = "x" * size
    async with reviews.serving(subject) as endpoint:
        assert (await endpoint.post("/mutate", padded)).status == (400 if kind == "Nonsense" else 200)
        await asyncio.sleep(5)
    assert len(times) == trimmed
