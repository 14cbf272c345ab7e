"""Fifty callers at once who ask in every way: each gets what the server answers it alone, the wrong ones their errors.

Objects with members in other orders and with some missing, mixed kinds of values, lists of other lengths, NaN. These
are the ways in which real servers let one caller's rows change another's answer: they make one table or array of all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from e2e.lists import answers, callers, conftest
from e2e.triton import servers
from e2e.triton import sidecar as sidecar_

CALLERS, ROUNDS = 50, 4


async def check(
    server: servers.Server, front: sidecar_.Sidecar, asked: Sequence[callers.Question], least: float = 2
) -> None:
    """Ask the server each question by itself, then the sidecar fifty at once, again and again."""
    alone = await callers.one_by_one(server.http, asked)
    changes = sidecar_.Changes(front)
    for round_ in range(ROUNDS):
        order = random.Random(round_).choices(range(len(asked)), k=CALLERS)
        found = await callers.at_once(front.http, [asked[number] for number in order])
        for number, got in zip(order, found, strict=True):
            assert told(got) == told(alone[number]), f"{asked[number]}: {got} instead of {alone[number]}"
    assert changes.mean_batch > least


def told(answer: answers.Answer) -> Any:
    """What an answer says: numbers to nine digits, as BLAS rounds differently in another batch, and no batch's id."""
    if answer.status != 200:
        return answer.status
    value = json.loads(answer.body, parse_float=lambda text: f"{float(text):.9g}", parse_constant=str)
    new = ("message", "batchId", "id")
    return {name: each for name, each in value.items() if name not in new} if isinstance(value, dict) else value


# --- KServe -----------------------------------------------------------------------------------------------------

_VALUES = (3, 70.5, 12, 41, 99.25, 5, 60, 88)


def instances(dice: random.Random) -> list[Any]:
    """Rows of one request, as a caller of a server of tables may write them."""
    a, b, c = (dice.choice(_VALUES) for _ in range(3))
    named = {"a": [a], "b": [b], "c": [c]}
    return dice.choice(
        [
            [named], [dict(reversed(named.items()))], [{"b": [b], "c": [c], "a": [a]}], [named, {**named, "a": [b]}],
            [{"a": [a], "b": [b]}], [{**named, "d": [7]}], [{**named, "b": ["x"]}], [{**named, "b": [True]}],
            [{**named, "b": [None]}], [{"a": a, "b": b, "c": c}], [[a, b, c]], [[a, b, c], [c, b, a]], [[a, b]],
            [[a, b, c, 7]], [[a, "x", c]], [[a, None, c]], [[True, False, True]], [[9007199254740993, b, c]],
            [a], ["x"], [[[a, b, c]]], [[]], [None], [[a, b, c], [a, b]],
        ]
    )  # fmt: skip


@pytest.mark.parametrize("model", ["sklearn", "xgboost", "lightgbm"])
async def test_callers_of_kserves_servers_of_tables(
    tables: servers.Server, before: conftest.Starts, model: str
) -> None:
    dice, path = random.Random(model), f"/v1/models/{model}:predict"
    asked = [callers.question(path, {"instances": instances(dice)}) for _ in range(120)]
    asked.append(callers.Question(path, b'{"instances": [[NaN, 1, 2]]}'))
    await check(tables, before(tables, "mlflow"), asked, 1.3)


# --- MLServer ---------------------------------------------------------------------------------------------------


def inference(dice: random.Random) -> callers.Question:
    a, b = (dice.choice(_VALUES) for _ in range(2))
    rows, width = dice.randint(1, 3), dice.randint(1, 3)
    shape, data = [rows, width], [a] * rows * width
    one = {"name": "a", "datatype": "FP32", "shape": shape, "data": data}
    other = {**one, "name": "b", "data": [b] * rows * width}
    changed = dice.choice(
        [
            {}, {}, {"data": [data[:width]] * rows}, {"shape": [rows]}, {"shape": [-1, width]}, {"datatype": "FP64"},
            {"datatype": "INT64"}, {"datatype": "BOOL"}, {"data": ["x"] * len(data)}, {"data": [True] * len(data)},
            {"data": [9007199254740993] * len(data)}, {"data": a}, {"data": [None] * len(data)}, {"name": "c"},
        ]
    )  # fmt: skip
    inputs = dice.choice([[{**one, **changed}, other], [other, {**one, **changed}], [one, other, other], [one]])
    asked = {
        "inputs": inputs,
        **dice.choice([{}, {"id": "mine"}, {"parameters": {"p": 1}}, {"outputs": [{"name": "sum"}]}]),
    }
    text = json.dumps(asked)
    return callers.Question("/v2/models/add/infer", text.replace("99.25", "NaN").encode())


