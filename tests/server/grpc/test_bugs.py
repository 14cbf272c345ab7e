"""A failure of our own while a call is handled: told, counted, and nothing of the call stays behind."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc.aio
import numpy as np
import pytest

from carpool_sidecar.server.grpc import passthrough
from tests.protocols.v2_grpc.test_grpc_codec import request
from tests.server.grpc.any_calls import PATH, echo, framed, opened
from tests.server.grpc.peer import Peer
from tests.server.grpc.site import INFER, Site, until
from tests.server.grpc.test_infer_calls_on_sockets import asking
from tests.server.grpc.test_inflating import GZIP, squeezed

MESSAGE = request(name="rows", model_name="identity").SerializeToString()
UNLIKE = request(name="rows", model_name="identity", id="another").SerializeToString()


def fail(*_: Any) -> Any:
    raise ValueError("a bug")


def count(site: Site, where: str) -> float:
    return site.counters.internal_errors.labels(where).value


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Any:
    """Every bug is in the log with its traceback."""
    with caplog.at_level(logging.ERROR):
        yield
    assert any(record.exc_info and "a bug" in str(record.exc_info[1]) for record in caplog.get_records("call"))


async def drained(site: Site) -> None:
    async with asyncio.timeout(2):
        await site.life.drain(site.driver.drain, 0.0, 1.0)


@pytest.mark.parametrize("step", ["its first bytes", "a new message", "a known message", "the driver"])
async def test_a_bug_while_a_call_comes_in_leaves_nothing_behind(site: Site, monkeypatch, step: str) -> None:
    await site.infer(MESSAGE)
    sent = MESSAGE
    if step == "its first bytes":
        site.bodies.memory.bug = ValueError("a bug")
    elif step == "a new message":
        site.max_rows = fail
        sent = UNLIKE  # it is not recognised by what the first one said
    elif step == "a known message":
        site.max_rows = fail
    else:
        monkeypatch.setattr(site.driver, "_call_soon", fail)  # what `submit` calls
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await site.infer(sent)
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    assert count(site, "http2") == 1
    assert (site.life.active, site.bodies.memory.held) == (0, 0)
    await drained(site)


async def test_a_bug_while_an_answer_is_written_is_told_the_caller(site: Site, monkeypatch) -> None:
    await site.infer(MESSAGE)
    stream, handler = opened(site, path=INFER)
    monkeypatch.setattr(stream, "answer_encoded", fail)
    handler.data(framed(MESSAGE))
    handler.end()
    await stream.end()
    assert stream.status == grpc.StatusCode.INTERNAL.value[0]
    assert count(site, "rpc") == 1
    await drained(site)


async def test_a_bug_while_messages_are_passed_on_ends_the_call(peer_site: Site, peer: Peer, monkeypatch) -> None:
    peer.methods[PATH] = echo
    monkeypatch.setattr(passthrough, "_write", fail)
    stream, handler = opened(peer_site)
    handler.data(framed(b"one"))
    await stream.end()
    assert stream.status == grpc.StatusCode.INTERNAL.value[0]
    assert count(peer_site, "rpc") == 1
    await until(lambda: not peer_site.passthrough._out)
    assert (peer_site.life.active, peer_site.bodies.memory.held) == (0, 0)


async def test_a_bug_before_a_call_is_passed_on_is_told_the_caller(peer_site: Site, monkeypatch) -> None:
    monkeypatch.setattr(passthrough.StreamingCall, "begin", fail)
    stream, _ = opened(peer_site)
    await stream.end()
    assert stream.status == grpc.StatusCode.INTERNAL.value[0]
    assert count(peer_site, "rpc") == 1
    assert peer_site.life.active == 0


@pytest.mark.parametrize("path", [INFER, PATH])
async def test_a_bug_while_a_message_is_inflated_is_told_the_caller(
    peer_site: Site, peer: Peer, monkeypatch, path: str
) -> None:
    peer.methods[PATH] = echo
    stream, handler = opened(peer_site, GZIP, path=path)
    handler.data(squeezed(bytes(4_000_000)))
    peer_site.bodies.memory.bug = ValueError("a bug")  # it is asked for room after each step
    await stream.end()
    assert stream.status == grpc.StatusCode.INTERNAL.value[0]
    assert count(peer_site, "rpc") == 1
    await until(lambda: not peer_site.passthrough.under_way)
    assert (peer_site.life.active, peer_site.bodies.memory.held) == (0, 0)


async def test_a_bug_once_a_message_is_inflated_is_told_the_caller(site: Site, monkeypatch) -> None:
    await site.infer(MESSAGE)
    stream, handler = opened(site, GZIP, path=INFER)
    handler.data(squeezed(asking(np.arange(400_000, dtype="f4")[None])))
    handler.end()
    monkeypatch.setattr(site.driver, "_call_soon", fail)  # what `submit` calls
    await stream.end()
    assert stream.status == grpc.StatusCode.INTERNAL.value[0]
    assert count(site, "rpc") == 1
    assert (site.life.active, site.bodies.memory.held) == (0, 0)
    await drained(site)
