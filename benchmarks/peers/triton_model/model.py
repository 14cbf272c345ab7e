"""The affine sleep model as a model of Triton's Python backend. Runs inside Triton, under its environment's Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import sleep_model
import triton_python_backend_utils as backend


class TritonPythonModel:
    """The name that the backend looks for."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Each request's rows as they came, after one wait for the whole batch."""
        inputs = [backend.get_input_tensor_by_name(request, "rows").as_numpy() for request in requests]
        batch = np.concatenate(inputs)
        sleep_model.predict(range(len(batch)))
        ends = np.cumsum([len(rows) for rows in inputs])[:-1]
        outputs = [backend.Tensor("predictions", rows) for rows in np.split(batch, ends)]
        return [backend.InferenceResponse([output]) for output in outputs]
