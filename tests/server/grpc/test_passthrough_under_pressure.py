"""Calls passed through whose caller or predictor is slow, or never comes to an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from carpool_sidecar.protocols.v2_grpc import statuses
from carpool_sidecar.server.grpc import passthrough
from carpool_sidecar.server.http2 import frames
from tests.server.grpc.any_calls import FIELDS, PATH, echo, framed, opened
from tests.server.grpc.peer import Peer
from tests.server.grpc.site import INFER, Site, until
from tests.server.http2 import peer as http2


async def test_a_caller_who_does_not_read_stops_the_predictor(peer_site: Site, peer: Peer) -> None:
    written = 0
    enough = asyncio.Event()

    async def pour(messages: AsyncIterator[bytes], context: Any) -> None:
        nonlocal written
        while not enough.is_set():
            await context.write(bytes(100_000))
            written += 1

    peer.methods[PATH] = pour
    stream, handler = opened(peer_site)
    stream.is_blocked = True
    await until(lambda: bool(peer.calls))
    before = -1
    while before < written:  # what the sockets between take
        assert written < 1000, "everything was taken although nobody read it"
        before = written
        await asyncio.sleep(0.2)
    assert not stream.sent
    enough.set()
    stream.is_blocked = False
    handler.writable()
    handler.end()
    await stream.end()
    assert len(stream.messages) == written


async def test_a_predictor_that_does_not_read_stops_the_caller(peer_site: Site, peer: Peer) -> None:
    gate = asyncio.Event()

    async def hesitate(messages: AsyncIterator[bytes], context: Any) -> None:
        await gate.wait()
        total = 0
        async for message in messages:
            total += len(message)
        await context.write(b"%d" % total)

    peer.methods[PATH] = hesitate
    stream, handler = opened(peer_site)
    body = framed(bytes(1_000_000))
    sent = 0
    for _ in range(30):
        if stream.granted < sent:
            break
        handler.data(body)
        sent += len(body)
        await asyncio.sleep(0.02)
    else:
        pytest.fail("everything was taken although nobody read it")
    assert peer_site.bodies.memory.held > 0
    gate.set()
    await until(lambda: stream.granted == sent)
    handler.end()
    await stream.end()
    assert stream.messages == [b"%d" % (sent // len(body) * 1_000_000)]
    assert peer_site.bodies.memory.held == 0


async def test_a_message_that_never_comes_to_its_end_is_not_kept_for_ever(peer_site: Site, peer: Peer) -> None:
    peer.methods[PATH] = echo
    peer_site.bodies.read_timeout = 0.2
    stream, handler = opened(peer_site)
    handler.data(framed(b"whole") + framed(b"cut off")[:-1])
    await until(lambda: len(stream.messages) == 1)
    await stream.end()
    assert stream.messages == [b"whole"]
    assert stream.status != statuses.OK
    assert peer_site.life.active == 0
    await until(lambda: peer_site.bodies.memory.held == 0)


@pytest.mark.parametrize("whole", [b"", b"whole"], ids=["the first message", "a later message"])
async def test_a_message_that_comes_in_many_pieces_has_no_more_time_than_any(
    peer_site: Site, peer: Peer, whole: bytes
) -> None:
    """Else a caller could have its bytes kept for ever by sending one now and then."""
    peer.methods[PATH] = echo
    peer_site.bodies.read_timeout = 0.3
    stream, handler = opened(peer_site)
    if whole:
        handler.data(framed(whole))
        await until(lambda: len(stream.messages) == 1)
    began = time.monotonic()
    pieces = 0
    for byte in framed(b"a message that never comes to its end" * 10):
        if stream.over.is_set():
            break
        handler.data(bytes([byte]))
        pieces += 1
        await asyncio.sleep(0.03)
    assert pieces >= 3
    assert 0.3 <= time.monotonic() - began < 3.0
    assert stream.messages == ([whole] if whole else [])
    assert stream.status == statuses.DEADLINE_EXCEEDED
    await until(lambda: (peer_site.bodies.memory.held, peer_site.life.active) == (0, 0))


async def test_a_message_that_begins_with_the_end_of_another_must_come_to_its_end_too(
    peer_site: Site, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.methods[PATH] = echo
    peer_site.bodies.read_timeout = 3600
    stream, handler = opened(peer_site)
    message = framed(b"in two pieces")
    handler.data(message[:3])
    handler.data(message[3:] + message[:3])
    await until(lambda: len(stream.messages) == 1)
    loop, time_ = asyncio.get_running_loop(), asyncio.get_running_loop().time
    monkeypatch.setattr(loop, "time", lambda: time_() + 3600)
    await stream.end()
    assert (stream.messages, stream.status) == ([b"in two pieces"], statuses.DEADLINE_EXCEEDED)
    await until(lambda: (peer_site.bodies.memory.held, peer_site.life.active) == (0, 0))


async def test_each_message_has_its_own_time(peer_site: Site, peer: Peer) -> None:
    peer.methods[PATH] = echo
    peer_site.bodies.read_timeout = 0.3
    stream, handler = opened(peer_site)
    message = framed(b"in three pieces")
    pieces = [message[:3], message[3:9], message[9:] + message[:3], message[3:9], message[9:] + message[:3]]
    for piece in [*pieces, message[3:9], message[9:]]:
        handler.data(piece)
        await asyncio.sleep(0.1)
    handler.end()
    await stream.end()
    assert (stream.messages, stream.status) == ([b"in three pieces"] * 3, statuses.OK)


async def test_a_stream_may_rest_between_messages_for_as_long_as_it_likes(peer_site: Site, peer: Peer) -> None:
    peer.methods[PATH] = echo
    peer_site.bodies.read_timeout = 0.05
    stream, handler = opened(peer_site)
    handler.data(framed(b"one")[:4])
    handler.data(framed(b"one")[4:])
    await until(lambda: len(stream.messages) == 1)
    await asyncio.sleep(0.2)
    handler.data(framed(b"two"))
    handler.end()
    await stream.end()
    assert (stream.messages, stream.status) == ([b"one", b"two"], statuses.OK)


async def test_a_turn_begins_few_calls_to_the_predictor_however_many_came_at_once(peer_site: Site, peer: Peer) -> None:
    peer.methods[PATH] = echo
    client = http2.Peer(peer_site.service).begin()
    fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", PATH.encode()), *FIELDS)
    client.connection.feed(b"".join(client.headers(number, fields=fields) for number in range(1, 101, 2)))
    begun = []
    while client.connection.has_more:
        before = peer_site.passthrough.under_way
        client.connection.go_on()
        begun.append(peer_site.passthrough.under_way - before)
    assert sum(begun) == 50
    assert max(begun) <= 8
    client.connection.lost()
    while client.connection.has_more:
        client.connection.go_on()
    await until(lambda: not peer_site.passthrough.under_way)


async def test_what_is_reset_in_the_same_breath_never_reaches_the_predictor(site: Site) -> None:
    """Also where a turn ends between the two."""
    channel = Silence()
    site.service.passthrough = passthrough.Passthrough(channel, site.service.report)
    client = http2.Peer(site.service).begin()
    fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", PATH.encode()), *FIELDS)
    client.connection.feed(
        b"".join(
            client.headers(number, fields=fields)
            + frames.frame(frames.DATA, 0, number, framed(b""))
            + frames.rst_stream(number, frames.Code.CANCEL)
            for number in range(1, 401, 2)
        )
    )
    turns = 0
    while client.connection.has_more:
        client.connection.go_on()
        await asyncio.sleep(0)
        turns += 1
    await until(lambda: not site.service.passthrough.under_way)
    assert turns > 10
    assert channel.calls == 0
    assert site.life.active == 0


@pytest.mark.parametrize("path", [PATH, INFER])
async def test_small_messages_count_more_than_their_bytes(peer_site: Site, peer: Peer, path: str) -> None:
    peer.methods[PATH] = echo
    stream, handler = opened(peer_site, path=path)
    before = stream.charged
    handler.data(framed(b"") * 3000)
    assert stream.charged - before >= 1500
    if path == PATH:
        handler.end()
    await stream.end()
    await until(lambda: peer_site.life.active == 0)


class Silence:
    """A channel that counts the calls that are begun, of which nothing comes."""

    def __init__(self) -> None:
        self.calls = 0

    def stream_stream(self, path: str) -> Any:
        return self._begin

    unary_stream = stream_stream

    def _begin(self, *_: Any, **__: Any) -> Any:
        self.calls += 1
        raise ValueError("it was begun")
