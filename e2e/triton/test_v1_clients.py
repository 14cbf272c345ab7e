"""Clients of the v1 protocol in front of Triton, which knows only v2: `--upstream triton-http` and `triton-grpc`."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import pytest

from e2e.triton import servers
from e2e.triton import sidecar as sidecar_

Predicts = Callable[[str, object], Any]


@pytest.fixture(scope="module", params=["triton-http", "triton-grpc"])
def front(
    request: pytest.FixtureRequest, triton: servers.Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[sidecar_.Sidecar]:
    """The sidecar that makes tensors of instances."""
    folder = tmp_path_factory.mktemp("sidecar")
    options = ("--max-latency", "5", "--retry-budget", "100")
    with sidecar_.running(folder, triton, "--upstream", request.param, *options) as started:
        yield started


@pytest.fixture
async def predict(front: sidecar_.Sidecar) -> AsyncIterator[Predicts]:
    """Posts a body to a model; gives the status and the predictions, or the error's words."""
    async with aiohttp.ClientSession() as session:

        async def post(model: str, body: object) -> tuple[int, Any]:
            async with session.post(f"http://{front.http}/v1/models/{model}:predict", json=body) as answer:
                found = await answer.json(content_type=None)
                return answer.status, found["predictions" if answer.status == 200 else "error"]

        yield post


async def test_one_input_takes_arrays(predict: Predicts) -> None:
    assert await predict("identity", {"instances": [[1, 2], [3, 4.5]]}) == (200, [[1, 2], [3, 4.5]])


async def test_several_inputs_take_objects_by_their_names(predict: Predicts) -> None:
    instances = [{"a": [1, 2], "b": [10, 20]}, {"b": [1, 1], "a": [5, 5]}]
    predictions = [{"sum": [11, 22], "difference": [-9, -18]}, {"sum": [6, 6], "difference": [4, 4]}]
    assert await predict("add_sub", {"instances": instances}) == (200, predictions)


async def test_strings_are_text_or_base64(predict: Predicts) -> None:
    data = base64.b64encode(b"\xff\x00e").decode()
    status, predictions = await predict("strings", {"instances": [["spam"], [{"b64": data}]]})
    assert status == 200
    assert [each["length"] for each in predictions] == [[4], [3]]
    assert predictions[0]["upper"] == ["SPAM"]
    assert base64.b64decode(predictions[1]["upper"][0]["b64"]) == b"\xff\x00E"


async def test_a_request_larger_than_the_model_takes_is_split_and_rejoined(predict: Predicts) -> None:
    rows = [[number, -number] for number in range(11)]
    status, predictions = await predict("small", {"instances": rows})
    assert (status, [each["rows_out"] for each in predictions]) == (200, rows)
    assert max(each["together"][0] for each in predictions) <= 4


@pytest.mark.parametrize(
    ("model", "instances", "words"),
    [
        ("identity", [[1, 2], [3]], "rows"),
        ("identity", [["x"]], "rows"),
        ("identity", [[None]], "rows"),
        ("identity", [[1e39]], "rows"),
        ("add_sub", [{"a": [1]}], "b"),
        ("strings", [[7]], "text"),
    ],
)
async def test_what_is_no_tensor_is_a_400_that_names_the_input(
    predict: Predicts, model: str, instances: list[Any], words: str
) -> None:
    status, error = await predict(model, {"instances": instances})
    assert status == 400
    assert words in error


async def test_an_unknown_model_is_a_404(predict: Predicts) -> None:
    status, error = await predict("nobody", {"instances": [[1]]})
    assert status == 404
    assert "nobody" in error


async def test_only_the_caller_of_the_marked_row_fails(predict: Predicts) -> None:
    answers = await asyncio.gather(
        *(predict("marked", {"instances": [[666 if number == 5 else number]]}) for number in range(16))
    )
    assert [number for number, (status, _) in enumerate(answers) if status != 200] == [5]
    assert answers[5][0] == 500
    assert "a row is marked" in answers[5][1]


async def test_only_the_caller_of_the_wrong_row_fails_and_batches_form(
    predict: Predicts, front: sidecar_.Sidecar
) -> None:
    chance, changes = random.Random(1), sidecar_.Changes(front)

    async def ask(number: int) -> None:
        for _ in range(5):
            rows = [[chance.uniform(-9, 9), number] for _ in range(chance.randrange(1, 4))]
            if number == 5:
                assert (await predict("slow", {"instances": [*rows, [1, 2, 3]]}))[0] == 400
                continue
            status, predictions = await predict("slow", {"instances": rows})
            assert status == 200
            assert predictions == [pytest.approx(row, rel=1e-6) for row in rows]

    await asyncio.gather(*map(ask, range(16)))
    assert changes.mean_batch > 4
