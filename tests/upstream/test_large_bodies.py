"""Bodies of all sizes and shapes, both ways at once, and refused before they are through."""

from __future__ import annotations

import asyncio

import pytest

from carpool_sidecar import errors
from tests.upstream.wire import ANSWER, CHUNKED, Peer, ask, closed, http

pytestmark = pytest.mark.both_loops


SHAPES = {
    "nothing": [],
    "one piece": [b"x" * 2000],
    "one large piece": [b"y" * 3_000_000],
    "small ones": [b"a", memoryview(b"bcd")[1:], b"e"] * 100,
    "many small ones": [b"0123456789"] * 30_000,
    "large ones": [b"[", memoryview(b"x" * 700_001)[1:], b",", b"y" * 900_000, b"]"],
    "empty ones": [b"", b"x" * 200_000, b"", b"y", b""],
    "more than one write takes": [b"z" * 3000, b","] * 2000,
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_body_arrives_as_its_pieces_joined_whatever_their_sizes(wire, predictor, shape):
    for _ in range(2):
        await ask(predictor, SHAPES[shape])
        assert wire.requests[-1].body == b"".join(SHAPES[shape])
    assert len(wire.peers) == 1


@pytest.mark.parametrize("framing", ["length", "chunks", "end"])
async def test_a_large_answer_is_whole(wire, predictor, framing):
    body = bytes(range(256)) * 12_000
    wire.answers = [
        {
            "length": http(body),
            "chunks": CHUNKED
            + b"".join(b"%x\r\n%b\r\n" % (len(body) // 4, body[i::4]) for i in range(4))
            + b"0\r\n\r\n",
            "end": b"HTTP/1.1 200 OK\r\n\r\n" + body,
        }[framing]
    ]
    asked = asyncio.ensure_future(ask(predictor))
    await wire.received(1)
    if framing == "end":
        wire.peers[0].transport.close()
    answer = await asked
    assert type(answer) is bytes
    assert answer == (b"".join(body[i::4] for i in range(4)) if framing == "chunks" else body)
    if framing != "end":
        await ask(predictor)
        assert len(wire.peers) == 1


async def test_a_predictor_that_answers_while_it_reads_holds_nothing_up(wire, predictor):
    """Both directions are full at times: a client that sends before it reads would wait for ever."""
    body = b"x" * 8_000_000
    wire.answers = [b""]

    def answer(peer: Peer) -> None:
        peer.transport.set_write_buffer_limits(high=64 * 1024)
        peer.pause_writing = peer.transport.pause_reading
        peer.resume_writing = peer.transport.resume_reading
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))

    wire.on_head = answer
    wire.on_body = lambda peer, data: peer.say(data)
    assert await ask(predictor, (body,)) == body


@pytest.mark.parametrize("then", ["stalls", "closes", "reads on"])
async def test_an_answer_that_comes_before_all_is_sent_is_taken_and_ends_the_connection(wire, predictor, then):
    refusal = http(b"too much", b"413 Payload Too Large")

    def answer(peer: Peer) -> None:
        peer.transport.pause_reading()
        peer.say(refusal)
        if then == "reads on":
            asyncio.get_running_loop().call_soon(peer.transport.resume_reading)

    wire.on_head = answer
    wire.answers = [b""]
    asked = asyncio.ensure_future(ask(predictor, (b"x" * 30_000_000,)))
    if then == "closes":
        wire.on_head = lambda peer: (answer(peer), peer.transport.close())
    with pytest.raises(errors.UpstreamStatus) as caught:
        await asked
    assert (caught.value.status, caught.value.body) == (413, b"too much")
    if then == "stalls":
        wire.peers[0].transport.resume_reading()
    await closed(wire.peers[0])
    wire.on_head = lambda peer: None
    wire.answers = []
    assert await ask(predictor) == ANSWER
    assert len(wire.peers) == 2
