"""mosec: the front end is Rust, the model a Python process of its own."""

from __future__ import annotations

from typing import Any

import mosec
import sleep_model


class Echo(mosec.Worker):
    """Bodies are JSON, mosec's default; the front end hands them over undecoded, one list for each batch."""

    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = sleep_model.predict([body["instances"][0] for body in data])
        return [{"predictions": [row]} for row in rows]


if __name__ == "__main__":
    server = mosec.Server()
    # One worker, since the model is one device. mosec's documentation wants max_wait_time below the time of an
    # inference, which 5 ms is (10 ms and more), and in whole milliseconds.
    server.append_worker(Echo, num=1, max_batch_size=sleep_model.MAX_BATCH, max_wait_time=int(sleep_model.WAIT_MS))
    server.run()  # address, port and log level come from the command line, as mosec's documentation has it
