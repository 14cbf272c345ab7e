"""Ray Serve with the sentence encoder in two applications, the second with `serve.batch`. `ray_serve_app.py PORT`."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time

import ray
import sentences
from ray import serve
from starlette.requests import Request

Vectors = list[list[float]]

# Not in the scene's folder: the paths of Unix sockets have to be short.
FOLDER = f"{tempfile.gettempdir()}/carpool-ray-{os.getuid()}"
# As many requests at a replica as there are callers and more, so that the queue is where batches are made.
OPTIONS = {"num_replicas": 1, "max_ongoing_requests": 256, "ray_actor_options": {"num_cpus": 0.5}}


@serve.deployment(**OPTIONS)
class Embedder:
    def __init__(self) -> None:
        self._model = sentences.load()

    async def __call__(self, request: Request) -> dict[str, Vectors]:
        return {"vectors": sentences.embed(self._model, (await request.json())["texts"])}


@serve.deployment(**OPTIONS)
class Batching:
    def __init__(self) -> None:
        self._model = sentences.load()

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.01)
    async def embed(self, asked: list[list[str]]) -> list[Vectors]:
        vectors = iter(sentences.embed(self._model, [text for texts in asked for text in texts]))
        return [[next(vectors) for _ in texts] for texts in asked]

    async def __call__(self, request: Request) -> dict[str, Vectors]:
        return {"vectors": await self.embed((await request.json())["texts"])}


def main() -> None:
    """Serve until SIGTERM."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.mkdir(FOLDER, mode=0o700)
    ray.init(
        num_cpus=2,  # logical: what may run beside each other, not cores
        include_dashboard=False,
        object_store_memory=100_000_000,  # nothing large travels here
        log_to_driver=False,
        _temp_dir=FOLDER,
        _node_ip_address="127.0.0.1",
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Embedder.bind(), name="plain", route_prefix="/embed")
    serve.run(Batching.bind(), name="batching", route_prefix="/batching/embed")
    signal.signal(signal.SIGTERM, stop)
    while True:  # no signal.pause(): a signal that one of Ray's threads gets would not end it
        time.sleep(0.2)


def stop(*_: object) -> None:
    """End at once: whoever started this ends Ray's other processes, and an orderly shutdown takes ten seconds."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
