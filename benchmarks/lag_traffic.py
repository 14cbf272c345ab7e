"""The large requests of the scenes in `lag`: what is sent, what has to come back, and what the sidecar is told."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tritonclient.grpc import service_pb2

from benchmarks import bodies, cells, client, lag_stub, processes

SMALL_PATH = "/v1/models/small:predict"
_LARGE_PATH, _ANSWERS_PATH = "/v1/models/large:predict", "/v1/models/answers:predict"
_ROWS = 100
_TEXT, _OBJECT = b'"some text",', b'{"a":1,"b":"text","c":2.5},'
_STRING = b"x" * 38  # with its length and tag 40 bytes in a message


@dataclass
class Large:
    """`request` is a whole request of HTTP/1.1, or a message for gRPC if it `is_rpc`."""

    request: bytes
    is_right: Callable[[bytes], bool]
    settings: Sequence[str] = ()
    is_rpc: bool = False


def of(scene: cells.Scene) -> Large:
    """A scene's large request."""
    return _KINDS[scene.kind](scene)


def predictions(answer: bytes) -> object:
    """Those of a v1 answer, also where each is a list of one; None if it has none."""
    try:
        return [each[0] if isinstance(each, list) else each for each in json.loads(answer)["predictions"]]
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def body(scene: cells.Scene) -> tuple[bytes, list[float]]:
    """Numbers as a scene's large body, and the predictions that the stub gives for it."""
    return bodies.several(scene.size, scene.instances), [bodies.mark(number) for number in range(scene.instances)]


def _post(written: bytes, expected: list[float], *settings: str, **headers: str) -> Large:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = client.post(processes.HOST, _LARGE_PATH, written, client.JSON | named)  # type: ignore[operator]
    return Large(request, lambda answer: predictions(answer) == expected, settings)


def _numbers(scene: cells.Scene) -> Large:
    return _post(*body(scene))


def _rows_of(value: bytes) -> Callable[[cells.Scene], Large]:
    def make(scene: cells.Scene) -> Large:
        each = value * (scene.size // _ROWS // len(value))
        rows = [b"[%b0.%05d]" % (each, number) for number in range(_ROWS)]
        return _post(b'{"instances":[%b]}' % b",".join(rows), [bodies.mark(number) for number in range(_ROWS)])

    return make


def _compressed(scene: cells.Scene) -> Large:
    written, expected = body(scene)
    return _post(gzip.compress(written), expected, Content_Encoding="gzip")


def _answers(scene: cells.Scene) -> Large:
    request = client.post(processes.HOST, _ANSWERS_PATH, b'{"instances":[[1.0]]}')
    return Large(request, lambda answer: lag_stub.LARGE_ANSWER in answer)


def _floats(scene: cells.Scene) -> Large:
    return _post(*body(scene), "--upstream", "triton-http")


def _strings_by_rpc(scene: cells.Scene) -> Large:
    count = scene.size // 40
    message = service_pb2.ModelInferRequest(model_name=lag_stub.RPC_MODEL)
    message.inputs.add(name="x", datatype="BYTES", shape=[1, count]).contents.bytes_contents.extend([_STRING] * count)
    return Large(message.SerializeToString(), lambda answer: lag_stub.RPC_ANSWER in answer, is_rpc=True)


_KINDS: dict[str, Callable[[cells.Scene], Large]] = {
    "numbers": _numbers,
    "strings": _rows_of(_TEXT),
    "objects": _rows_of(_OBJECT),
    "gzip": _compressed,
    "answers": _answers,
    "tensors": _floats,
    "rpc": _strings_by_rpc,
}
