"""BentoML: adaptive batching inside the service's worker."""

from __future__ import annotations

import bentoml
import sleep_model


# One worker, since the model is one device. Documentation on concurrency: with adaptive batching, set it to the size
# of a batch. No access log, as for everyone else.
@bentoml.service(workers=1, traffic={"concurrency": sleep_model.MAX_BATCH}, logging={"access": {"enabled": False}})
class Echo:
    """Its own JSON form: one member for each parameter of the method."""

    # max_latency_ms is no window but an objective: it is given up on requests (503) that would miss it, and BentoML
    # learns the window itself. 5 ms cannot be held by a model that takes 10, so the default of 60 s stays.
    @bentoml.api(batchable=True, batch_dim=0, max_batch_size=sleep_model.MAX_BATCH, route="/predict")
    def predict(self, instances: list[list[float]]) -> list[list[float]]:
        return sleep_model.predict(instances)
