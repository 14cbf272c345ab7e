"""A predictor that records its requests: a test sees how a batcher has combined the requests of its callers.

Runs alone, from a ConfigMap, in the image of the project's own predictor: `python recorder.py PORT`.

It speaks KServe's v1 protocol and answers each instance with itself, so a wrong or mixed answer shows; models named
`iris…` answer with a class instead. An instance may order something else, for the whole call it is part of; what is
0, "" or false in it orders nothing:

    {"wait": 1.5}                     answer after so many seconds
    {"status": 500, "text": "…"}      answer with this status and this text
    {"text": "…"}                     answer 200 with this text, which need not be JSON
    {"one_too_few": true}             leave out the last prediction
    {"hang_up": true}                 close the connection without an answer

GET /recorded?word=W tells of all requests with W in their target or body, in the order of their arrival. GET /events
is a stream of three events, 0.4 s apart. Everything else is answered 202 with what was received.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import sys
import time
from typing import Any

from aiohttp import web

KEPT = 2000
EVENTS = 3
EVENT_SECONDS = 0.4
# Where the petals of iris setosa, versicolor and virginica part, in cm of width: column 3 of Fisher's data.
PETAL_WIDTHS = (0.8, 1.75)
MARK = {"recorder": "was here"}


@dataclasses.dataclass
class Received:
    """A request as it came in: header names in their own spelling, times in seconds of this machine's clock."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: str
    began: float
    ended: float | None = None


class Recorder:
    """All state is the list of what was received, the oldest forgotten after `KEPT`."""

    def __init__(self) -> None:
        self._received: collections.deque[Received] = collections.deque(maxlen=KEPT)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers any request, and records it unless it asks for the records."""
        if request.path == "/recorded":
            return web.json_response(self._told(request.query.get("word", "")))
        received = await receive(request)
        self._received.append(received)
        try:
            return await answered(request, received)
        finally:
            received.ended = time.monotonic()

    def _told(self, word: str) -> list[dict[str, Any]]:
        return [dataclasses.asdict(each) for each in self._received if word in each.target or word in each.body]


async def receive(request: web.BaseRequest) -> Received:
    began = time.monotonic()
    body = (await request.read()).decode("utf-8", "backslashreplace")
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.raw_headers]
    return Received(request.method, request.raw_path, headers, body, began)


async def answered(request: web.BaseRequest, received: Received) -> web.StreamResponse:
    if request.path.endswith(":predict") and request.method == "POST":
        return await predict(request, received.body)
    if request.path == "/events":
        return await stream(request)
    echo = {"method": received.method, "target": received.target, "body": received.body}
    return web.json_response(echo, status=202, headers=MARK)


async def predict(request: web.BaseRequest, body: str) -> web.StreamResponse:
    """The predictions for a v1 body, or what one of its instances orders instead."""
    sent = json.loads(body)
    instances = sent["inputs"] if "inputs" in sent else sent["instances"]
    ordering = (each for each in instances if isinstance(each, dict))
    orders = {name: value for each in ordering for name, value in each.items() if value}
    await asyncio.sleep(orders.get("wait", 0))
    if orders.get("hang_up") and request.transport:
        request.transport.abort()
    if "text" in orders:
        return web.Response(status=orders.get("status", 200), text=orders["text"], content_type="text/x-recorder")
    is_iris = request.path.rpartition("/")[2].startswith("iris")
    predictions = [classify(each) if is_iris else each for each in instances]
    if orders.get("one_too_few"):
        predictions.pop()
    return web.json_response({"predictions": predictions}, headers=MARK)


def classify(flower: list[float]) -> int:
    """The class of an iris, 0 to 2, by the width of its petals."""
    return sum(flower[3] > width for width in PETAL_WIDTHS)


async def stream(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(EVENTS):
        await response.write(f"data: {number}\n\n".encode())
        await asyncio.sleep(EVENT_SECONDS)
    return response


async def serve(port: int) -> None:
    runner = web.ServerRunner(web.Server(Recorder().answer))
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
