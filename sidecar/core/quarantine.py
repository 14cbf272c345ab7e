"""Where requests wait that resemble rejected ones: they travel alone, one after another, in a bounded share of calls.

While regular requests come, suspects get at most one call for every four regular batches, so that a client which sends
nothing but bad requests slows itself down and hardly anybody else. Suspects of one batch key with equal content share
one call's verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from sidecar.core.backlog import Backlog
from sidecar.core.limits import Limits
from sidecar.core.model import Part, Request

# A suspect's call is followed by the next one after this many seconds, less what regular batches earn meanwhile: a
# quarter of it each. So many calls may be saved up.
_PAUSE = 0.1
_EARNED = _PAUSE / 4
_MOST_SAVED = 6

_QUIET_SECONDS = 1.0

# Suspects may take this part of the room for waiting instances: a flood of them must not keep the others out.
_SHARE_OF_QUEUE = 4

Content = Callable[[Request], Hashable | None]
"""What a caller sent, to be compared in full; None if it is not to be compared."""


class Suspects(NamedTuple):
    """The key of requests that share a verdict: their batch key, and their content or a number of their own."""

    key: Hashable
    content: Hashable


class Quarantine:
    """Suspects, the oldest first. At most one of them is at the predictor at any time.

    Times are seconds on the scheduler's clock.
    """

    # Mutable state: `waiting`, a queue for each verdict that is due; `on_trial`, the request whose verdict is being
    # found out; when the next suspect may travel; when a regular batch last left.
    def __init__(self, limits: Limits, content: Content) -> None:
        self.waiting = Backlog(limits)
        self.on_trial: Request | None = None
        self._limits = limits
        self._content = content
        self._allowed_at = self._last_regular = -math.inf

    def __bool__(self) -> bool:
        return bool(self.waiting)

    @property
    def rows(self) -> int:
        """Instances that wait here."""
        return self.waiting.rows

    def has_room(self, rows: int) -> bool:
        """Whether so many instances more may wait here."""
        return self.waiting.rows + rows <= self._limits.max_queue_instances // _SHARE_OF_QUEUE

    def add(self, request: Request) -> None:
        """Keep a request until `next` lets it travel or `release` finds it cleared."""
        content = self._content(request)
        request.key = Suspects(request.key, request.sequence if content is None else content)
        self.waiting.add(request)

    def regular_left(self, now: float) -> None:
        """A regular batch was sent."""
        self._allowed_at -= _EARNED
        self._last_regular = now

    def is_quiet(self, now: float) -> bool:
        """Whether no regular batch has left for a while: suspects take nothing from anybody."""
        return now - self._last_regular >= _QUIET_SECONDS

    def next(self, now: float, is_free: bool) -> Sequence[Part]:
        """What the next suspect's call carries, or nothing. If it `is_free`, nothing has to be saved up for it."""
        queue = self.waiting.first()
        if queue is None or self._is_busy:
            return ()
        if not is_free:
            if now < self._allowed_at:
                return ()
            self._allowed_at = max(self._allowed_at, now - (_MOST_SAVED - 1) * _PAUSE) + _PAUSE
        self.on_trial = queue.first
        return self.waiting.take(queue, queue.first.rows_queued)

    def next_at(self) -> float:
        """When `next` will have something, which had nothing just now, if nothing else happens; infinity if never."""
        return self._allowed_at if self.waiting and not self._is_busy else math.inf

    def closed(self, request: Request) -> None:
        """One of its requests is refused or cancelled."""
        if request.rows_queued:
            self.waiting.remove(request)
        if request is self.on_trial:
            self.on_trial = None

    def equals(self, request: Request) -> Sequence[Request]:
        """The other requests that wait for the verdict on this one."""
        return [other for other in self.waiting.of_key(request.key) if other is not request]

    def release(self, answered: Request | None, is_suspected: Callable[[Request], bool]) -> Sequence[Request]:
        """Take out who is cleared by an answer: equals of a suspect, and all who are not suspected any more.

        Each has its batch key again. Who was cut stays, as its first rows travel.
        """
        if answered is self.on_trial:
            self.on_trial = None
        key = None if answered is None else answered.key
        waiting = [request for request in self.waiting if not request.rows_taken]
        cleared = [request for request in waiting if request.key == key or not is_suspected(request)]
        for request in cleared:
            self.waiting.remove(request)
            suspects: Any = request.key
            request.key = suspects.key
            request.rows_taken = 0
        return cleared

    @property
    def _is_busy(self) -> bool:
        """Whether a verdict is being found out, and no more rows have to be sent for it."""
        return self.on_trial is not None and self.on_trial.open and not self.on_trial.rows_queued
