"""Fails the whole call if a row of it has a mark: 666 raises, 400 is refused with the status for bad arguments."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as backend


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        rows = backend.get_input_tensor_by_name(request, "rows").as_numpy()
        if (rows == 666).any():
            raise ValueError("a row is marked")
        if (rows == 400).any():
            refusal = backend.TritonError("a row is refused", backend.TritonError.INVALID_ARG)
            return backend.InferenceResponse([], error=refusal)
        return backend.InferenceResponse([backend.Tensor("rows_out", rows)])
