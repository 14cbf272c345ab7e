"""The last answer of a connection reaches its client, which may still be sending and sees at once that this was all."""

from __future__ import annotations

import asyncio

import pytest

from tests.app.conftest import PREDICT
from tests.app.plain_client import until

BODY = b'{"instances":[1]}'


def head(*lines: bytes, path: bytes = PREDICT.encode()) -> bytes:
    return b"\r\n".join([b"POST " + path + b" HTTP/1.1", b"Host: h", *lines, b"", b""])


async def talk(bench, *pieces: bytes) -> tuple[bytes, float]:
    """What a client reads that sends these, one each second, and when the server was done."""
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.sidecar.settings.port)
    ended, done = asyncio.ensure_future(reader.read()), []
    begun = loop.time()
    ended.add_done_callback(lambda _: done.append(loop.time() - begun))
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(1)
    answer = await asyncio.wait_for(ended, 60)
    writer.close()
    await writer.wait_closed()
    return answer, done[0]


LATE = head(b"Content-Length: 1000") + BODY
LATE_IN_CHUNKS = head(b"Transfer-Encoding: chunked") + b"400\r\n" + BODY


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(LATE, 408, id="body"),
        pytest.param(LATE_IN_CHUNKS, 408, id="body in chunks"),
        pytest.param(head()[:20], 408, id="head"),
        pytest.param(head(b"Content-Length: 9000000"), 413, id="too large"),
        pytest.param(head(b"Transfer-Encoding: gzip, chunked"), 501, id="unknown coding"),
        pytest.param(head(b"Content-Length: 9999999999999999999"), 400, id="length that no body has"),
    ],
)
async def test_a_refusal_is_read_by_who_goes_on_sending_and_nothing_waits_for_the_rest(sidecar_of, sent, status):
    times = {"timeout": 2.5, "head_timeout": 2.5}
    bench = await sidecar_of(max_latency=0, max_body_bytes=100_000, **times)
    for more in ([], [b"x"] * 6):
        answer, seconds = await talk(bench, sent, *more)
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert seconds <= 4


@pytest.mark.looptime
async def test_the_last_answer_before_shutdown_is_read_by_who_sends_more_than_is_read(sidecar_of):
    bench = await sidecar_of(max_latency=0, quiet_period=0.0)
    bench.predictor.gate.clear()
    request = head(b"Content-Length: 17") + BODY
    asking = asyncio.ensure_future(talk(bench, request, request * 20_000))
    await asyncio.sleep(2)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(1)
    bench.predictor.gate.set()
    answer, _ = await asking
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nConnection: close\r\n" in answer
    await draining


@pytest.mark.uvloop
async def test_who_is_refused_and_told_so_ends_the_connection(sidecar_of):
    bench = await sidecar_of(max_body_bytes=1024, head_timeout=0.1)
    for sent, status in ((head(b"Content-Length: 2000"), 413), (head()[:20], 408)):
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.sidecar.settings.port)
        writer.write(sent)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        for _ in range(3):
            writer.write(b"x" * 100)
            await asyncio.sleep(0.01)
        assert bench.sidecar.connection_limit.open == 1
        writer.close()
        await writer.wait_closed()
        await until(lambda: bench.sidecar.connection_limit.open == 0)
