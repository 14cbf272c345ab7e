"""A predictor that costs next to nothing, so that the sidecar in front of it is the limit.

It answers each row (a flat list of numbers) with the last number in it, which tells callers apart and survives a
sidecar that decodes and encodes numbers on their way. Bodies are looked through as they arrive and never kept: at
1.5 MB a row even copying them would be most of the work.
"""

from __future__ import annotations

from benchmarks import stub_server

_WIDEST = 40  # bytes of a number, with what may stand around it


class LastNumbers:
    """The last number of each row, found piece by piece in `{"instances": [[...], ...]}`."""

    def __init__(self) -> None:
        self._found: list[bytes] = []
        self._tail = b""  # the end of what was seen since the last bracket

    def feed(self, piece: bytes) -> None:
        at = 0
        while (end := piece.find(b"]", at)) >= 0:
            seen = self._tail + piece[max(at, end - _WIDEST) : end]
            number = seen[max(seen.rfind(b","), seen.rfind(b"[")) + 1 :].strip()
            if number:  # else it is the bracket that ends the list of rows
                self._found.append(number)
            self._tail, at = b"", end + 1
        self._tail = (self._tail + piece[max(at, len(piece) - _WIDEST) :])[-_WIDEST:]

    def answer(self) -> bytes:
        return b'{"predictions":[' + b",".join(self._found) + b"]}"


class Connection(stub_server.Connection):
    """One connection from the sidecar. Any path predicts; a request without a body is a probe."""

    def __init__(self) -> None:
        super().__init__()
        self._rows = LastNumbers()

    def on_message_begin(self) -> None:
        self._rows = LastNumbers()

    def on_body(self, piece: bytes) -> None:
        self._rows.feed(piece)

    def on_message_complete(self) -> None:
        body = self._rows.answer()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)


def command(python: str, port: int) -> list[str]:
    """What starts the stub on a port."""
    return [python, "-m", "benchmarks.peers.stub", "--port", str(port)]


if __name__ == "__main__":
    stub_server.main(Connection, "A predictor that answers each row with its last number, at once.")
