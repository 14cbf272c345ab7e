"""The sentence encoder in Triton's Python backend: all requests that it is handed at once go through at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import sentences
import triton_python_backend_utils as backend


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._model = sentences.load()

    def execute(self, requests: list[Any]) -> list[Any]:
        texts = [
            [text.decode() for text in backend.get_input_tensor_by_name(request, "text").as_numpy().reshape(-1)]
            for request in requests
        ]
        vectors = np.array(sentences.embed(self._model, [each for some in texts for each in some]), np.float32)
        answers, at = [], 0
        for some in texts:
            tensor = backend.Tensor("vectors", vectors[at : at + len(some)])
            answers.append(backend.InferenceResponse([tensor]))
            at += len(some)
        return answers
