#!/opt/carpool/bin/python
"""Stands in for Triton in a pod: its flags and ports, the models of the fake v2 server, and Triton's own counters.

It runs in the sidecar's image, which has what the fake needs. A call takes 5 ms and 0.1 ms for each row, one call at a
time, as on a GPU. On SIGTERM it goes at once, whatever it was asked: nobody may need it by then.
"""

from __future__ import annotations

import argparse
import asyncio
import signal

import prometheus_client

from tests.fakes import fake_v2, v2_models

CALL_SECONDS, ROW_SECONDS = 0.005, 0.0001
ROWS = prometheus_client.Counter("nv_inference_count", "Rows that the model was asked for.", ["model"])
CALLS = prometheus_client.Counter("nv_inference_exec_count", "Calls that the model ran.", ["model"])


class Triton(fake_v2.FakeV2):
    """The fake, with a device that is busy, and nothing kept of what was asked."""

    def __init__(self, http_port: int, grpc_port: int) -> None:
        super().__init__("", http_port, grpc_port)
        self._device = asyncio.Lock()

    async def infer(self, question: v2_models.Question) -> list[v2_models.Tensor]:
        async with self._device:
            await asyncio.sleep(CALL_SECONDS + ROW_SECONDS * question.rows)
            answer = await super().infer(question)
        ROWS.labels(question.model).inc(question.rows)
        CALLS.labels(question.model).inc()
        self.questions.clear()
        self.received.clear()
        return answer


async def serve(http_port: int, grpc_port: int) -> None:
    """Until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    triton = Triton(http_port, grpc_port)
    await triton.start()
    await ended.wait()
    await triton.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--metrics-port", type=int, default=8002)
    chosen, _ = parser.parse_known_args()  # Triton has many more
    prometheus_client.start_http_server(chosen.metrics_port, addr="::")
    asyncio.run(serve(chosen.http_port, chosen.grpc_port))


if __name__ == "__main__":
    main()
