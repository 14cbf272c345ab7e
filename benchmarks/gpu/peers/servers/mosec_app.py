"""mosec: the front end is Rust, the model a Python process of its own."""

from __future__ import annotations

from typing import Any

import embedder
import mosec


class Embed(mosec.Worker):
    """Requests are JSON, mosec's default. Answers are made as bytes at once: its default writes JSON with `json.dumps`
    and indentation, in the model's process, and its documentation has this way to do better."""

    def __init__(self) -> None:
        self._embedder = embedder.Embedder()

    def forward(self, data: list[dict[str, Any]]) -> list[bytes]:
        return self._embedder.answers([body["instances"][0] for body in data])

    def serialize(self, data: bytes) -> bytes:
        return data


if __name__ == "__main__":
    server = mosec.Server()
    # One worker, since the model is one device. mosec's documentation wants max_wait_time, in whole milliseconds, below
    # the time of an inference.
    server.append_worker(
        Embed,
        num=1,
        max_batch_size=embedder.MAX_BATCH,
        max_wait_time=int(embedder.WAIT_MS),
        timeout=embedder.PATIENCE_SECONDS,
    )
    server.run()  # address, port, capacity and log level come from the command line, as mosec's documentation has it
