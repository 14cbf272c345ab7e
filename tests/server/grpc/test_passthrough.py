"""Calls of any service are passed through to a real gRPC server: all four kinds, both ways, to the end."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from carpool_sidecar.protocols.v2_grpc import statuses
from carpool_sidecar.server.grpc import passthrough
from tests.server.grpc.any_calls import PATH, echo, framed, opened
from tests.server.grpc.peer import Peer
from tests.server.grpc.site import INFER, Site, turns, until


async def test_one_message_is_answered_with_one(peer_site: Site, peer: Peer) -> None:
    peer.methods[PATH] = echo
    stream, handler = opened(peer_site)
    handler.data(framed(b"hello"))
    handler.end()
    await stream.end()
    assert (stream.messages, stream.status) == ([b"hello"], statuses.OK)
    assert stream.headers[b":status"] == b"200"
    assert stream.headers[b"content-type"] == b"application/grpc+proto"
    assert peer_site.counted("passthrough", "OK") == 1
    assert (peer_site.bodies.memory.held, peer_site.life.active) == (0, 0)


async def test_many_messages_are_answered_with_one(peer_site: Site, peer: Peer) -> None:
    async def join(messages: AsyncIterator[bytes], context: Any) -> None:
        await context.write(b"".join([message async for message in messages]))

    peer.methods[PATH] = join
    stream, handler = opened(peer_site)
    body = framed(*(b"%d," % i for i in range(100)))
    for at in range(0, len(body), 7):
        handler.data(body[at : at + 7])
    handler.end()
    await stream.end()
    assert stream.messages == [b"".join(b"%d," % i for i in range(100))]


async def test_one_message_is_answered_with_many(peer_site: Site, peer: Peer) -> None:
    async def count(messages: AsyncIterator[bytes], context: Any) -> None:
        async for message in messages:
            for i in range(int(message)):
                await context.write(b"%d" % i)

    peer.methods[PATH] = count
    stream, handler = opened(peer_site)
    handler.data(framed(b"50"))
    handler.end()
    await stream.end()
    assert stream.messages == [b"%d" % i for i in range(50)]


async def test_messages_are_passed_both_ways_as_they_come(peer_site: Site, peer: Peer) -> None:
    peer.methods[PATH] = echo
    stream, handler = opened(peer_site)
    for i in range(1, 4):
        handler.data(framed(b"m%d" % i))
        await until(lambda i=i: len(stream.messages) == i)
        assert stream.granted == i * len(framed(b"m1"))
    assert not stream.over.is_set()
    handler.end()
    await stream.end()
    assert stream.messages == [b"m1", b"m2", b"m3"]


async def test_metadata_are_passed_both_ways(peer_site: Site, peer: Peer) -> None:
    async def talk(messages: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata((("first", "1"), ("first-bin", b"\0\1")))
        async for _ in messages:
            pass
        context.set_trailing_metadata((("last", "2"), ("last-bin", b"\xff"), ("grpc-status-details-bin", b"\0")))
        context.set_code(grpc.StatusCode.ABORTED)
        context.set_details("über, 100%")

    peer.methods[PATH] = talk
    stream, handler = opened(peer_site, (b"x-own", b"mine"), (b"x-bin", b"AAE"), (b"user-agent", b"secret"))
    # grpc.aio may lose initial metadata that come in one read with a status that is no OK.
    await until(lambda: b"first" in stream.headers)
    handler.end()
    await stream.end()
    _, metadata, _ = peer.calls[0]
    assert (metadata["x-own"], metadata["x-bin"]) == ("mine", b"\0\1")
    assert "secret" not in metadata["user-agent"]
    assert (stream.headers[b"first"], stream.headers[b"first-bin"]) == (b"1", b"AAE")
    assert (stream.trailers[b"last"], stream.trailers[b"last-bin"]) == (b"2", b"/w")
    assert stream.trailers[b"grpc-status-details-bin"] == b"AA"
    assert stream.status == statuses.ABORTED
    assert stream.trailers[b"grpc-message"] == b"%C3%BCber, 100%25"


async def test_initial_metadata_do_not_wait_for_a_message(peer_site: Site, peer: Peer) -> None:
    gate = asyncio.Event()

    async def talk(messages: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata((("first", "1"),))
        await gate.wait()

    peer.methods[PATH] = talk
    stream, handler = opened(peer_site)
    await until(lambda: stream.headers.get(b"first") == b"1")
    gate.set()
    handler.end()
    await stream.end()


async def test_an_unknown_method_is_the_predictors_to_refuse(peer_site: Site) -> None:
    stream, handler = opened(peer_site)
    handler.end()
    await stream.end()
    assert stream.status == statuses.UNIMPLEMENTED
    assert peer_site.counted("passthrough", "UNIMPLEMENTED") == 1


async def test_the_predictor_may_end_a_call_before_its_caller_does(peer_site: Site, peer: Peer) -> None:
    async def refuse(messages: AsyncIterator[bytes], context: Any) -> None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")

    peer.methods[PATH] = refuse
    stream, handler = opened(peer_site)
    await stream.end()
    assert stream.status == statuses.PERMISSION_DENIED
    handler.data(framed(b"late"))
    handler.end()
    assert peer_site.bodies.memory.held == 0


async def test_the_deadline_is_passed_on_and_kept(peer_site: Site, peer: Peer) -> None:
    async def wait(messages: AsyncIterator[bytes], context: Any) -> None:
        await asyncio.sleep(10)

    peer.methods[PATH] = wait
    stream, handler = opened(peer_site, (b"grpc-timeout", b"300m"))
    handler.end()
    await stream.end()
    assert stream.status == statuses.DEADLINE_EXCEEDED
    _, _, remaining = peer.calls[0]
    assert 0 < remaining <= 0.31  # clients round what is left of a deadline up


async def test_a_caller_who_leaves_is_gone_for_the_predictor_too(peer_site: Site, peer: Peer) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(messages: AsyncIterator[bytes], context: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(10)
        finally:
            cancelled.set()

    peer.methods[PATH] = wait
    stream, handler = opened(peer_site)
    handler.data(framed(b"x")[:3])
    await begun.wait()
    handler.cancelled()
    async with asyncio.timeout(5):
        await cancelled.wait()
    assert not stream.over.is_set()
    assert peer_site.counted("passthrough", "CANCELLED") == 1
    assert (peer_site.bodies.memory.held, peer_site.life.active) == (0, 0)


async def test_a_caller_who_leaves_at_once_leaves_nothing_behind(peer_site: Site, peer: Peer) -> None:
    stream, handler = opened(peer_site)
    handler.cancelled()
    await turns(20)
    assert not stream.over.is_set()
    assert peer_site.life.active == 0


async def test_a_predictor_that_is_not_there_is_unavailable(peer_site: Site, peer: Peer) -> None:
    await peer.stop()
    stream, handler = opened(peer_site)
    handler.data(framed(b"x"))
    handler.end()
    await stream.end()
    assert stream.status == statuses.UNAVAILABLE
    assert b"failed to connect" in stream.trailers[b"grpc-message"]


async def test_compressed_messages_are_passed_on_decompressed(peer_site: Site, peer: Peer) -> None:
    peer.methods[PATH] = echo
    stream, handler = opened(peer_site, (b"grpc-encoding", b"gzip"))
    data = gzip.compress(b"hello")
    handler.data(b"\1" + len(data).to_bytes(4, "big") + data)
    handler.end()
    await stream.end()
    assert stream.messages == [b"hello"]
    assert b"gzip" in stream.headers[b"grpc-accept-encoding"]


@pytest.mark.parametrize(
    ("data", "fields", "code"),
    [
        (b"\1\0\0\0\1x", (b"grpc-encoding", b"br"), statuses.UNIMPLEMENTED),
        (b"\0\xff\xff\xff\xff", (b"x", b"y"), statuses.RESOURCE_EXHAUSTED),
        (b"\3\0\0\0\0", (b"x", b"y"), statuses.INTERNAL),
        (b"\0\0", (b"x", b"y"), statuses.INTERNAL),
    ],
)
async def test_what_cannot_be_read_is_refused_and_broken_off(peer_site: Site, peer: Peer, data, fields, code) -> None:
    peer.methods[PATH] = echo
    stream, handler = opened(peer_site, fields)
    handler.data(data)
    handler.end()
    await stream.end()
    assert stream.status == code
    await turns(20)
    assert peer_site.life.active == 0


async def test_a_message_that_travels_alone_is_answered_with_everything(peer_site: Site, peer: Peer) -> None:
    async def infer(messages: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata((("first", "1"),))
        context.set_trailing_metadata((("last-bin", b"\xff"),))
        async for message in messages:
            await context.write(message)

    peer.methods[INFER] = infer
    stream, handler = opened(peer_site, (b"x-own", b"mine"), (b"grpc-timeout", b"5S"), path=INFER)
    body = pb.ModelInferRequest(model_name="unknown").SerializeToString()
    handler.data(framed(body))
    handler.end()
    await stream.end()
    assert (stream.messages, stream.status) == ([body], statuses.OK)
    assert (stream.headers[b"first"], stream.trailers[b"last-bin"]) == (b"1", b"/w")
    _, metadata, remaining = peer.calls[-1]
    assert metadata["x-own"] == "mine"
    assert 4 < remaining < 5.1  # gRPC rounds up
    assert (peer_site.bodies.memory.held, peer_site.life.active) == (0, 0)


async def test_the_refusal_of_a_message_that_travels_alone_comes_with_its_metadata(peer_site: Site, peer: Peer) -> None:
    async def infer(messages: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata((("first", "1"),))
        await context.abort(grpc.StatusCode.DATA_LOSS, "lost", (("why", "so"),))

    peer.methods[INFER] = infer
    stream, handler = opened(peer_site, path=INFER)
    handler.data(framed(pb.ModelInferRequest(model_name="unknown").SerializeToString()))
    handler.end()
    await stream.end()
    assert (stream.messages, stream.status) == ([], statuses.DATA_LOSS)
    assert (stream.headers[b"first"], stream.trailers[b"why"]) == (b"1", b"so")
    assert peer_site.counted("passthrough", "DATA_LOSS") == 1


async def test_a_relay_that_closes_tells_its_callers(peer_site: Site, peer: Peer) -> None:
    async def wait(messages: AsyncIterator[bytes], context: Any) -> None:
        await asyncio.sleep(10)

    peer.methods[PATH] = wait
    running, _ = opened(peer_site)
    await until(lambda: bool(peer.calls))
    new, _ = opened(peer_site)
    assert isinstance(peer_site.passthrough, passthrough.Passthrough)
    await peer_site.passthrough.close()
    assert [stream.status for stream in (running, new)] == [statuses.UNAVAILABLE] * 2


async def test_a_status_that_comes_before_anything_was_sent_on_is_never_lost(peer_site: Site) -> None:
    for _ in range(60):  # nobody there knows the method
        stream, handler = opened(peer_site, path="/any.Service/Nothing")
        handler.data(framed(b"hello"))
        handler.end()
        await stream.end()
        assert stream.status == statuses.UNIMPLEMENTED
    assert (peer_site.bodies.memory.held, peer_site.life.active) == (0, 0)


async def test_a_status_that_comes_while_messages_are_sent_on_is_never_lost(peer_site: Site, peer: Peer) -> None:
    async def give_up(messages: AsyncIterator[bytes], context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "nothing here")

    async def told() -> int | None:
        stream, handler = opened(peer_site)
        for _ in range(40):
            handler.data(framed(bytes(100_000)))
            await asyncio.sleep(0)
        handler.end()
        await stream.end()
        return stream.status

    peer.methods[PATH] = give_up
    for _ in range(10):
        assert await asyncio.gather(*[told() for _ in range(5)]) == [statuses.NOT_FOUND] * 5
    assert (peer_site.bodies.memory.held, peer_site.life.active) == (0, 0)
