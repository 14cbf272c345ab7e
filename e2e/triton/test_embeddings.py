"""Clients of OpenAI's embeddings in front of Triton: `--lists openai-embeddings` beside `--upstream`."""

from __future__ import annotations

import asyncio
import base64
import random
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest

from e2e.triton import servers
from e2e.triton import sidecar as sidecar_

Embeds = Callable[..., Any]


@pytest.fixture(scope="module", params=["triton-http", "triton-grpc"])
def front(
    request: pytest.FixtureRequest, triton: servers.Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sidecar_.Sidecar]:
    """The sidecar that makes tensors of texts."""
    folder = tmp_path_factory.mktemp("sidecar")
    options = ("--lists", "openai-embeddings", "--max-latency", "5", "--retry-budget", "100")
    with sidecar_.running(folder, triton, "--upstream", request.param, *options) as started:
        yield started


@pytest.fixture
async def embed(front: sidecar_.Sidecar) -> AsyncIterator[Embeds]:
    """Asks a model for embeddings; gives the status and the vectors, or the error."""
    async with aiohttp.ClientSession() as session:

        async def post(what: object, model: str = "embedder", **members: object) -> tuple[int, Any]:
            body = {"model": model, "input": what, **members}
            async with session.post(f"http://{front.http}/v1/embeddings", json=body) as answer:
                found = await answer.json()
                if answer.status != 200:
                    return answer.status, found["error"]
                assert (found["object"], found["model"]) == ("list", model)
                assert [each["index"] for each in found["data"]] == list(range(len(found["data"])))
                return 200, [each["embedding"] for each in found["data"]]

        yield post


async def test_texts_become_vectors(embed: Embeds) -> None:
    assert await embed("abc") == (200, [[3, 97]])
    assert await embed(["b", "", "é"]) == (200, [[1, 98], [0, 0], [2, 195]])


async def test_base64_is_what_openais_client_reads(embed: Embeds) -> None:
    status, (text,) = await embed("abc", encoding_format="base64")
    assert (status, struct.unpack("<2f", base64.b64decode(text))) == (200, (3, 97))


async def test_token_ids_become_vectors(embed: Embeds) -> None:
    assert await embed([1, 2, 4], "token_embedder") == (200, [[3, 0.7]])
    assert await embed([[1, 2], [3, 4]], "token_embedder") == (200, [[2, 0.3], [2, 0.7]])


async def test_a_model_without_a_batch_dimension_is_asked_for_one_text_at_a_time(embed: Embeds) -> None:
    assert await embed(["a", "bb"], "lone_embedder") == (200, [[1, 97], [2, 98]])


async def test_a_request_larger_than_the_model_takes_is_split_and_rejoined(embed: Embeds) -> None:
    status, vectors = await embed(["x" * number for number in range(1, 30)])
    assert (status, [vector[0] for vector in vectors]) == (200, list(range(1, 30)))


@pytest.mark.parametrize(
    ("what", "model", "status", "parameter", "code"),
    [
        ("a", "nobody", 404, None, "model_not_found"),
        ("a", "no/body", 404, None, "model_not_found"),
        ("a", "token_embedder", 400, "input", None),
        ([1], "embedder", 400, "input", None),
        ([[1], [1, 2]], "token_embedder", 400, "input", None),
        ("a", "strings", 400, "model", None),
        ("a", "decoupled", 400, "model", None),
    ],
)
async def test_what_cannot_be_answered_is_told_as_openai_does(
    embed: Embeds, what: object, model: str, status: int, parameter: str | None, code: str | None
) -> None:
    told, error = await embed(what, model)
    assert (told, error["type"], error["param"], error["code"]) == (status, "invalid_request_error", parameter, code)


@pytest.mark.parametrize(("text", "status", "words"), [("poison", 500, "a text is poison"), ("nan", 502, "has NaN")])
async def test_only_the_caller_of_the_bad_text_fails(embed: Embeds, text: str, status: int, words: str) -> None:
    answers = await asyncio.gather(*(embed(text if number == 5 else "fine") for number in range(16)))
    assert [number for number, (told, _) in enumerate(answers) if told != 200] == [5]
    assert answers[5][0] == status
    assert words in answers[5][1]["message"]


async def test_everybody_gets_the_vectors_of_its_own_texts_and_batches_form(
    embed: Embeds, front: sidecar_.Sidecar
) -> None:
    chance, changes = random.Random(1), sidecar_.Changes(front)

    async def ask(number: int) -> None:
        for _ in range(20):
            texts = [chr(97 + number) * chance.randrange(1, 99) for _ in range(chance.randrange(1, 4))]
            status, vectors = await embed(texts)
            assert (status, vectors) == (200, [[len(text), 97 + number] for text in texts])

    await asyncio.gather(*map(ask, range(16)))
    assert changes.mean_batch > 4
