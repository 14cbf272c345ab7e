"""Clients choose the keys, and a key may be large: nothing of an emptied queue may wait for the garbage collector."""

from __future__ import annotations

import gc
import math
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
