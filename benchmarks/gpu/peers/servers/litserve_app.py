"""LitServe: FastAPI in one process or several, the model in another."""

from __future__ import annotations

import embedder
import fastapi
import litserve


class Embed(litserve.LitAPI):
    """The list-in, list-out form of batching: the default batch and unbatch would make tensors."""

    def setup(self, device: str) -> None:
        self._embedder = embedder.Embedder()

    # An annotation here would make LitServe validate bodies; its own examples have none.
    def decode_request(self, request) -> str:  # type: ignore[no-untyped-def]
        return str(request["instances"][0])

    def batch(self, inputs: list[str]) -> list[str]:
        return inputs

    def predict(self, x: list[str]) -> list[bytes]:
        return self._embedder.answers(x)

    def unbatch(self, output: list[bytes]) -> list[bytes]:
        return output

    def encode_response(self, output: bytes) -> fastapi.Response:
        # A response, so that FastAPI does not go through 384 numbers one by one.
        return fastapi.Response(output, media_type="application/json")


if __name__ == "__main__":
    api = Embed(max_batch_size=embedder.MAX_BATCH, batch_timeout=embedder.WAIT_MS / 1000)
    # fast_queue: ZeroMQ instead of a manager process's queue, which the documentation advises for high throughput, and
    # so it does several front ends (`num_api_servers`). One worker, since the model is one device, which is the
    # embedder's business.
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=1, fast_queue=True, timeout=embedder.PATIENCE_SECONDS
    )
    server.run(
        host=embedder.HOST,
        port=embedder.PORT,
        num_api_servers=embedder.FRONTS,
        generate_client_file=False,
        log_level="warning",
    )
