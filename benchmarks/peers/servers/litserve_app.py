"""LitServe: FastAPI in one process, the model in another."""

from __future__ import annotations

from typing import Any

import litserve
import sleep_model


class Echo(litserve.LitAPI):
    """The list-in, list-out form of batching: the default batch and unbatch would make tensors."""

    def setup(self, device: str) -> None:
        """There is nothing to load."""

    # An annotation here would make LitServe validate bodies; its own examples have none.
    def decode_request(self, request) -> list[float]:  # type: ignore[no-untyped-def]
        return request["instances"][0]

    def batch(self, inputs: list[list[float]]) -> list[list[float]]:
        return inputs

    def predict(self, x: list[list[float]]) -> list[list[float]]:
        return sleep_model.predict(x)

    def unbatch(self, output: list[list[float]]) -> list[list[float]]:
        return output

    def encode_response(self, output: list[float]) -> dict[str, Any]:
        return {"predictions": [output]}


if __name__ == "__main__":
    api = Echo(max_batch_size=sleep_model.MAX_BATCH, batch_timeout=sleep_model.WAIT_MS / 1000)
    # fast_queue: ZeroMQ instead of a manager process's queue, which the documentation advises for high throughput.
    # One worker, since the model is one device; the front end is one process unless asked otherwise, right for one
    # core. Tracking of requests stays off, as it is by default.
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(host=sleep_model.HOST, port=sleep_model.PORT, generate_client_file=False, log_level="warning")
