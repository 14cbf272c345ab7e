"""Two inputs, two outputs: the sum and the difference."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as backend


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        a, b = (backend.get_input_tensor_by_name(request, name).as_numpy() for name in ("a", "b"))
        return backend.InferenceResponse([backend.Tensor("sum", a + b), backend.Tensor("difference", a - b)])
