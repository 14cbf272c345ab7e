"""`python -m benchmarks.longest`: how long the event loop is held by one message of megabytes, stage by stage.

Each stage of a large request and its answer runs as the sidecar runs it: in steps, one in each turn of the loop, or in
one go. What is told is the longest step, the least of three runs for each step, in processor time of this thread: no
other work on the machine counts. The text of the JSON is known from a message before, as it is in use.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tritonclient.grpc import service_pb2

import carpool_sidecar
from carpool.scheduling import messages
from carpool_sidecar.protocols import interface, models, steps, v2
from carpool_sidecar.protocols.tensors_from_embeddings import front as embeddings_front
from carpool_sidecar.protocols.v2_grpc import codec as grpc_codec
from carpool_sidecar.protocols.v2_http import codec as http_codec
from carpool_sidecar.protocols.v2_http import framing
from carpool_sidecar.protocols.v2_http import tensors as http_tensors

_RUNS = 3
_NUMBERS, _WIDTH = 400_000, 100
_TEXTS, _DIMENSIONS = 700, 1536
_LISTED = {"INT64": 200_000, "FP32": 1_000_000, "BYTES": 90_000}


class Stage(NamedTuple):
    """One stage: `longest` and `all` of its steps in milliseconds, and what comes of it."""

    name: str
    longest: float
    all: float
    count: int
    result: Any


def in_steps(name: str, start: Callable[[], steps.Steps[Any]]) -> Stage:
    """A stage that is a generator of steps."""
    runs = []
    for _ in range(_RUNS + 1):
        work, taken, result = start(), [], None
        while True:
            began = time.thread_time()
            try:
                next(work)
            except StopIteration as end:
                result = end.value
                break
            finally:
                taken.append((time.thread_time() - began) * 1e3)
        runs.append(taken)
    least = [min(each) for each in zip(*runs[1:], strict=True)]  # the first makes the text known
    return Stage(name, max(least), sum(least), len(least), result)


def at_once(name: str, run: Callable[[], Any]) -> Stage:
    """A stage without steps."""

    def work() -> steps.Steps[Any]:
        return run()
        yield

    return in_steps(name, work)


def batch_of(codec: Any, large: Any, small: Any, answer: bytes, headers: dict[bytes, bytes]) -> Iterator[Stage]:
    """From joining a large request with another to what its caller is sent."""
    requests = [messages.Request(each.key, each.row_count, payload=each) for each in (large, small)]
    parts = [messages.Part(each, 0, each.rows) for each in requests]
    merged = at_once("joined with another", lambda: codec.merge("batch", "/", parts))
    yield merged
    call: interface.UpstreamRequest = merged.result
    yield at_once("copied into one", lambda: b"".join(call.body))
    reply = interface.UpstreamResponse(answer, headers)
    call.read(reply)  # so that its text is known
    read = in_steps("answer read", lambda: call.read_in_steps(reply))
    yield read
    share = [messages.Piece(0, "batch", read.result.rows[0 : large.row_count])]
    yield at_once("answer written", lambda: b"".join(large.response_format.render(share).body))


def v2_json(is_nested: bool) -> Iterator[Stage]:
    """Numbers in v2 JSON, in a list for each row or in one."""
    source = random.Random(1)
    numbers = [round(source.random(), 7) for _ in range(_NUMBERS)]
    rows = [numbers[at : at + _WIDTH] for at in range(0, _NUMBERS, _WIDTH)]

    def text(member: str, given: Sequence[Any]) -> bytes:
        data = given if is_nested else [number for row in given for number in row]
        tensor = {"name": "x", "shape": [len(given), _WIDTH], "datatype": "FP32", "data": data}
        return json.dumps({member: [tensor]}, separators=(",", ":")).encode()

    codec = http_codec.Codec(models.ModelInfo(), lambda: None)
    body = text("inputs", rows)
    codec.parse(body, len(rows))
    parsed = in_steps("request read", lambda: codec.parse_in_steps(body, len(rows)))
    yield parsed
    small = codec.parse(text("inputs", rows[:1]), 1)
    yield from batch_of(codec, parsed.result, small, text("outputs", [*rows, rows[0]]), {})


def grpc_lists(datatype: str) -> Iterator[Stage]:
    """A tensor as a list of numbers or strings, over gRPC, answered raw."""
    count, kind = _LISTED[datatype], v2.DATATYPES[datatype]
    values: list[Any] = [at % 100 for at in range(count)]
    if datatype == "BYTES":
        values = [b"x%06d" % at for at in range(count)]
    request = service_pb2.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=[1, count])
    getattr(tensor.contents, kind.contents or "").extend(values)
    body = request.SerializeToString()
    codec = grpc_codec.Codec(models.ModelInfo(), lambda: None)
    parsed = in_steps("request read", lambda: codec.parse_in_steps(body, 10))
    yield parsed
    answer = service_pb2.ModelInferResponse(model_name="m")
    answer.outputs.add(name="y", datatype=datatype, shape=[2, count])
    raw = v2.pack(values) if kind.size is None else struct.pack(f"<{count}{kind.code}", *values)
    answer.raw_output_contents.append(raw * 2)
    yield from batch_of(codec, parsed.result, parsed.result, answer.SerializeToString(), {})


def embeddings(form: str) -> Iterator[Stage]:
    """Embeddings of many texts from a predictor that speaks only v2."""
    spec, output = models.TensorSpec("text", "BYTES", (-1,)), models.TensorSpec("vectors", "FP32", (-1, _DIMENSIONS))
    info = models.ModelInfo((spec,), (output,), 2 * _TEXTS)
    codec = embeddings_front.Codec(models.ModelName("m"), info, http_tensors)
    body = json.dumps({"model": "m", "input": ["text"] * _TEXTS, "encoding_format": form}).encode()
    parsed = in_steps("request read", lambda: codec.parse_in_steps(body, _TEXTS))
    yield parsed
    source = random.Random(1)
    row = struct.pack(f"<{_DIMENSIONS}f", *[source.gauss(0, 1) for _ in range(_DIMENSIONS)])
    data = row * (2 * _TEXTS)
    told = {"name": "vectors", "shape": [2 * _TEXTS, _DIMENSIONS], "datatype": "FP32"}
    head = json.dumps({"outputs": [{**told, "parameters": {"binary_data_size": len(data)}}]}).encode()
    headers = {framing.HEADER_KEY: b"%d" % len(head)}
    yield from batch_of(codec, parsed.result, parsed.result, head + data, headers)


CELLS: dict[str, Callable[[], Iterator[Stage]]] = {
    "v2 JSON, 4 MB, nested": lambda: v2_json(True),
    "v2 JSON, 4 MB, flat": lambda: v2_json(False),
    "gRPC, 200 kB of INT64 in a list": lambda: grpc_lists("INT64"),
    "gRPC, 4 MB of FP32 in a list": lambda: grpc_lists("FP32"),
    "gRPC, 810 kB of BYTES in a list": lambda: grpc_lists("BYTES"),
    "embeddings, two callers of 4.3 MB, as numbers": lambda: embeddings("float"),
    "embeddings, two callers of 4.3 MB, in base64": lambda: embeddings("base64"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each stage."""
    argparse.ArgumentParser(prog="python -m benchmarks.longest", description=__doc__).parse_args(argv)
    print(f"{carpool_sidecar.build()}; milliseconds of processor time")
    for name, stages in CELLS.items():
        print(name)
        for stage in stages():
            print(f"  {stage.name:20} longest step {stage.longest:6.2f}, {stage.count} steps take {stage.all:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
