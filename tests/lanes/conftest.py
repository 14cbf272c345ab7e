"""Pairs of sidecars that many tests share, in an event loop of their own.

Most run in virtual time, where "nothing more will happen" is a fact and not a guess: the clock moves only when all
sockets are quiet. Starting sidecars takes longer than thousands of bytes through them, so the pairs live as long as
a module, and the tests are plain functions that run the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import looptime
import pytest
import uvloop

from tests.lanes import lane, pair


def _start_pair(loop: asyncio.AbstractEventLoop, **chosen: Any) -> pair.Pair:
    async def start(fast: str) -> lane.Lane:
        started = lane.Lane(fast, **chosen)
        await started.start()
        return started

    return pair.Pair(loop.run_until_complete(start("on")), loop.run_until_complete(start("off")), loop)


def _stop_pair(started: pair.Pair) -> None:
    for each in (started.fast, started.slow):
        started.loop.run_until_complete(each.stop())


def _close(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    assert not left, f"tasks still pending: {left}"


@pytest.fixture(scope="module")
def virtual_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop whose clock jumps to the next timer when nothing else is left to do."""
    loop = looptime.new_event_loop(start=0)
    yield loop
    _close(loop)


@pytest.fixture(scope="module")
def uv_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The loop of production, in real time."""
    loop = uvloop.new_event_loop()
    yield loop
    _close(loop)


@pytest.fixture(scope="module")
def lanes(virtual_loop: asyncio.AbstractEventLoop) -> Iterator[pair.Pair]:
    """A pair with a place at the predictor for every request."""
    with _starter(virtual_loop) as start:
        yield start()


@pytest.fixture
def pair_of(virtual_loop: asyncio.AbstractEventLoop) -> Iterator[Callable[..., pair.Pair]]:
    """Start a pair with other settings, for one test."""
    with _starter(virtual_loop) as start:
        yield start


@pytest.fixture(scope="module")
def module_pair_of(virtual_loop: asyncio.AbstractEventLoop) -> Iterator[Callable[..., pair.Pair]]:
    """Start a pair with other settings, for one module."""
    with _starter(virtual_loop) as start:
        yield start


@pytest.fixture(scope="session")
def start_pairs() -> Callable[..., Any]:
    """The context in which pairs are started in a given loop."""
    return _starter


@contextmanager
def _starter(loop: asyncio.AbstractEventLoop) -> Iterator[Callable[..., pair.Pair]]:
    started: list[pair.Pair] = []

    def start(**chosen: Any) -> pair.Pair:
        started.append(_start_pair(loop, **chosen))
        return started[-1]

    yield start
    for each in started:
        _stop_pair(each)
