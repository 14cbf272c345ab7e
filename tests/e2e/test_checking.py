"""The client that checks every answer notices what it is there to notice, against servers that do all of it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import test_utils, web

from e2e.live import checking, questions, reports

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PATH = "/v1/models/echo:predict"


async def run(handler: Handler, answers: int = 50, **settings: Any) -> reports.Report:
    """What a load sees of a server, once so many requests were over."""
    app = web.Application()
    app.router.add_post(PATH, handler)
    async with test_utils.TestServer(app) as server:
        return await asyncio.to_thread(observe, f"http://127.0.0.1:{server.port}", answers, settings)


def observe(url: str, answers: int, settings: dict[str, Any]) -> reports.Report:
    load = checking.Load(url, "echo.example.com", PATH, **{"callers": 8, "rate": 0, "seed": None, **settings})
    with checking.running(load):
        while load.report.requests < answers:
            load.wait_for_right(1)
    return load.report


async def instances_of(request: web.Request) -> list[Any]:
    found: list[Any] = (await request.json())["instances"]
    return found


def predictions(found: list[Any]) -> web.Response:
    return web.json_response({"predictions": found})


async def echo(request: web.Request) -> web.Response:
    return predictions(await instances_of(request))


def now_and_then(strange: Handler, every: int = 5) -> Handler:
    """Echoes, but lets every fifth request be answered otherwise."""
    count = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        return await (strange if count % every == 0 else echo)(request)

    return handle


async def test_answers_that_belong_to_their_questions_are_right() -> None:
    report = await run(echo)
    assert report.right == report.requests >= 50
    assert report.wrong == report.failed == {}
    assert report.resent == 0


async def test_a_server_that_mixes_up_two_callers_is_noticed() -> None:
    kept: list[list[Any]] = []

    async def give_of_another(request: web.Request) -> web.Response:
        kept.append(await instances_of(request))
        other = kept[-2] if len(kept) > 1 else kept[-1]
        return predictions((other * questions.MOST_INSTANCES)[: len(kept[-1])])

    report = await run(now_and_then(give_of_another))
    assert report.wrong.get("mixed", 0) >= 5
    assert report.right + report.wrong["mixed"] == report.requests


async def test_one_swapped_pair_of_instances_is_noticed() -> None:
    async def swap(request: web.Request) -> web.Response:
        found = await instances_of(request)
        return predictions([*found[1:], found[0]])

    report = await run(now_and_then(swap, every=2))
    assert report.wrong.keys() == {"mixed"}


async def test_an_instance_that_went_through_a_float_is_noticed() -> None:
    async def round_numbers(request: web.Request) -> web.Response:
        found = json.loads(await request.text(), parse_int=float)["instances"]
        return predictions(found)

    report = await run(now_and_then(round_numbers, every=2))
    assert report.wrong.keys() == {"altered"}


async def test_too_few_predictions_are_noticed() -> None:
    async def drop_one(request: web.Request) -> web.Response:
        return predictions((await instances_of(request))[1:])

    report = await run(now_and_then(drop_one))
    assert report.wrong.keys() == {"short"}


@pytest.mark.parametrize("body", ["Bad Gateway", "{}", "[]", '{"predictions": 3}', '{"predictions": [1'])
async def test_a_success_that_cannot_be_read_is_wrong_and_no_failure(body: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=body)

    report = await run(now_and_then(answer))
    assert report.wrong.keys() == {"unreadable"}
    assert report.failed == {}


async def test_failures_are_counted_by_status_with_their_words() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": "shutting down"}, status=503)

    report = await run(now_and_then(refuse))
    assert report.failed.keys() == {"503"}
    assert '503 {"error": "shutting down"}' in report.words
    assert report.wrong == {}


async def test_an_answer_that_is_cut_off_is_a_failure() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "1000"})
        await answer.prepare(request)
        await answer.write(b'{"predictions": [')
        assert request.transport is not None
        request.transport.abort()
        return answer

    report = await run(now_and_then(cut))
    assert set(report.failed) <= {"answer cut off", "connection reset"}
    assert sum(report.failed.values()) >= 5


async def test_a_kept_connection_that_is_lost_before_an_answer_is_tried_again_once_and_counted() -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    report = await run(now_and_then(hang_up), callers=1)
    assert report.failed == {}
    assert report.resent >= 5


async def test_a_new_connection_that_is_lost_before_an_answer_is_a_failure() -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async def answer_and_close(request: web.Request) -> web.StreamResponse:
        answer = await echo(request)
        answer.force_close()
        return answer

    count = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        return await (hang_up if count % 5 == 0 else answer_and_close)(request)

    report = await run(handle)
    assert report.failed.keys() <= {"hung up", "connection reset"}
    assert sum(report.failed.values()) >= 5
    assert report.resent == 0


async def test_the_rate_of_requests_can_be_limited() -> None:
    report = await run(echo, answers=20, rate=40)
    assert 20 <= report.requests <= 40 * report.seconds + 9


async def test_no_answer_at_all_is_told_with_the_report() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=503, text="nobody is ready")

    app = web.Application()
    app.router.add_post(PATH, refuse)
    async with test_utils.TestServer(app) as server:
        waiting = asyncio.to_thread(wait_in_vain, f"http://127.0.0.1:{server.port}")
        with pytest.raises(TimeoutError, match="nobody is ready"):
            await waiting


def wait_in_vain(url: str) -> None:
    load = checking.Load(url, "echo.example.com", PATH, callers=1, rate=0, seed=None)
    with checking.running(load):
        load.wait_for_right(1, within=0.3)


async def test_counting_begins_when_answers_are_right() -> None:
    asked = 0

    async def not_found_at_first(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=404) if asked <= 20 else await echo(request)

    app = web.Application()
    app.router.add_post(PATH, not_found_at_first)
    async with test_utils.TestServer(app) as server:
        report = await asyncio.to_thread(settle, f"http://127.0.0.1:{server.port}")
    assert report.failed == {}
    assert report.right == report.requests >= 10
    assert asked >= 20 + checking.SETTLED + report.requests


def settle(url: str) -> reports.Report:
    with checking.load(url, "echo.example.com", PATH) as load:
        load.wait_for_right(10)
    return load.report


def test_no_two_instances_are_alike_and_all_sorts_occur() -> None:
    chance = random.Random(8)
    asked = [questions.ask(chance) for _ in range(300)]
    texts = [text for question in asked for text in question.texts]
    assert len(set(texts)) == len(texts)
    assert {type(json.loads(text)) for text in texts} == {str, int, list, dict}
    assert {len(question.texts) for question in asked} == set(range(1, questions.MOST_INSTANCES + 1))


def outcomes(*facts: tuple[float, float, str]) -> tuple[reports.Outcome, ...]:
    return tuple(reports.Outcome(*each) for each in facts)


def test_the_worst_gap_is_the_longest_time_without_a_right_answer() -> None:
    seen = outcomes((0, 1, "right"), (1, 1.5, "right"), (1.5, 2, "503"), (4, 4.5, "right"))
    report = reports.Report(seen, seconds=5)
    assert report.worst_gap == 3
    assert reports.Report(seen[:2], seconds=9).worst_gap == 7.5


def test_recovery_counts_from_the_fault_to_the_last_failure() -> None:
    seen = outcomes((0, 1, "503"), (1, 2, "right"), (2, 3, "502"), (2.5, 4, "hung up"), (5, 6, "right"))
    report = reports.Report(seen, seconds=6)
    assert report.recovery(since=2.5) == 1.5
    assert report.recovery(since=5) == 0
    assert report.by_second() == [(0, 0), (0, 1), (1, 0), (0, 1), (0, 1), (0, 0)]
