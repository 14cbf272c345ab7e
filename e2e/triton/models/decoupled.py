"""As many answers to a request as it asks for: 1, 2, 3, …"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as backend


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            count = int(backend.get_input_tensor_by_name(request, "count").as_numpy().flat[0])
            sender = request.get_response_sender()
            for number in range(1, count + 1):
                sender.send(backend.InferenceResponse([backend.Tensor("number", np.array([[number]], np.int32))]))
            sender.send(flags=backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
