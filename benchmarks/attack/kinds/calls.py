"""Ordinary gRPC clients that ask for much and do not wait for it, or send what is dear to read."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from typing import Any

import grpc.aio
from tritonclient.grpc import service_pb2 as pb

from benchmarks.attack import attack, backend, frames, link, target

_SENT = 3_900_000  # just below what may be on its way for one stream
_LARGE = 30_000_000
_INFLATED = 16_000_000  # more would make the predictor itself the slow one
_GZIP = 31  # zlib's window bits
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


FAILED = grpc.aio.AioRpcError


@contextlib.asynccontextmanager
async def client(to: target.Target) -> Any:
    """A channel of grpcio's to the gRPC port."""
    to.spend_connection()
    async with grpc.aio.insecure_channel(f"{to.host}:{to.grpc_port}", options=_OPTIONS) as channel:
        yield channel


def _cancelled(path: str, size: int, calls: int, at_once: int, seconds: float) -> attack.Strike:
    """Calls given up after so many seconds."""

    async def run(to: target.Target) -> None:
        message = infer_of(size) if path == backend.INFER else bytes(size)
        async with client(to) as channel:
            method = channel.unary_unary(path)

            async def one() -> None:
                to.spend_bytes(size)
                with contextlib.suppress(FAILED):
                    await method(message, timeout=seconds)

            for _ in range(calls // at_once):
                await asyncio.gather(*(one() for _ in range(at_once)))

    return run


def infer_of(size: int, model: str = backend.MODEL) -> bytes:
    """A `ModelInfer` of one row of FP32 with about so many bytes."""
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name=backend.INPUT, datatype="FP32", shape=[1, size // 4])
    request.raw_input_contents.append(bytes(size // 4 * 4))
    return bytes(request.SerializeToString())


def _texts(count: int, rows: int = 1) -> Any:
    request = pb.ModelInferRequest(model_name=backend.TEXTS)
    request.inputs.add(name=backend.TEXTS, datatype="BYTES", shape=[rows, count // rows])
    return request


def _raw_texts(size: int) -> bytes:
    """So many bytes of empty elements."""
    request = _texts(size // 4)
    request.raw_input_contents.append(bytes(size))
    return bytes(request.SerializeToString())


def _typed_texts(size: int) -> bytes:
    """So many bytes of empty elements: two bytes each."""
    request = _texts(size // 2)
    request.inputs[0].contents.bytes_contents.extend([b""] * (size // 2))
    return bytes(request.SerializeToString())


def _typed_numbers(size: int) -> bytes:
    """So many bytes of INT64, a byte each."""
    request = pb.ModelInferRequest(model_name=backend.TEXTS)
    request.inputs.add(name=backend.TEXTS, datatype="INT64", shape=[1, size])
    request.inputs[0].contents.int64_contents.extend([1] * size)
    return bytes(request.SerializeToString())


def _many_inputs(count: int) -> bytes:
    request = pb.ModelInferRequest(model_name=backend.TEXTS)
    for number in range(count):
        request.inputs.add(name=f"{backend.INPUT}{number}", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.extend([bytes(4)] * count)
    return bytes(request.SerializeToString())


def _strange_shape(dims: int) -> bytes:
    request = pb.ModelInferRequest(model_name=backend.TEXTS)
    request.inputs.add(name=backend.INPUT, datatype="FP32", shape=[1] * dims)
    request.raw_input_contents.append(bytes(4))
    return bytes(request.SerializeToString())


def _sent_again(make: Any, *arguments: Any) -> attack.Strike:
    """One call after the other with the same message."""

    async def run(to: target.Target) -> None:
        message = make(*arguments)
        async with client(to) as channel:
            method = channel.unary_unary(backend.INFER)
            while to.left:
                to.spend_bytes(len(message))
                with contextlib.suppress(FAILED):
                    await method(message, timeout=to.left)

    return run


def _compressed(path: str, size: int) -> attack.Strike:
    """A message of so many bytes, and a thousandth of that once it is compressed, one call after the other."""

    async def run(to: target.Target) -> None:
        plain = _raw_texts(size) if path == backend.INFER else bytes(size)
        packer = zlib.compressobj(9, wbits=_GZIP)
        body = frames.message(packer.compress(plain) + packer.flush(), 1)
        block = frames.block(frames.call(path, grpc_encoding=b"gzip"))
        async with link.http2(to) as one:
            stream = 1
            while to.left:
                await one.send(frames.open_stream(stream, block) + frames.data(stream, body))
                await one.answered(stream // 2 + 1)
                stream += 2

    return attack.again(run)


def _many_messages(path: str, payload: bytes = b"") -> attack.Strike:
    """A stream of small messages without end, compressed if they are not empty: a method that takes one gets them."""

    async def run(to: target.Target) -> None:
        packed = zlib.compress(payload, wbits=_GZIP) if payload else b""
        block = frames.block(frames.call(path, grpc_encoding=b"gzip"))
        one_message = frames.message(packed, 1 if packed else 0)
        piece = one_message * (16_384 // len(one_message))
        async with link.http2(to) as one:
            await one.send(frames.open_stream(1, block))
            await one.flood(frames.frame(frames.DATA, 0, 1, piece), 30_000_000)
            await one.linger()

    return attack.again(run)


ATTACKS = (
    attack.Attack(
        "cancelled", "100 calls of 3.9 MB, given up", _cancelled(backend.HOLD, _SENT, 100, 10, 0.3), seconds=10
    ),
    attack.Attack(
        "deadline", "50 calls of 30 MB with timeout=0.02", _cancelled(backend.HOLD, _LARGE, 50, 1, 0.02), seconds=10
    ),
    attack.Attack(
        "deadline-infer",
        "50 ModelInfer of 30 MB with timeout=0.02",
        _cancelled(backend.INFER, _LARGE, 50, 1, 0.02),
        seconds=10,
    ),
    attack.Attack("texts-raw", "1,000,000 elements of BYTES in 4 MB", _sent_again(_raw_texts, 4_000_000)),
    attack.Attack("texts-typed", "1,000,000 typed elements in 2 MB", _sent_again(_typed_texts, 2_000_000)),
    attack.Attack("numbers-typed", "2,000,000 typed INT64 in 2 MB", _sent_again(_typed_numbers, 2_000_000)),
    attack.Attack("inputs", "100,000 inputs", _sent_again(_many_inputs, 100_000)),
    attack.Attack("dimensions", "1,000,000 dimensions", _sent_again(_strange_shape, 1_000_000)),
    attack.Attack("bomb", "ModelInfer of 16 MB in 16 kB", _compressed(backend.INFER, _INFLATED)),
    attack.Attack("bomb-passed", "a message of 16 MB in 16 kB, passed through", _compressed(backend.BLOB, _INFLATED)),
    attack.Attack("bomb-large", "a message of 80 MB in 80 kB, passed through", _compressed(backend.BLOB, 80_000_000)),
    attack.Attack("messages", "6,000,000 empty messages", _many_messages(backend.INFER)),
    attack.Attack("messages-compressed", "1,000,000 compressed messages", _many_messages(backend.INFER, b"x")),
    attack.Attack(
        "messages-compressed-passed",
        "the same, passed through, on four connections",
        attack.at_once(_many_messages(backend.HOLD, b"x"), 4),
    ),
    attack.Attack("messages-passed", "the same, passed through", _many_messages(backend.HOLD)),
)
