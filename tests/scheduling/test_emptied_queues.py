"""Clients choose the keys, and a key may be large: nothing of an emptied queue may wait for the garbage collector."""

from __future__ import annotations

import gc
import math
import time
import weakref
from collections.abc import Callable

import pytest

from carpool.scheduling import backlog, limits, messages


class Key:
    """A key that tells whether it is still kept."""


def take(waiting: backlog.Backlog, request: messages.Request) -> None:
    queue = waiting.due(math.inf, 0.0)
    assert queue is not None
    waiting.take(queue)


def take_in_parts(waiting: backlog.Backlog, request: messages.Request) -> None:
    while queue := waiting.due(math.inf, 0.0):
        waiting.take(queue, 1)


def leave(waiting: backlog.Backlog, request: messages.Request) -> None:
    waiting.remove(request)


def seconds_to_leave(count: int) -> float:
    """CPU time in which so many leave one after another from behind one that stays."""
    waiting = backlog.Backlog(limits.Limits(max_batch_size=4))
    requests = [messages.Request("key", 1, 10, ["a"], "tag", None) for _ in range(count)]
    for number, request in enumerate(requests):
        request.accept(number)
        request.arrived, request.goal = 0.0, 1.0
        waiting.add(request)
    began = time.process_time()
    for request in reversed(requests[1:]):
        request.finish()
        waiting.remove(request)
    return time.process_time() - began


def test_who_leaves_costs_the_same_however_many_wait() -> None:
    few, many = (min(seconds_to_leave(count) for _ in range(3)) for count in (500, 4000))
    assert many < 24 * few


@pytest.mark.parametrize("empty", [take, take_in_parts, leave])
def test_the_key_of_an_emptied_queue_is_let_go_at_once(
    empty: Callable[[backlog.Backlog, messages.Request], None],
) -> None:
    waiting = backlog.Backlog(limits.Limits(max_batch_size=4))
    key = Key()
    request = messages.Request(key, 3, 10, ["a", "b", "c"], "tag", None)
    request.sequence, request.arrived, request.goal = 1, 0.0, 1.0
    seen = weakref.ref(key)
    gc.disable()
    try:
        waiting.add(request)
        empty(waiting, request)
        assert waiting.due(math.inf, 0.0) is None
        del request, key
        assert seen() is None
    finally:
        gc.enable()
