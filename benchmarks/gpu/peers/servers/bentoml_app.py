"""BentoML: adaptive batching inside the service's worker."""

from __future__ import annotations

import bentoml
import embedder
import numpy as np


# One worker, since the model is one device. Documentation on concurrency: with adaptive batching, set it to the size
# of a batch. No access log, as for everyone else.
@bentoml.service(
    workers=1,
    traffic={"concurrency": embedder.MAX_BATCH, "timeout": embedder.PATIENCE_SECONDS},
    logging={"access": {"enabled": False}},
)
class Embed:
    """Its own JSON form: one member for each parameter of the method, the embeddings themselves as the answer."""

    def __init__(self) -> None:
        self._embedder = embedder.Embedder(own_thread=True)

    # max_latency_ms is no window but an objective: it is given up on requests (503) that would miss it, and BentoML
    # learns the window itself. An array, as in its documentation's own example of embeddings.
    @bentoml.api(
        batchable=True,
        batch_dim=0,
        max_batch_size=embedder.MAX_BATCH,
        max_latency_ms=embedder.PATIENCE_SECONDS * 1000,
        route="/predict",
    )
    def predict(self, instances: list[str]) -> np.ndarray:  # type: ignore[type-arg]
        return self._embedder.vectors(instances)
