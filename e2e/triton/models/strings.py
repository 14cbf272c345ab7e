"""Bytes in, bytes and their length out; bytes that are no text are as good as any others."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as backend


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        texts = backend.get_input_tensor_by_name(request, "text").as_numpy()
        upper = np.array([text.upper() for text in texts.flat], dtype=np.object_).reshape(texts.shape)
        length = np.array([len(text) for text in texts.flat], dtype=np.int32).reshape(texts.shape)
        return backend.InferenceResponse([backend.Tensor("upper", upper), backend.Tensor("length", length)])
