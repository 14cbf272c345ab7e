"""A predictor that answers each instance with the same embedding at once, so that what is in front of it is the limit.

The embedding has as many numbers as MiniLM's, written as the predictor writes float32: each with the fewest digits that
read back as the same number. Bodies of answers are kept by the number of their instances, so an answer costs a copy.
Several processes can listen on one port, to find out what a client can take.
"""

from __future__ import annotations

import functools
import random
import struct

import msgspec

from benchmarks import stub_server

SIZE = 384
MODULE = "benchmarks.gpu.stub"
_INSTANCES = msgspec.json.Decoder(dict[str, list[msgspec.Raw]])


def embedding(seed: int = 1) -> list[float]:
    """So many numbers, of length 1 together, each one that float32 has."""
    generator = random.Random(seed)
    drawn = [generator.gauss(0.0, 1.0) for _ in range(SIZE)]
    length = sum(value * value for value in drawn) ** 0.5
    return [struct.unpack("<f", struct.pack("<f", value / length))[0] for value in drawn]


def shortest(value: float) -> str:
    """The fewest digits that read back as the same float32."""
    wanted = struct.pack("<f", value)
    return next(text for digits in range(1, 10) if struct.pack("<f", float(text := f"{value:.{digits}g}")) == wanted)


@functools.cache
def vector() -> bytes:
    """The embedding as JSON."""
    return f"[{','.join(map(shortest, embedding()))}]".encode()


@functools.lru_cache(maxsize=1024)
def answer(count: int) -> bytes:
    """The whole answer to a request with so many instances."""
    body = b'{"predictions":[%b]}' % b",".join([vector()] * count)
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Connection(stub_server.Connection):
    """One connection. Any path predicts; a request without a body is a probe."""

    def on_message_begin(self) -> None:
        self._pieces: list[bytes] = []

    def on_body(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        body = b"".join(self._pieces)
        instances = _INSTANCES.decode(body).get("instances", []) if body else []
        self._transport.write(answer(len(instances)))


def command(python: str, port: int) -> list[str]:
    """What starts one on a port, beside others there."""
    return stub_server.command(python, MODULE, port)


if __name__ == "__main__":
    stub_server.main(Connection, "A predictor that answers each instance with one embedding, at once.", shared=True)
