"""Rows times the request's parameter `factor`, by default 1: requests with different parameters must not be merged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as backend


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        rows = backend.get_input_tensor_by_name(request, "rows").as_numpy()
        factor = json.loads(request.parameters()).get("factor", 1)
        return backend.InferenceResponse([backend.Tensor("rows_out", (rows * factor).astype(np.float32))])
