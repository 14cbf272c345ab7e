"""Two servers of which no package has a program: TensorFlow Serving's REST API and Hugging Face's inference toolkit.

They take and answer what those projects' documents say (docs/lists.md has the sources). What matters to a caller who
shares a call: TensorFlow Serving makes one tensor of all rows of a call, so that lists of other lengths, objects that
name other inputs, and values of another kind fail all of it; the toolkit hands a list to a pipeline and one text
as one text, whose answer has another shape.

    python e2e/lists/servers/documented.py PORT
"""

from __future__ import annotations

import math
import sys
from typing import Any

from aiohttp import web


class Refused(Exception):
    """Answered 400 with these words."""


def _numbers(value: Any, shape: list[int], place: str) -> list[float]:
    """The elements of a row, which has the shape of the first."""
    if not shape:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Refused(
                f"JSON Value: {value!r} Type: {type(value).__name__} is not of expected type: float ({place})"
            )
        return [float(value)]
    if not isinstance(value, list):
        raise Refused(f"Encountered a value where a list of size {shape[0]} is expected ({place})")
    if len(value) != shape[0]:
        raise Refused(f"Encountered list at unexpected size: expecting {shape[0]} but got {len(value)} ({place})")
    return [number for each in value for number in _numbers(each, shape[1:], place)]


def _shape(value: Any) -> list[int]:
    return [len(value), *_shape(value[0])] if isinstance(value, list) and value else [0] if value == [] else []


def _tensor(rows: list[Any], name: str) -> list[list[float]]:
    return [_numbers(row, _shape(rows[0]), f"row {number} of {name}") for number, row in enumerate(rows)]


def _columns(given: dict[str, Any]) -> tuple[dict[str, list[list[float]]], str]:
    """The named inputs of a request, and the name of its answer's list."""
    if "inputs" in given:
        told = given["inputs"]
        found = {name: _tensor(rows, name) for name, rows in (told if isinstance(told, dict) else {"x": told}).items()}
        if len({len(rows) for rows in found.values()}) != 1:
            raise Refused("Tensors have different batch sizes")
        return found, "outputs"
    rows = given.get("instances")
    if not isinstance(rows, list) or not rows:
        raise Refused("Missing 'inputs' or 'instances' key")
    if not isinstance(rows[0], dict):
        return {"x": _tensor(rows, "x")}, "predictions"
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or row.keys() != rows[0].keys():
            raise Refused(f"Failed to process element: {number} of 'instances' list: keys differ from the first's")
    return {name: _tensor([row[name] for row in rows], name) for name in rows[0]}, "predictions"


async def predict(request: web.Request) -> web.Response:
    """The sum of all numbers of a row, `a` counting thrice; NaN for a sum of 13, infinity for one of 14."""
    try:
        columns, name = _columns(await request.json())
        rows = zip(
            *([sum(row) * (3 if each == "a" else 1) for row in told] for each, told in columns.items()), strict=True
        )
        sums = [{13.0: math.nan, 14.0: math.inf}.get(sum(row), sum(row)) for row in rows]
    except (Refused, ValueError) as refused:
        return web.json_response({"error": str(refused)}, status=400)
    return web.json_response({name: sums})


async def pipeline(request: web.Request) -> web.Response:
    """A pipeline of text-classification; it fails for a text that is marked, and for what is no text."""
    given = await request.json()
    texts = given.get("inputs")
    listed = texts if isinstance(texts, list) else [texts]
    if not all(isinstance(text, str) and "make the model fail" not in text for text in listed):
        return web.json_response({"error": "text input must be of type `str`"}, status=400)
    most = given.get("parameters", {}).get("top_k")
    rows: list[Any] = []
    for text in listed:
        score = len(text) / 1000
        labels = [{"label": "LONG", "score": score}, {"label": "SHORT", "score": 1 - score}]
        rows.append(labels[:most] if most else labels[0])
    return web.json_response(rows if isinstance(texts, list) or not most else rows[0])


async def ready(_: web.Request) -> web.Response:
    return web.Response()


def main() -> None:
    app = web.Application()
    app.router.add_get("/", ready)
    app.router.add_post("/", pipeline)
    app.router.add_post("/v1/models/{model}:predict", predict)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)


if __name__ == "__main__":
    main()
