"""The requests that scenes send, by protocol: rows to a body, an answer to its rows."""

from __future__ import annotations

import itertools
from typing import Any

from benchmarks.scenes import scene


def v2_table(path: str, output: str) -> scene.Question:
    """One tensor of numbers in, the named one out (Open Inference Protocol)."""

    def body(rows: scene.Rows) -> Any:
        data = list(itertools.chain.from_iterable(rows))
        tensor = {"name": "x", "shape": [len(rows), len(rows[0])], "datatype": "FP64", "data": data}
        return {"inputs": [tensor], "outputs": [{"name": output}]}

    return scene.Question(path, body, _tensor_rows)


def v2_texts(path: str, shape: int = 1) -> scene.Question:
    """Texts in, vectors out; `shape` is how many dimensions the tensor of texts has."""

    def body(rows: scene.Rows) -> Any:
        dimensions = [len(rows), 1][:shape]
        tensor = {"name": "text", "shape": dimensions, "datatype": "BYTES", "data": list(rows)}
        return {"inputs": [tensor]}

    return scene.Question(path, body, _tensor_rows)


def v1(path: str) -> scene.Question:
    """`instances` and `predictions`."""
    return scene.Question(path, lambda rows: {"instances": list(rows)}, lambda answer: answer["predictions"])


def openai_embeddings(path: str, model: str) -> scene.Question:
    """As OpenAI has them; one text goes as a text, as its clients send it."""

    def body(rows: scene.Rows) -> Any:
        return {"model": model, "input": rows[0] if len(rows) == 1 else list(rows)}

    return scene.Question(path, body, lambda answer: [each["embedding"] for each in answer["data"]])


def own_list(path: str, name: str, answers: str | None) -> scene.Question:
    """A list by a name of the server's own; without `answers` the whole answer is the list."""
    return scene.Question(
        path, lambda rows: {name: list(rows)}, lambda answer: answer if answers is None else answer[answers]
    )


def _tensor_rows(answer: Any) -> list[Any]:
    (tensor,) = answer["outputs"]
    rows, data = tensor["shape"][0], tensor["data"]
    if len(data) == rows:  # nested, or one number a row
        return list(data)
    width = len(data) // rows
    return [data[at : at + width] for at in range(0, rows * width, width)]
