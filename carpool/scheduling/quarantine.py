"""Where requests wait that resemble rejected ones: they travel alone, one after another, in a bounded share of calls.

While regular requests come, suspects get at most one call for every four regular batches, so that a client which sends
nothing but bad requests slows itself down and hardly anybody else. Suspects of one batch key with equal content share
one call's verdict.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from carpool.scheduling.backlog import Backlog
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Part, Request

# A suspect's call is followed by the next one after this many seconds, less what regular batches earn meanwhile: a
# quarter of it each. So many calls may be saved up.
_PAUSE = 0.1
_EARNED = _PAUSE / 4
_MOST_SAVED = 6

_QUIET_SECONDS = 1.0

# So many whose origin is new go for each one whose origin was found guilty.
_NEW_FIRST = 3

# Suspects may take this part of the room for waiting instances, and for bytes: a flood must not keep others out.
_SHARE_OF_QUEUE = 4

Content = Callable[[Request], Hashable | None]
"""What a caller sent, to be compared in full; None if it is not to be compared."""


class Suspects(NamedTuple):
    """The key of requests that share a verdict: their batch key, and their content or a number of their own.

    `is_known` is whether their origin was found guilty before.
    """

    key: Hashable
    content: Hashable
    is_known: bool


class Quarantine:
    """Suspects, the oldest first; at most one of them is at the predictor at any time.

    Those whose origin was never found guilty go before the others, three to one: a caller that only has something in
    common with culprits must not wait behind all of theirs. Times are seconds on the scheduler's clock.
    """

    # Mutable state: _new and _known, a queue for each verdict that is due, apart by whether the origin was found
    # guilty; on_trial, the request whose verdict is being found out; when the next suspect may travel; when a regular
    # batch last left; how many of the new went since one of the known.
    def __init__(self, limits: Limits, content: Content) -> None:
        self._new = Backlog(limits)
        self._known = Backlog(limits)
        self.on_trial: Request | None = None
        self._limits = limits
        self._content = content
        self._allowed_at = self._last_regular = -math.inf
        self._new_in_a_row = 0

    def __bool__(self) -> bool:
        return bool(self._new or self._known)

    def __iter__(self) -> Iterator[Request]:
        """All that wait; nothing may change meanwhile."""
        return itertools.chain(self._new, self._known)

    @property
    def rows(self) -> int:
        """Instances that wait here."""
        return self._new.rows + self._known.rows

    @property
    def size(self) -> int:
        """Their bytes."""
        return self._new.size + self._known.size

    def has_room(self, request: Request) -> bool:
        """Whether one more may wait here; the only one may, however large it is."""
        most, most_bytes = self._limits.max_queue_instances, self._limits.max_queue_bytes
        return not self or (
            self.rows + request.rows <= most // _SHARE_OF_QUEUE
            and self.size + request.size <= most_bytes // _SHARE_OF_QUEUE
        )

    def add(self, request: Request, is_known: bool) -> None:
        """Keep a request until `next` lets it travel or `release` finds it cleared."""
        content = self._content(request)
        request.key = Suspects(request.key, request.sequence if content is None else content, is_known)
        self._of(request).add(request)

    def regular_left(self, now: float) -> None:
        """A regular batch was sent."""
        self._allowed_at -= _EARNED
        self._last_regular = now

    def is_quiet(self, now: float) -> bool:
        """Whether no regular batch has left for a while: suspects take nothing from anybody."""
        return now - self._last_regular >= _QUIET_SECONDS

    def next(self, now: float, is_free: bool) -> Sequence[Part]:
        """What the next suspect's call carries, or nothing. If it `is_free`, nothing has to be saved up for it."""
        if self._is_busy or not self:
            return ()
        if not is_free:
            if now < self._allowed_at:
                return ()
            self._allowed_at = max(self._allowed_at, now - (_MOST_SAVED - 1) * _PAUSE) + _PAUSE
        if self.on_trial is not None and self.on_trial.open:
            waiting = self._of(self.on_trial)  # the rest of it
        elif self._new and (self._new_in_a_row < _NEW_FIRST or not self._known):
            waiting = self._new
            self._new_in_a_row += 1
        else:
            waiting = self._known
            self._new_in_a_row = 0
        queue = waiting.partly_sent() or waiting.due(math.inf, 0.0)
        if queue is None:
            return ()
        self.on_trial = queue.first
        return waiting.take(queue, queue.first.rows_queued)

    def next_at(self) -> float:
        """When `next` will have something, which had nothing just now, if nothing else happens; infinity if never."""
        return self._allowed_at if self and not self._is_busy else math.inf

    def closed(self, request: Request) -> None:
        """One of its requests is refused or cancelled."""
        if request.rows_queued:
            self._of(request).remove(request)
        if request is self.on_trial:
            self.on_trial = None

    def equals(self, request: Request) -> Sequence[Request]:
        """The other requests that wait for the verdict on this one."""
        if not isinstance(request.key, Suspects):
            return ()
        return [
            other
            for is_known, waiting in ((False, self._new), (True, self._known))
            for other in waiting.of_key(request.key._replace(is_known=is_known))
            if other is not request
        ]

    def release(self, answered: Request | None, is_suspected: Callable[[Request], bool]) -> Sequence[Request]:
        """Take out who is cleared by an answer: equals of a suspect, and all who are not suspected any more.

        Each has its batch key again. Who was cut stays, as its first rows travel.
        """
        if answered is self.on_trial:
            self.on_trial = None
        equals = set() if answered is None else set(self.equals(answered))
        cleared = [
            request for request in self if not request.rows_taken and (request in equals or not is_suspected(request))
        ]
        for request in cleared:
            self._of(request).withdraw(request)
            suspects: Any = request.key
            request.key = suspects.key
        return cleared

    def refresh(self) -> None:
        """Adapt to changed limits."""
        self._new.refresh()
        self._known.refresh()

    def _of(self, request: Request) -> Backlog:
        suspects: Any = request.key
        return self._known if suspects.is_known else self._new

    @property
    def _is_busy(self) -> bool:
        """Whether a verdict is being found out, and no more rows have to be sent for it."""
        return self.on_trial is not None and self.on_trial.open and not self.on_trial.rows_queued
