"""A predictor for v1, v2 in JSON and v2 in binary that costs next to nothing, so that the sidecar is the limit.

It answers each row with its mark (see `traffic`). As the stub of `benchmarks.peers` it looks through bodies while they
arrive and keeps none; and in v2 it holds the sidecar to its word, with status 400 for a batch whose first dimension is
not the number of rows that came.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Protocol

from benchmarks import stub_server
from benchmarks.v2 import traffic

MODULE = "benchmarks.v2.stub"
MOST_ROWS = 1024
_SHAPE = re.compile(rb'"shape":\[(\d+),')
_BEGINNING = 256  # bytes of a body in JSON in which its shape stands
_TENSOR = {"datatype": "FP32", "shape": [-1, -1]}
_METADATA = {
    "name": traffic.MODEL,
    "versions": ["1"],
    "platform": "stub",
    "inputs": [{"name": traffic.INPUT, **_TENSOR}],
    "outputs": [{"name": traffic.OUTPUT, **_TENSOR}],
}
PAGES = {
    f"/v2/models/{traffic.MODEL}".encode(): json.dumps(_METADATA).encode(),
    f"/v2/models/{traffic.MODEL}/config".encode(): b'{"max_batch_size":%d}' % MOST_ROWS,
}
_KEY = traffic.JSON_SIZE.lower().encode()


class WrongShape(Exception):
    """A batch that is not what it says; `str()` tells how."""


class Answer:
    """Status, body, and how much of the body is JSON if the rest is not."""

    def __init__(self, body: bytes, status: bytes = b"200 OK", json_size: int | None = None) -> None:
        self.status = status
        self.body = body
        self.json_size = json_size

    def message(self) -> bytes:
        """All of it, as HTTP/1.1 has it."""
        kind, more = b"application/json", b""
        if self.json_size is not None:
            kind, more = b"application/octet-stream", b"%b: %d\r\n" % (traffic.JSON_SIZE.encode(), self.json_size)
        head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\n%bContent-Length: %d\r\n\r\n"
        return head % (self.status, kind, more, len(self.body)) + self.body


class Reader(Protocol):
    """Reads one body."""

    def feed(self, piece: bytes) -> None: ...

    def answer(self) -> Answer:
        """Raises `WrongShape`, and `ValueError` for a body that cannot be read."""
        ...


class Marks:
    """The marks in JSON, v1 or v2. `found` has them, as they were written."""

    def __init__(self, is_v1: bool) -> None:
        self._is_v1 = is_v1
        self._is_ahead = not is_v1  # of v2's data: the batch's id, in front of them, has hyphens as well
        self._beginning = b""
        self._cut = b""  # the beginning of a mark whose end is in the next piece
        self.found: list[bytes] = []

    def feed(self, piece: bytes) -> None:
        if self._cut:
            piece, self._cut = self._cut + piece, b""
        start = 0
        if self._is_ahead:
            before = len(self._beginning)
            self._beginning += piece[:_BEGINNING]
            start = self._beginning.find(b'"data"') - before
            if start < -before:
                return
            self._is_ahead = False
        at = piece.find(b"-", max(0, start))
        while at >= 0:
            end = at + traffic.MARK_BYTES
            if end > len(piece):
                self._cut = piece[at:]
                return
            self.found.append(piece[at:end])
            at = piece.find(b"-", end)

    def answer(self) -> Answer:
        rows, found = len(self.found), b",".join(self.found)
        if self._is_v1:
            return Answer(b'{"predictions":[%b]}' % found)
        said = _SHAPE.search(self._beginning)
        if said is None or int(said[1]) != rows:
            raise WrongShape(f"{rows} rows came in {self._beginning.decode(errors='replace')!r}")
        return Answer(b"%b%b]}]}" % (opening(rows, b'"data":['), found))


class Ends:
    """The marks in binary: the last number of each row. `json_size` is how much of the body is JSON."""

    def __init__(self, json_size: int) -> None:
        self._json_size = json_size
        self._text = b""
        self._found: list[bytes] = []
        # State of the binary part: bytes seen and to come, of a row, where the next row ends, the last four seen.
        self._seen = self._size = self._width = self._end = 0
        self._rows = 0
        self._last = b""

    def feed(self, piece: bytes) -> None:
        if len(self._text) < self._json_size:
            missing = self._json_size - len(self._text)
            self._text += piece[:missing]
            piece = piece[missing:]
            if len(self._text) < self._json_size:
                return
            self._learn()
        while self._end <= self._seen + len(piece) and len(self._found) < self._rows:
            end = self._end - self._seen
            self._found.append(piece[end - 4 : end] if end >= 4 else (self._last + piece[:end])[-4:])
            self._end += self._width
        self._seen += len(piece)
        self._last = (self._last + piece[-4:])[-4:]

    def answer(self) -> Answer:
        if self._seen != self._size:
            raise WrongShape(f"{self._seen} bytes came, not {self._size}")
        head = opening(self._rows, b'"parameters":{"binary_data_size":%d}}]}' % (4 * self._rows))
        return Answer(head + b"".join(self._found), json_size=len(head))

    def _learn(self) -> None:
        (tensor,) = json.loads(self._text)["inputs"]
        self._rows, elements = tensor["shape"]
        self._end = self._width = elements * struct.calcsize("f")
        self._size = tensor["parameters"]["binary_data_size"]
        if self._size != self._rows * self._width:
            raise WrongShape(f"{self._size} bytes for the shape {tensor['shape']}")


def opening(rows: int, rest: bytes) -> bytes:
    """The text of an answer for so many rows, up to and with `rest`."""
    name, output = traffic.MODEL.encode(), traffic.OUTPUT.encode()
    start = b'{"model_name":"%b","outputs":[{"name":"%b","datatype":"FP32","shape":[%d,1],%b'
    return start % (name, output, rows, rest)


class Connection(stub_server.Connection):
    """One connection from the sidecar. A request without a body asks for a page, or is a probe."""

    def __init__(self) -> None:
        super().__init__()
        self._url = b""
        self._json_size: int | None = None
        self._reader: Reader | None = None
        self._trouble = ""

    def on_message_begin(self) -> None:
        self._url, self._json_size, self._reader, self._trouble = b"", None, None, ""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == _KEY:
            self._json_size = int(value)

    def on_body(self, piece: bytes) -> None:
        if self._reader is None:
            self._reader = Marks(self._url.startswith(b"/v1")) if self._json_size is None else Ends(self._json_size)
        try:
            self._reader.feed(piece)
        except (WrongShape, ValueError, KeyError, TypeError) as error:
            self._trouble = repr(error)

    def on_message_complete(self) -> None:
        self._transport.write(self._answer().message())

    def _answer(self) -> Answer:
        if self._reader is None:
            return Answer(PAGES.get(self._url, b"{}"))
        try:
            if not self._trouble:
                return self._reader.answer()
        except WrongShape as error:
            self._trouble = repr(error)
        return Answer(json.dumps({"error": self._trouble}).encode(), b"400 Bad Request")


if __name__ == "__main__":
    stub_server.main(Connection, "A predictor that answers each row with its mark, at once.")
