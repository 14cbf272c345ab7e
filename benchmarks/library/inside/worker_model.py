"""The model of fast_dynamic_batcher: a class that its worker process imports, so its costs come by the environment."""

from __future__ import annotations

import os
from typing import Any

import functions
from fast_dynamic_batcher.inference_template import InferenceModel

VARIABLE = "BENCH_FUNCTION"


class Model(InferenceModel):
    def __init__(self) -> None:
        fixed, per_item, fault = os.environ[VARIABLE].split(",")
        self._function, _ = functions.make(float(fixed), float(per_item), fault)

    def infer(self, inputs: list[Any]) -> list[Any]:
        return self._function(inputs)
