"""Vectors that tell what they were made of: a text's length and first byte, how many token ids there are and their sum.

The text `nan` has a vector that is no number, and the model fails on `poison`.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import triton_python_backend_utils as backend


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self._input = config["input"][0]["name"]
        self._datatypes = {each["name"]: backend.triton_string_to_numpy(each["data_type"]) for each in config["output"]}

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        given = backend.get_input_tensor_by_name(request, self._input).as_numpy()
        vectors = np.array([_vector(row) for row in (given if given.ndim > 1 else [given])])
        found = {"vectors": vectors if given.ndim > 1 else vectors[0], "hidden": vectors[:, None, :]}
        return backend.InferenceResponse(
            [backend.Tensor(name, found[name].astype(kind)) for name, kind in self._datatypes.items()]
        )


def _vector(row: Any) -> list[float]:
    if row.dtype != np.object_:
        return [len(row), row.sum() / 10]
    (text,) = row
    if text == b"poison":
        raise ValueError("a text is poison")
    return [math.nan if text == b"nan" else len(text), text[0] if text else 0]
