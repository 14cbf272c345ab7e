"""Whatever becomes of a message, and however it came, none of it is kept: all protocols, ways in and ends.

What is sent is above every size from which on something is done in steps, in parts or in place; and once more small,
many times. Two callers send the same, so that what is batched goes together, and is sent again apart if it is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from tritonclient.grpc import service_pb2 as pb

from carpool_sidecar.app import wiring
from tests import loopback, remains
from tests.app import echoing, fake_predictor, large_messages
from tests.app.large_messages import Message

pytestmark = pytest.mark.uvloop

LARGE, SMALL = 1_300_000, 20_000
TIMES = {LARGE: 2, SMALL: 4}  # one on its way still is none that is kept
TINY = 200  # for a start: whatever is remembered of many messages is remembered then
AT_ONCE = 2
TOO_MANY_TEXTS, TOO_MANY_INTEGERS = 100_001, 262_145  # as the settings' page says

WAYS = large_messages.WAYS
INFER = "/inference.GRPCInferenceService/ModelInfer"

Make = Callable[[int], Message]


# --- what is sent -----------------------------------------------------------------------------------------------


def posted(path: str, body: Any, **about: Any) -> Message:
    return Message(path, msgspec.json.encode(body), **about)


def text(size: int) -> str:
    return "x" * size


def numbers(size: int) -> list[float]:
    return [0.5] * (size // 4)


V1, EMBED = "/v1/models/m:predict", "/v1/embeddings"
V1_MESSAGES: dict[str, Make] = {
    "a text": lambda size: posted(V1, {"instances": [text(size)]}),
    "a text and more": lambda size: posted(V1, {"signature_name": "s", "instances": [text(size)]}),
    "rows of several batches": lambda size: posted(V1, {"instances": [numbers(size // 10)] * 10}),
    "columns": lambda size: posted(V1, {"inputs": {"a": numbers(size)}}),
    "not JSON": lambda size: Message(V1, b"{" + b"[" * size, status=400),
    "no instances": lambda size: posted(V1, {"others": text(size)}, status=400),
    "another type": lambda size: Message(V1, text(size).encode(), "Content-Type: text/csv\r\n"),
    "another path": lambda size: posted("/v1/models/m:explain", [text(size)]),
    "a text to embed": lambda size: posted(EMBED, {"input": [text(size)], "model": "m"}),
    "objects to embed": lambda size: posted(EMBED, {"input": [{"text": text(size)}], "model": "m"}),
    "embeddings with much beside": lambda size: posted(EMBED, {"input": ["a"], "user": text(size)}),
    "embeddings as a stream": lambda size: posted(EMBED, {"input": [text(size)], "stream": True}),
    "embeddings of nothing": lambda size: posted(EMBED, {"inputs": [text(size)]}),
}


V2 = "/v2/models/anything/infer"


def tensors(size: int, shape: list[int] | None = None, **members: Any) -> dict[str, Any]:
    """With a text of this size."""
    tensor = {"name": "text", "datatype": "BYTES", "shape": shape or [1, 1], "data": [text(size)]}
    return {"inputs": [tensor], **members}


def binary(size: int, shape: list[int] | None = None, path: str = V2, **members: Any) -> Message:
    size -= size % 4
    tensor = {"name": "x", "datatype": "FP32", "shape": shape or [1, size // 4]}
    tensor["parameters"] = {"binary_data_size": size}
    asked = {"inputs": [tensor], "parameters": {"binary_data_output": True, **members}}
    head = json.dumps(asked).encode()
    about = f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(head)}\r\n"
    return Message(path, head + bytes(size), about)


def of_numbers(size: int) -> Message:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, size // 4], "data": numbers(size)}
    return posted(V2, {"inputs": [tensor]})


def too_many_texts(size: int) -> Message:
    count = TOO_MANY_TEXTS if size == LARGE else 1
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1, count], "data": ["x"] * count}
    return posted(V2, {"inputs": [tensor]})


V2_MESSAGES: dict[str, Make] = {
    "a text": lambda size: posted(V2, tensors(size)),
    "numbers": of_numbers,
    "too many texts": too_many_texts,
    "binary": binary,
    "a sequence in binary": lambda size: binary(size, sequence_id=7),
    "a sequence": lambda size: posted(V2, tensors(size, parameters={"sequence_id": 7})),
    "no rows": lambda size: posted(V2, tensors(size, [])),
    "a model without batches": lambda size: binary(size, [size // 4], "/v2/models/unbatched/infer"),
    "an unknown model": lambda size: posted("/v2/models/nobody/infer", tensors(size)),
    "an id that is a number": lambda size: posted(V2, tensors(size, id=7)),
    "not JSON": lambda size: Message(V2, b"{" + b"[" * size, status=400),
}


def infer(size: int, raw: bytes | None = None, model: str = "anything", datatype: str = "FP32", **members: Any) -> Any:
    request = pb.ModelInferRequest(model_name=model, **members)
    request.inputs.add(name="x", datatype=datatype, shape=[1, size])
    if raw is not None:
        request.raw_input_contents.append(raw)
    return request


def called(request: Any) -> Message:
    return Message(INFER, request.SerializeToString(), status=0)


def listed(size: int) -> Message:
    request = infer(size // 4)
    request.inputs[0].contents.fp32_contents.extend([0.5] * (size // 4))
    return called(request)


def too_many_raw_texts(size: int) -> Message:
    count = TOO_MANY_TEXTS if size == LARGE else 1
    return called(infer(count, b"\1\0\0\0x" * count, datatype="BYTES"))


def too_many_integers(size: int) -> Message:
    count = TOO_MANY_INTEGERS if size == LARGE else 1
    request = infer(count, datatype="INT64")
    request.inputs[0].contents.int64_contents.extend([1] * count)
    return called(request)


RPC_MESSAGES: dict[str, Make] = {
    "raw": lambda size: called(infer(size // 4, bytes(size))),
    "listed": listed,
    "a sequence": lambda size: called(
        infer(size // 4, bytes(size), parameters={"sequence_id": pb.InferParameter(int64_param=7)})
    ),
    "too many texts": too_many_raw_texts,
    "too many integers": too_many_integers,
    "a model without batches": lambda size: called(infer(size // 4, bytes(size), "unbatched")),
    "not protobuf": lambda size: Message(INFER, b"\xff" * size, status=3),
    "another method": lambda size: Message(echoing.SERVICE + "ServerLive", bytes(size), status=0),
}

# To a predictor that speaks v2, whose model takes texts.
TRANSLATED_MESSAGES: dict[str, Make] = {
    "a text": lambda size: posted(V1, {"instances": [text(size)]}),
    "rows of several batches": lambda size: posted(V1, {"instances": [text(size // 10)] * 10}),
    "rows of another kind": lambda size: posted(V1, {"instances": [numbers(size)]}, status=400),
    "columns": lambda size: posted(V1, {"inputs": {"text": [text(size)]}}),
    "a text to embed": lambda size: posted(EMBED, {"input": [text(size)], "model": echoing.EMBEDDER}),
    "objects to embed": lambda size: posted(
        EMBED, {"input": [{"text": text(size)}], "model": echoing.EMBEDDER}, status=400
    ),
}
MESSAGES = {
    "v1": V1_MESSAGES, "v2": V2_MESSAGES, "gRPC": RPC_MESSAGES,
    "v1 to v2": TRANSLATED_MESSAGES, "v1 to gRPC": TRANSLATED_MESSAGES,
}  # fmt: skip
UPSTREAMS = {"v1 to v2": "triton-http", "v1 to gRPC": "triton-grpc"}


# --- what becomes of it -----------------------------------------------------------------------------------------

ENDS = (
    "refused by the predictor", "the predictor breaks off", "late", "left", "left in the middle",
    "too large", "no memory", "nobody listens",
)  # fmt: skip


def settings_for(end: str) -> dict[str, Any]:
    """Settings that bring this end about."""
    if end == "too large":
        return {"max_body_bytes": LARGE // 2}
    if end == "no memory":
        return {"max_body_bytes": LARGE * 3 // 2, "max_queue_bytes": LARGE * 3 // 2}  # two callers come at once
    if end == "nobody listens":
        return dict(zip(("component_port", "component_grpc_port"), loopback.free_ports(2), strict=True))
    return {}


class Bench:
    """A sidecar, the predictor behind it, and clients that send messages of the test's choice."""

    def __init__(self, sidecar: wiring.Sidecar, predictor: echoing.Predictor) -> None:
        self.sidecar = sidecar
        self.predictor = predictor
        self.failures: list[str] = []

    async def try_all(self, table: dict[str, Make], way: str, end: str) -> None:
        """See that nothing is kept of these messages, each sent in this way, to this end."""
        for name, make in table.items():
            if make(TINY).is_bad and end not in ("answered", "left in the middle"):
                continue
            await self.several(make(TINY), way, end)
            for size, times in TIMES.items():
                most, run = size * times // 2, functools.partial(self.several, make(size), way, end)
                found = await remains.kept(run, times, most)
                if found > most:
                    self.failures.append(f"{name}: {found} bytes are kept of {times} times {size}")

    async def several(self, message: Message, way: str, end: str) -> None:
        """From callers at once."""
        settings, predictor, gate = self.sidecar.settings, self.predictor, self.predictor.http.gate
        if end in ("late", "left"):
            gate.clear()
        send, port = (large_messages.post, settings.port)
        if message.path.startswith(echoing.SERVICE):
            send, port = large_messages.call, settings.grpc_port
        statuses = await asyncio.gather(*[send(port, message, way, end, predictor.at_work) for _ in range(AT_ONCE)])
        if end == "answered" and set(statuses) != {message.status}:
            self.failures.append(f"{message.path} of {len(message.body)} bytes was answered with {statuses}")
        gate.set()
        await self.at_rest()
        predictor.forget()

    async def at_rest(self) -> None:
        """Wait until nothing is held, nor comes to the predictor: of who has left its kernel may still have some."""
        ledger, rested = self.sidecar.ledger, 0
        for _ in range(1000):
            rested = 0 if ledger.held or ledger.active or self.predictor.http.handling else rested + 1
            if rested == 3:
                return
            await asyncio.sleep(0.005)
        raise TimeoutError("something is still held")