async def test_callers_of_mlserver(mlserver: servers.Server, before: conftest.Starts) -> None:
    dice = random.Random(4)
    await check(mlserver, before(mlserver, "mlflow"), [inference(dice) for _ in range(120)], 1.1)


# --- MLflow -----------------------------------------------------------------------------------------------------


def records(dice: random.Random) -> dict[str, Any]:
    a, b, name = dice.choice(_VALUES), dice.choice(_VALUES), dice.choice(["x", "猫", ""])
    row = {"a": a, "b": b, "name": name}
    rows = dice.choice(
        [
            [row], [dict(reversed(row.items()))], [row, {**row, "a": 1}], [{"a": a, "b": b}], [{**row, "more": 1}],
            [{**row, "a": "x"}], [{**row, "a": True}], [{**row, "a": None}], [{**row, "name": 7}],
            [{**row, "a": 9007199254740993}], [{**row, "name": "make the model fail"}], [row, {"a": a}],
        ]
    )  # fmt: skip
    return {dice.choice(["dataframe_records", "instances", "inputs"]): rows}


async def test_callers_of_mlflow(mlflow_frame: servers.Server, before: conftest.Starts) -> None:
    dice = random.Random(1)
    asked = [callers.question("/invocations", records(dice)) for _ in range(120)]
    await check(mlflow_frame, before(mlflow_frame, "mlflow"), asked, 1.3)


# --- TensorFlow Serving and Hugging Face's toolkit ----------------------------------------------------------------


def tensors(dice: random.Random) -> dict[str, Any]:
    a, b = dice.choice(_VALUES), dice.choice(_VALUES)
    row = {"a": a, "b": b}
    return dice.choice(
        [
            {"instances": [row]}, {"instances": [{"b": b, "a": a}]}, {"instances": [row, row]},
            {"instances": [{"a": a}]},
            {"instances": [{**row, "b": "x"}]}, {"instances": [{**row, "b": True}]}, {"instances": [[a, b]]},
            {"instances": [[a] * dice.randint(1, 9)]}, {"instances": [a, b]}, {"instances": [a, "x"]},
            {"instances": [13]},
            {"instances": [14, 1]}, {"instances": [[[a], [b]]]}, {"instances": [None]}, {"instances": [[a], [a, b]]},
            {"inputs": {"a": [a], "b": [b]}}, {"inputs": {"a": [[a, b]], "b": [[1]]}},
            {"inputs": {"a": [a, 1], "b": [b]}},
            {"inputs": {"b": [b, 13], "a": [a, 0]}}, {"inputs": [[a, b], [b, a]]}, {"instances": [9007199254740993]},
        ]
    )  # fmt: skip


async def test_callers_of_tensorflow_serving(documented: servers.Server, before: conftest.Starts) -> None:
    dice = random.Random(2)
    asked = [callers.question("/v1/models/m:predict", tensors(dice)) for _ in range(120)]
    await check(documented, before(documented, "tfserving-columns"), asked, 1.3)


def texts(dice: random.Random) -> dict[str, Any]:
    text = dice.choice(["a cat", "猫", "word " * 60, "x"])
    inputs = dice.choice([text, [text], [text, "b"], [text, 1], [text, None], 7, ["make the model fail"], [], [[text]]])
    parameters = dice.choice([{}, {}, {"parameters": {"top_k": 2}}, {"parameters": {"top_k": 1, "batch_size": 4}}])
    return {"inputs": inputs, **parameters}


async def test_callers_of_hugging_faces_toolkit(documented: servers.Server, before: conftest.Starts) -> None:
    dice = random.Random(3)
    asked = [callers.question("/", texts(dice)) for _ in range(120)]
    await check(documented, before(documented, "hf-toolkit"), asked)
