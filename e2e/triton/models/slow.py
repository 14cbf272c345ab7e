"""Takes 10 ms and 0.1 ms for each row of a call, as a model on an accelerator does; then each row as it came."""

from __future__ import annotations

import time
from typing import Any

import triton_python_backend_utils as backend

_FIXED, _PER_ROW = 0.010, 0.0001


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        inputs = [backend.get_input_tensor_by_name(request, "rows").as_numpy() for request in requests]
        time.sleep(_FIXED + _PER_ROW * sum(map(len, inputs)))
        return [backend.InferenceResponse([backend.Tensor("rows_out", rows)]) for rows in inputs]
