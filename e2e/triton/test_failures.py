"""A fault affects the callers that it belongs to: of a bad row, of a deadline that passed, while Triton is away."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import numpy as np
import pytest

from e2e import skips
from e2e.triton import clients, http_requests, repository, servers
from e2e.triton import sidecar as sidecar_

# Liberties of Triton's that the sidecar does not take, as nobody could say what the request means; it answers 400.
STRICTER = {"inputs twice", "a byte order mark", 'BYTES "\udcff"'}
# What Triton refuses and the sidecar makes possible.
POSSIBLE = {"33 rows"}
Answer = tuple[int, str | None, bytes]  # status, bytes of JSON if not all of them, body


@pytest.mark.parametrize("kind", ["http.aio", "grpc.aio"])
@pytest.mark.parametrize(("mark", "words"), [(666, "a row is marked"), (400, "a row is refused")])
async def test_only_the_caller_of_the_marked_row_fails(
    target: clients.Target, kind: str, mark: float, words: str
) -> None:
    async with clients.connected(kind, target, 16) as client:

        async def ask(number: int) -> str | None:
            rows = np.float32([[mark if number == 5 else number]])
            try:
                answer = await client.infer("marked", {"rows": rows}, request_id=str(number))
            except clients.Refused as refused:
                return refused.message()
            np.testing.assert_array_equal(answer.as_numpy("rows_out"), rows)
            return None

        for _ in range(3):
            results = await asyncio.gather(*map(ask, range(16)))
            assert [number for number, result in enumerate(results) if result] == [5]
            assert words in results[5]


async def test_right_and_wrong_questions_at_once_get_what_they_get_alone(
    triton: servers.Server, front: sidecar_.Sidecar
) -> None:
    """Every request of `http_requests`, all at the same time, so that the wrong ones are in batches with right ones."""
    known = [*http_requests.RIGHT, *http_requests.WRONG]
    async with aiohttp.ClientSession() as session:
        alone = [await _post(session, triton.http, asked) for asked in known]
        for round_ in range(3):
            mixed = random.Random(round_).sample(range(len(known)), len(known))
            found = await asyncio.gather(*(_post(session, front.http, known[number]) for number in mixed))
            for number, answer in zip(mixed, found, strict=True):
                _assert_same(known[number], answer, alone[number])


@pytest.mark.parametrize("asked", [*http_requests.RIGHT, *http_requests.ROUNDED, *http_requests.WRONG], ids=str)
async def test_each_question_gets_from_the_sidecar_what_it_gets_from_triton(
    triton: servers.Server, front: sidecar_.Sidecar, asked: http_requests.InferRequest
) -> None:
    async with aiohttp.ClientSession() as session:
        alone = await _post(session, triton.http, asked)
        _assert_same(asked, await _post(session, front.http, asked), alone)


class TestDeadlines:
    async def test_a_callers_own_deadline_is_kept_over_grpc(self, target: clients.Target) -> None:
        async with clients.connected("grpc.aio", target) as client:
            with pytest.raises(clients.Refused) as refused:
                await client.infer("slow", {"rows": np.float32([[1]])}, client_timeout=0.003)
            assert refused.value.status() == "StatusCode.DEADLINE_EXCEEDED"

    async def test_who_gives_up_does_not_disturb_the_others(self, target: clients.Target) -> None:
        async with clients.connected("grpc.aio", target) as client:

            async def ask(number: int) -> bool:
                rows = np.float32([[number]])
                timeout = 0.005 if number % 2 else 30
                try:
                    answer = await client.infer("slow", {"rows": rows}, client_timeout=timeout)
                except clients.Refused:
                    return False
                np.testing.assert_array_equal(answer.as_numpy("rows_out"), rows)
                return True

            answered = await asyncio.gather(*map(ask, range(40)))
            assert all(answered[::2])
            assert not all(answered)

    async def test_the_servers_deadline_reaches_the_caller(self, front: sidecar_.Sidecar) -> None:
        body = json.dumps({"inputs": [http_requests.rows()]})
        url = f"http://{front.http}/v2/models/slow/infer"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=body, headers={"carpool-timeout-ms": "3"}) as answer,
        ):
            assert answer.status == 504
            assert list(await answer.json()) == ["error"]


class TestTritonAway:
    """Triton of these tests' own, that dies under load and comes back."""

    MODELS = tuple(model for model in repository.MODELS if model.name == "identity")

    @pytest.fixture
    def mortal(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
        with skips.where_unavailable():
            server = servers.Triton(tmp_path_factory.mktemp("mortal"), self.MODELS)
        with servers.running(server):
            yield server

    async def test_no_answer_is_wrong_failures_are_honest_and_it_recovers(
        self, mortal: servers.Server, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("sidecar")
        with sidecar_.running(folder, mortal, "--max-latency", "2") as front:
            outcomes: list[tuple[float, str]] = []
            ends = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for kind in ("http.aio", "grpc.aio"):
                    for number in range(4):
                        group.create_task(_keep_asking(front, kind, number, outcomes, ends))
                await asyncio.sleep(0.5)
                await asyncio.to_thread(mortal.kill)
                killed = time.monotonic()
                await asyncio.sleep(0.5)
                await asyncio.to_thread(mortal.start)
                back = time.monotonic()
                await asyncio.sleep(8)
                ends.set()
        failed = {text for _, text in outcomes if text}
        assert failed  # it was away
        allowed = ("502", "503", "504", "StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED")
        assert [text for text in failed if not text.startswith(allowed)] == []
        assert not [text for when, text in outcomes if text and when < killed - 15]
        late = [text for when, text in outcomes if when > back + 5]
        assert len(late) > 100
        assert set(late) == {""}


async def _keep_asking(
    front: sidecar_.Sidecar, kind: str, number: int, outcomes: list[tuple[float, str]], ends: asyncio.Event
) -> None:
    """Notes when each question ended, and how: empty, or status and words. Raises if an answer is wrong."""
    chance = random.Random(number)
    async with clients.connected(kind, front) as client:
        while not ends.is_set():
            try:
                await clients.ask_identity(client, chance)
                outcomes.append((time.monotonic(), ""))
            except clients.Refused as refused:
                outcomes.append((time.monotonic(), f"{refused.status()} {refused.message()}"))
            await asyncio.sleep(0.01)


async def _post(session: aiohttp.ClientSession, host: str, asked: http_requests.InferRequest) -> Answer:
    url = f"http://{host}/v2/models/{asked.model}/infer"
    headers = {"Content-Type": "application/json", **asked.headers}
    async with session.post(url, data=asked.body, headers=headers) as answer:
        return answer.status, answer.headers.get(http_requests.JSON_SIZE), await answer.read()


def _assert_same(asked: http_requests.InferRequest, ours: Answer, alone: Answer) -> None:
    """What is right has the same values to the byte; what is wrong is refused, maybe with 400 where Triton says 500."""
    if asked.name in POSSIBLE:
        assert (alone[0], ours[0]) == (400, 200), asked.name
    elif alone[0] != 200 or asked.name in STRICTER:
        assert ours[0] in (alone[0], 400), (asked.name, ours)
        assert list(json.loads(ours[2])) == ["error"], (asked.name, ours)
    else:
        assert ours[0] == 200, (asked.name, ours)
        assert _values(ours) == _values(alone), asked.name


def _values(answer: Answer) -> Any:
    """The JSON with numbers as they are written, and the binary data."""
    size = len(answer[2]) if answer[1] is None else int(answer[1])
    text = answer[2][:size].decode(errors="surrogateescape")
    keep = {"parse_float": str, "parse_int": str, "parse_constant": str}
    found = json.loads(text, **keep)
    if found.get("id") == "":  # which says nothing, and which Triton leaves out
        del found["id"]
    return found, answer[2][size:]
