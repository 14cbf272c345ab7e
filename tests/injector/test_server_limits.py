"""What a caller can make the webhook hold or wait for: sizes, times, and how much at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from carpool_injector.core import refusals
from carpool_injector.objects import review
from carpool_injector.webhook import metrics, options, server
from tests.injector import reviews

SMALL = options.Options(max_body_bytes=20_000, max_held_bytes=60_000, max_concurrent=2, body_timeout=10)


class Gate:
    """A handler that answers when it is told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = asyncio.Semaphore(0)

    async def __call__(self, _: review.Request) -> review.Answer:
        self.inside.release()
        await self.open.wait()
        return review.Answer()


async def at_once(_: review.Request) -> review.Answer:
    return review.Answer()


def a_server(
    handler: server.Handler = at_once, limits: options.Options = SMALL
) -> tuple[server.Server, metrics.Metrics]:
    counts = metrics.Metrics()
    return server.Server({"/mutate": handler}, counts, list, limits), counts


async def message(answer: object) -> str:
    return str(json.loads(await answer.read())["message"])  # type: ignore[attr-defined]


async def test_a_body_that_is_too_large_gets_413_before_it_is_read() -> None:
    subject, counts = a_server()
    async with reviews.serving(subject) as endpoint:
        answer = await endpoint.post("/mutate", b" " * 20_001)
        assert answer.status == 413
        assert await message(answer) == "carpool-injector: the body is larger than 20000 bytes"
    assert counts.registry.get_sample_value("carpool_injector_errors_total", {"reason": "too-large"}) == 1


async def test_a_body_of_unknown_length_that_is_too_large_gets_413() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * 10_000

    subject, _ = a_server()
    async with reviews.serving(subject) as endpoint:
        answer = await endpoint.post("/mutate", chunks())
        assert answer.status == 413


@pytest.mark.looptime
async def test_seven_mebibytes_are_taken_by_default() -> None:
    subject, _ = a_server(limits=options.Options())
    padded = reviews.asking()
    padded["request"]["options"]["padding"] = "x" * (7 * 1024 * 1024 - 2_000)
    async with reviews.serving(subject) as endpoint:
        assert (await endpoint.post("/mutate", padded)).status == 200
        assert (await endpoint.post("/mutate", b" " * (7 * 1024 * 1024 + 1))).status == 413


@pytest.mark.looptime
@pytest.mark.parametrize(("query", "allowed"), [("", 10), ("?timeout=3s", 3), ("?timeout=30s", 10), ("?timeout=x", 10)])
async def test_a_body_that_does_not_arrive_gets_408_in_time(query: str, allowed: float) -> None:
    async def begun() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(1000)

    subject, _ = a_server()
    loop = asyncio.get_running_loop()
    async with reviews.serving(subject) as endpoint:
        started = loop.time()
        answer = await endpoint.post(f"/mutate{query}", begun())
        assert answer.status == 408
        assert await message(answer) == f"carpool-injector: the body did not arrive within {allowed:g} s"
        assert allowed <= loop.time() - started < allowed + 5


async def test_more_reviews_than_may_be_at_work_get_503_and_the_others_their_answer() -> None:
    gate = Gate()
    subject, counts = a_server(gate)
    async with reviews.serving(subject) as endpoint:
        held = [asyncio.create_task(endpoint.post("/mutate", reviews.asking())) for _ in range(2)]
        for _ in held:
            await gate.inside.acquire()
        assert counts.registry.get_sample_value("carpool_injector_reviews_in_flight") == 2
        refused = await endpoint.post("/mutate", reviews.asking())
        assert refused.status == 503
        assert "2 reviews are at work already" in await message(refused)
        gate.open.set()
        assert [(await each).status for each in held] == [200, 200]
        assert (await endpoint.post("/mutate", reviews.asking())).status == 200
        assert counts.registry.get_sample_value("carpool_injector_reviews_in_flight") == 0


async def test_probes_answer_while_reviews_fill_the_room() -> None:
    gate = Gate()
    subject, _ = a_server(gate)
    async with reviews.serving(subject) as endpoint:
        held = [asyncio.create_task(endpoint.post("/mutate", reviews.asking())) for _ in range(2)]
        for _ in held:
            await gate.inside.acquire()
        assert await endpoint.get("/livez") == (200, "ok\n")
        gate.open.set()
        assert [(await each).status for each in held] == [200, 200]


def test_room_is_given_back_whatever_happens() -> None:
    place = server.Capacity(reviews=5, held_bytes=100)
    with place.take(60):
        with pytest.raises(refusals.Unanswered, match="60 bytes of reviews are held already; 50 more"), place.take(50):
            pass
        with pytest.raises(ZeroDivisionError), place.take(40):
            raise ZeroDivisionError
    assert (place.taken, place.taken_bytes) == (0, 0)


async def test_a_caller_that_leaves_in_the_middle_of_a_body_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    subject, counts = a_server()

    def at_work() -> float | None:
        return counts.registry.get_sample_value("carpool_injector_reviews_in_flight")

    async with reviews.serving(subject) as endpoint:
        host, _, port = endpoint.url.removeprefix("https://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=endpoint.tls)
        writer.write(
            b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        await reviews.until(lambda: at_work() == 1)
        writer.transport.abort()
        await reviews.until(lambda: at_work() == 0)
    assert counts.registry.get_sample_value("carpool_injector_errors_total", {"reason": "body-broken"}) == 1
    assert not [record for record in caplog.records if record.exc_info]
