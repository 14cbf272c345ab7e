"""LitServe around the sentence encoder, twice: without and with dynamic batching. `litserve_app.py PORT`."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import litserve
import sentences

Texts = list[str]
Vectors = list[list[float]]


class Embedder(litserve.LitAPI):
    """Lists of texts to lists of vectors."""

    def setup(self, device: str) -> None:
        self._model = sentences.load()

    # An annotation here would make LitServe validate bodies; its own examples have none.
    def decode_request(self, request) -> Texts:  # type: ignore[no-untyped-def]
        return list(request["texts"])

    def predict(self, x: Any) -> Any:
        return sentences.embed(self._model, x)

    def encode_response(self, output: Vectors) -> dict[str, Any]:  # LitServe reads this, and knows no names of ours
        return {"vectors": output}


class Batching(Embedder):
    """What several callers asked goes through the model at once."""

    def batch(self, inputs: list[Texts]) -> list[Texts]:
        return inputs

    def predict(self, x: list[Texts]) -> list[Vectors]:
        vectors = iter(sentences.embed(self._model, list(itertools.chain.from_iterable(x))))
        return [list(itertools.islice(vectors, len(texts))) for texts in x]

    def unbatch(self, output: list[Vectors]) -> list[Vectors]:
        return output


if __name__ == "__main__":
    plain = Embedder(api_path="/embed")
    batching = Batching(api_path="/batching/embed", max_batch_size=32, batch_timeout=0.01)
    server = litserve.LitServer([plain, batching], accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="warning")
