"""What callers send, in v1 and in v2, and which answer is theirs.

A request carries one row of numbers. The last one, its mark, is negative, which no other number is: the stub finds it
in any of the formats and answers with it, so that each caller can be told from the others.
"""

from __future__ import annotations

import array
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from benchmarks import client

MODEL = "echo"
INPUT, OUTPUT = "rows", "marks"
MARKS = 100_000
MARK_BYTES = 8
"""Of a mark in JSON: `-0.00042` is that of number 42."""

JSON_SIZE = "Inference-Header-Content-Length"
_V1_HEAD, _V1_TAIL = b'{"instances":[[', b"]]}"
_V2_TAIL = b"]}]}"
_NUMBER = b"0.1234567"
_STEP = 0.6180339887  # numbers so far apart, modulo 1, are spread evenly
_V1_PATH, _V2_PATH = f"/v1/models/{MODEL}:predict", f"/v2/models/{MODEL}/infer"


class Traffic(ABC):
    """One format. `size` is that of a body, in bytes, for every number below `MARKS`; other numbers, other bodies."""

    name: str
    path: str

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    def headers(self) -> Mapping[str, str]:
        """Those of every request."""
        return client.JSON

    @abstractmethod
    def body(self, number: int) -> bytes:
        """The body with this number."""

    @abstractmethod
    def is_own(self, number: int, answer: bytes) -> bool:
        """Whether the body of an answer is that to the request with this number."""


class V1(Traffic):
    """A v1 predict request with one instance, a list of numbers."""

    name, path = "v1 JSON", _V1_PATH

    def body(self, number: int) -> bytes:
        text, _ = row(self.size - len(_V1_HEAD) - len(_V1_TAIL), number)
        return _V1_HEAD + text + _V1_TAIL

    def is_own(self, number: int, answer: bytes) -> bool:
        found = _decoded(answer)
        return found.get("predictions") == [-number / MARKS]


class V2(Traffic):
    """A v2 inference request with one FP32 tensor of one row, its data a flat list of numbers."""

    name, path = "v2 JSON", _V2_PATH

    def body(self, number: int) -> bytes:
        for digits in range(1, 9):  # of the row's width, which the body's size decides
            room = self.size - len(_v2_head(0, digits)) - len(_V2_TAIL)
            text, width = row(room, number)
            if len(str(width)) <= digits:
                return _v2_head(width, digits) + text + _V2_TAIL
        raise ValueError(f"no body has {self.size} bytes")

    def is_own(self, number: int, answer: bytes) -> bool:
        output = _output(_decoded(answer))
        return output.get("data") == [-number / MARKS] and output.get("shape") == [1, 1]


class V2Binary(Traffic):
    """A v2 inference request with one row of FP32 in binary, which asks for binary; `size` is the tensor's."""

    name, path = "v2 binary", _V2_PATH

    def __init__(self, size: int) -> None:
        super().__init__(size)
        width = size // 4
        tensor = {"name": INPUT, "shape": [1, width], "datatype": "FP32", "parameters": {"binary_data_size": width * 4}}
        asked = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        self._head = json.dumps(asked, separators=(",", ":")).encode()
        self._filler = array.array("f", map(float, numbers(width - 1))).tobytes()

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Content-Type": "application/octet-stream", JSON_SIZE: str(len(self._head))}

    def body(self, number: int) -> bytes:
        return self._head + self._filler + mark(number)

    def is_own(self, number: int, answer: bytes) -> bool:
        text, data = answer[:-4], answer[-4:]
        output = _output(_decoded(text))
        return data == mark(number) and output.get("shape") == [1, 1]


class V1OfTensor(Traffic):
    """A v1 predict request with the tensor of `V2Binary(size)`."""

    name, path = "v1 JSON of the tensor", _V1_PATH

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._filler = ",".join(numbers(size // 4 - 1)).encode()

    def body(self, number: int) -> bytes:
        return b"%b%b,%b%b" % (_V1_HEAD, self._filler, _mark_text(number), _V1_TAIL)

    def is_own(self, number: int, answer: bytes) -> bool:
        return V1(0).is_own(number, answer)


def mark(number: int) -> bytes:
    """The mark of a tensor in binary."""
    return struct.pack("<f", -number / MARKS)


def numbers(count: int) -> list[str]:
    """So many different numbers from 0 to 1 in JSON, of as many digits as FP32 can tell apart there."""
    return [f"{at * _STEP % 1:.7f}" for at in range(count)]


def row(room: int, number: int) -> tuple[bytes, int]:
    """Numbers with commas between them, exactly `room` bytes, and how many they are; the last is the mark.

    Raises `ValueError` where there is no room for the mark.
    """
    if room < MARK_BYTES:
        raise ValueError(f"a row has {MARK_BYTES} bytes at least")
    count, rest = divmod(room - MARK_BYTES, len(_NUMBER) + 1)
    if not count:
        return b" " * rest + _mark_text(number), 1
    first = _NUMBER + b"8" * rest + b","
    return first + (_NUMBER + b",") * (count - 1) + _mark_text(number), count + 1


def _mark_text(number: int) -> bytes:
    return b"-0.%05d" % (number % MARKS)


def _v2_head(width: int, digits: int) -> bytes:
    return b'{"inputs":[{"name":"%b","shape":[1,%*d],"datatype":"FP32","data":[' % (INPUT.encode(), digits, width)


def _decoded(answer: bytes) -> dict[str, Any]:
    try:
        found = json.loads(answer)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _output(answer: dict[str, Any]) -> dict[str, Any]:
    outputs = answer.get("outputs")
    return outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else {}
