"""MiniLM as a model of Triton's Python backend. Runs inside Triton, under its environment's Python.

The instance is one of KIND_CPU in the configuration, which only says where Triton would put tensors: sentences are
text, which stays in the host's memory. Where the model computes is the embedder's business.
"""

from __future__ import annotations

import os
import sys
from typing import Any

sys.path[:0] = os.environ["PEER_PATH"].split(":")  # where this model's packages are

import embedder  # noqa: E402
import numpy as np  # noqa: E402
import triton_python_backend_utils as backend  # noqa: E402


class TritonPythonModel:
    """The name that the backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        self._embedder = embedder.Embedder()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Each request's embeddings, after one call of the model for the whole batch."""
        inputs = [backend.get_input_tensor_by_name(request, "sentences").as_numpy() for request in requests]
        sentences = [text.decode() for text in np.concatenate(inputs).ravel()]
        ends = np.cumsum([len(rows) for rows in inputs])[:-1]
        outputs = [backend.Tensor("embeddings", rows) for rows in np.split(self._embedder.vectors(sentences), ends)]
        return [backend.InferenceResponse([output]) for output in outputs]
