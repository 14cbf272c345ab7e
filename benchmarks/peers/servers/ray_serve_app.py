"""Ray Serve: one replica with `serve.batch`, on a Ray of its own that uses one core."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from typing import Any

import ray
import sleep_model
from ray import serve
from starlette.requests import Request


# One replica, since the model is one device. max_ongoing_requests: its documentation wants at least max_batch_size
# times the batches in flight, or batches stay small; room for all callers besides, so that the queue is in the
# replica, where batches are formed.
@serve.deployment(num_replicas=1, max_ongoing_requests=1024, ray_actor_options={"num_cpus": 0.5})
class Echo:
    @serve.batch(
        max_batch_size=sleep_model.MAX_BATCH, batch_wait_timeout_s=sleep_model.WAIT_MS / 1000, max_concurrent_batches=1
    )
    async def predict(self, rows: list[Any]) -> list[Any]:
        if sleep_model.FIXED_MS + sleep_model.PER_ROW_MS == 0:
            return sleep_model.predict(rows)
        # In a thread: its documentation says not to block the loop that requests arrive on.
        return await asyncio.to_thread(sleep_model.predict, rows)

    async def __call__(self, request: Request) -> dict[str, Any]:
        body = await request.json()
        return {"predictions": [await self.predict(body["instances"][0])]}


# Not in the cache: the paths of Unix sockets have to be short. Always the same, so that what a killed run leaves is
# gone with the next one.
FOLDER = f"{tempfile.gettempdir()}/carpool-ray-{os.getuid()}"


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.mkdir(FOLDER, mode=0o700)
    ray.init(
        num_cpus=2,  # logical: what may run beside each other, not cores
        include_dashboard=False,
        object_store_memory=100_000_000,  # nothing large travels here
        log_to_driver=False,
        _temp_dir=FOLDER,
        _node_ip_address=sleep_model.HOST,
    )
    serve.start(http_options={"host": sleep_model.HOST, "port": sleep_model.PORT})
    serve.run(Echo.bind(), route_prefix="/predict")
    signal.signal(signal.SIGTERM, stop)
    while True:  # no signal.pause(): a signal that one of Ray's threads gets would not end it
        time.sleep(0.2)


def stop(*_: object) -> None:
    """End at once: whoever started this ends Ray's other processes, and an orderly shutdown takes ten seconds."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
