"""When the process ends or forks: what functions have accepted is answered, or refused where that cannot be."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import time
from collections.abc import Sequence

from carpool.functions import batcher as batchers
from carpool.functions import hosts
from carpool.runtime import timer_thread
from carpool.scheduling import messages
from carpool.workers import worker

log = logging.getLogger("carpool.functions")

# Seconds between looks whether everything was answered.
_STEP = 0.002


def _answer_everything() -> None:
    """At exit, as executors of the standard library do: what was accepted is still computed, where it can be.

    Functions may call each other until that is done; only then they are closed. What is stuck keeps nobody for long.
    """
    running = [batcher for batcher in list(batchers.live) if batcher.host.is_running()]
    for batcher in running:
        batcher.hurry()
    try:
        are_answered = _wait_for_answers(running)
        ends = [batcher.close() for batcher in running]
        if are_answered and _wait_for_answers(running):  # that were accepted meanwhile
            give_up = time.monotonic() + hosts.GRACE
            for end in ends:
                with contextlib.suppress(TimeoutError):  # a batch that nobody waits for
                    end.result(max(0.0, give_up - time.monotonic()))
    finally:
        used = [batcher.host for batcher in list(batchers.live)]
        for batcher in list(batchers.live):
            batcher.give_up("the interpreter exits")
        hosts.background.stop()
        worker.end_all()
        # A subinterpreter that ends before its threads takes the whole process with it.
        give_up = time.monotonic() + hosts.GRACE
        for host in used:
            host.join(give_up)
        timer_thread.shared.stop(max(0.0, give_up - time.monotonic()))


def _wait_for_answers(running: Sequence[batchers.Batcher]) -> bool:
    """Whether all that these have accepted by now was answered. Gives up once nothing has moved for `PATIENCE`."""
    marks = [(batcher, batcher.mark()) for batcher in running]
    calls: dict[batchers.Batcher, Sequence[messages.Request]] = {}
    before, give_up = -1, 0.0
    while True:
        calls.update(
            (batcher, batcher.open_calls()) for batcher, mark in marks if mark.is_set() and batcher not in calls
        )
        calls = {batcher: [call for call in each if call.open] for batcher, each in calls.items()}
        waiting = [batcher for batcher in running if calls.get(batcher, True) and batcher.host.is_running()]
        if not waiting:
            return True
        left = sum(call.rows - call.rows_taken + 1 for each in calls.values() for call in each)
        if left != before:
            before, give_up = left, time.monotonic() + hosts.PATIENCE
        elif time.monotonic() > give_up:
            names = ", ".join(batcher.name for batcher in waiting)
            log.warning("the interpreter exits, and there was no answer of %s for %g s", names, hosts.PATIENCE)
            return False
        time.sleep(max(_STEP, left * 1e-6))


def _after_fork() -> None:
    for batcher in list(batchers.live):
        batcher.after_fork()


def begin() -> None:
    """Take note of the process's end and forks from here on. To be called once, before there is a batcher."""
    atexit.register(_answer_everything)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
