"""BentoML around the sentence encoder: one method as it is, one with adaptive batching."""

from __future__ import annotations

import bentoml
import sentences


# As its documents have it for adaptive batching: as much concurrency as a batch has room.
@bentoml.service(workers=1, traffic={"concurrency": 32}, logging={"access": {"enabled": False}})
class Embedder:
    def __init__(self) -> None:
        self._model = sentences.load()

    @bentoml.api(route="/embed")
    def embed(self, texts: list[str]) -> list[list[float]]:
        return sentences.embed(self._model, texts)

    @bentoml.api(batchable=True, max_batch_size=32, route="/batching/embed")
    def embed_batching(self, texts: list[str]) -> list[list[float]]:
        return sentences.embed(self._model, texts)