@contextlib.asynccontextmanager
async def bench_of(sidecar_of: Any, predictor: fake_predictor.FakePredictor, **chosen: Any) -> AsyncIterator[Bench]:
    async with echoing.running(predictor) as behind:
        rpc_port = loopback.free_ports(1)[0]
        about = {"max_batch_size": 4, "max_latency": 5, "lists": "openai-embeddings", "retry_budget": 100}
        around = await sidecar_of(**{"grpc_port": rpc_port, "component_grpc_port": behind.rpc.port, **about, **chosen})
        with remains.counted():
            yield Bench(around.sidecar, behind)


def by(*names: str) -> Any:
    """Parameters: protocols."""
    return pytest.mark.parametrize("protocol", names)


@by(*MESSAGES)
@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_kept_of_messages_that_are_answered(
    sidecar_of: Any, predictor: fake_predictor.FakePredictor, protocol: str, way: str
) -> None:
    async with bench_of(sidecar_of, predictor, upstream=UPSTREAMS.get(protocol, "http")) as bench:
        await bench.try_all(MESSAGES[protocol], way, "answered")
    assert bench.failures == [], "\n".join(bench.failures)


@by("v1", "v2", "gRPC")
@pytest.mark.parametrize("end", ENDS)
async def test_nothing_is_kept_of_messages_that_are_not_answered(
    sidecar_of: Any, predictor: fake_predictor.FakePredictor, protocol: str, end: str
) -> None:
    async with bench_of(sidecar_of, predictor, **settings_for(end)) as bench:
        if end == "refused by the predictor":
            predictor.behave, bench.predictor.refuses = echoing.refuse, True
        elif end == "the predictor breaks off":
            predictor.behave = echoing.hang_up
        await bench.try_all(MESSAGES[protocol], "pieces", end)
    assert bench.failures == [], "\n".join(bench.failures)
