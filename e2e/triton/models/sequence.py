"""Adds up what a sequence has sent so far. Triton's sequence batcher keeps a slot for each sequence."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as backend


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._sums: dict[int, Any] = {}

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        rows, start, end = (
            backend.get_input_tensor_by_name(request, name).as_numpy() for name in ("rows", "START", "END")
        )
        who = request.correlation_id()
        self._sums[who] = rows + (0 if start.any() else self._sums.get(who, 0))
        total = self._sums.pop(who) if end.any() else self._sums[who]
        return backend.InferenceResponse([backend.Tensor("sum", total)])
