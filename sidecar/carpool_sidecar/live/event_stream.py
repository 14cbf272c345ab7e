"""The stream of events that all viewers share: the page, `top` and `tap`.

Twice a second, while somebody looks, one message is made and encoded for all viewers. Nobody's reading holds
anything up: a viewer that has not taken a message yet gets the next one instead of it. While nobody looks nothing is
recorded and no timer runs.

Messages are server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) with JSON: `hello`
once, then `snapshot` (`snapshots.Snapshot`) and `batches` (`recorder.Batches`). docs/live.md describes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from carpool.scheduling import limits, messages
from carpool_sidecar import errors
from carpool_sidecar.live import recorder, snapshots

log = logging.getLogger("carpool.sidecar.live")

INTERVAL = 0.5
"""Seconds between messages."""
MOST_VIEWERS = 8


class Full(Exception):
    """As many look already as may; `str()` says so to people."""


class Observed(Protocol):
    """Tells a recorder of batches, where it has one."""

    recorder: Any


class Viewer:
    """One viewer's place: the message it should get next. `next` is None once the stream is over."""

    # State: the message that waits to be taken, and the viewer who waits for one.
    def __init__(self) -> None:
        self._message: bytes | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._over = False

    async def next(self) -> bytes | None:
        """The latest message that it has not had, as soon as there is one."""
        while self._message is None and not self._over:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        message, self._message = self._message, None
        return message

    def give(self, message: bytes) -> None:
        """In the place of the one that was not taken."""
        self._message = message
        self._wake()

    def end(self) -> None:
        """No more messages."""
        self._over, self._message = True, None
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class EventStream:
    """Makes messages while there are viewers. `on_bug` is called for each bug met, which is in the log."""

    # State: the viewers; while there are some the timer, the recorder and the latest snapshot; whether it is closed.
    def __init__(
        self,
        sources: snapshots.Sources,
        bounds: limits.Limits,
        observed: Observed,
        on_bug: Callable[[], None] = lambda: None,
    ) -> None:
        self._sources = sources
        self._limits = bounds
        self._observed = observed
        self._on_bug = on_bug
        self._keys = recorder.Keys()
        self._snapshots = snapshots.Snapshots(sources, self._keys)
        self._viewers: set[Viewer] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._recorder: recorder.Recorder | None = None
        self._snapshot: bytes | None = None
        self._closed = False

    @property
    def viewers(self) -> int:
        """How many look now."""
        return len(self._viewers)

    @contextmanager
    def viewer(self) -> Iterator[Viewer]:
        """A place for a viewer, for as long as the context lasts. Raises `Full` if there is none."""
        if self._closed:
            raise Full("the sidecar is about to exit")
        if len(self._viewers) >= MOST_VIEWERS:
            raise Full(
                f"{MOST_VIEWERS} viewers look at this sidecar already, and more would cost its callers; close one"
            )
        place = Viewer()
        if not self._viewers:
            self._begin()
        self._viewers.add(place)
        try:
            yield place
        finally:
            self._viewers.discard(place)
            if not self._viewers:
                self._stop()

    def first_message(self, may_write: bool) -> bytes:
        """What a viewer gets at once: how to reconnect, what words mean, what is now, and the latest batches."""
        hello = {
            "interval": INTERVAL,
            "may_write": may_write,
            "reasons": {str(reason): reason.meaning for reason in messages.Reason},
            "unbatched": {str(reason): reason.meaning for reason in errors.NotBatched},
        }
        latest = recorder.Batches(0, []) if self._recorder is None else self._recorder.latest()
        if self._snapshot is None:
            self._snapshot = _event(b"snapshot", self._snapshots.take(self.viewers))
        return b"retry: 1000\n\n" + _event(b"hello", hello) + self._snapshot + _event(b"batches", latest)

    def close(self) -> None:
        """End the stream for all viewers; there will be no others."""
        self._closed = True
        for viewer in self._viewers:
            viewer.end()
        self._stop()

    def _begin(self) -> None:
        self._recorder = recorder.Recorder(self._limits, self._sources.clock, self._snapshots.epoch, self._keys)
        self._observed.recorder = self._recorder
        self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._tick)

    def _stop(self) -> None:
        self._observed.recorder = self._recorder = None
        self._snapshots.forget()
        self._snapshot = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._tick)
        try:
            message = self._message()
        except Exception:
            self._on_bug()
            log.exception("a snapshot could not be made for a reason that is a bug")
            return
        for viewer in self._viewers:
            viewer.give(message)

    def _message(self) -> bytes:
        self._snapshot = _event(b"snapshot", self._snapshots.take(self.viewers))
        news = self._recorder.take() if self._recorder is not None else None
        return self._snapshot if news is None or not news.batches else self._snapshot + _event(b"batches", news)


def _event(name: bytes, value: object) -> bytes:
    """JSON has no line breaks outside strings, and msgspec writes those in strings as escapes: one line is enough."""
    return b"event: %b\ndata: %b\n\n" % (name, msgspec.json.encode(value))
