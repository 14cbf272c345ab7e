"""What a call of a batched generator returns: results as they come, for one caller.

The function works on all items of a batch step by step; each step's results go to their streams. A stream that nobody
reads any more is let go, and disturbs no other; the function ends early once all of them are. It runs ahead of the
reader that is furthest by so many steps at most: results that are not read yet take memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from carpool.functions import errors, futures, waiting

R = TypeVar("R")


class End(enum.Enum):
    """The type of `END`."""

    END = "END"

    def __repr__(self) -> str:
        return "carpool.END"


END: Final = End.END
"""In place of a result: this item's stream ends here, while those of other items of the batch go on."""


AHEAD = 64
"""Steps by which a function runs ahead of its readers."""
MOST_AHEAD = 1024
"""The same while other calls wait for the place that it holds."""

# Seconds after which a function that waits for its readers looks whether others wait for it.
_LOOK = 0.25


class Channel:
    """Carries results from the function to one stream, from any thread to any other."""

    # Mutable state: results that were not read yet; who waits for the next; whether more will come, and why not. The
    # waiters are looked at last, so that a reader who looks after it put its waiter there misses nothing.
    def __init__(self) -> None:
        self.source: waiting.Source | None = None
        self.results: deque[Any] = deque()
        self.is_open = True
        self.error: Exception | None = None
        self.waiting: deque[futures.Future[None]] = deque()
        self.on_move: Callable[[], object] | None = None
        """Called when a result was read, and when nobody reads any more."""

    def take(self) -> Any:
        """The next result. Raises IndexError if there is none."""
        result = self.results.popleft()
        if self.on_move is not None:
            self.on_move()
        return result

    def push(self, result: Any) -> None:
        """One more result, which may be `END` or an exception of this item's."""
        if not self.is_open:
            return
        if result is END:
            self.end(None)
        elif errors.is_exception(result):
            self.end(errors.own(result))
        else:
            self.results.append(result)
            self._wake()

    def answered(self, parts: Sequence[Any]) -> list[futures.Settling]:
        """The function came to its end. There is no future to be settled."""
        self.end(None)
        return []

    def close(self) -> None:
        """Nobody reads any more."""
        source, was_open = self.source, self.is_open
        self.end(None)
        self.results.clear()
        if was_open and source is not None:
            source.withdraw(self)

    def end(self, error: Exception | None) -> None:
        """Nothing more will come, because of this, or as that was all."""
        if self.is_open:
            self.error = error
            self.is_open = False
            self.source = None
        self._wake()
        if self.on_move is not None:
            self.on_move()

    def _wake(self) -> None:
        while self.waiting:
            try:
                waiter = self.waiting.popleft()
            except IndexError:
                break
            futures.settle([(waiter, None, None)])


class Pace:
    """Holds a function back that is ahead of all its readers; `most_ahead` tells by how many steps it may be."""

    # Mutable state: what the function waits for, while it does.
    def __init__(self, channels: Sequence[Channel], most_ahead: Callable[[], float]) -> None:
        self._channels = channels
        self._most_ahead = most_ahead
        self._waiter: futures.Future[None] | None = None
        for channel in channels:
            channel.on_move = self._go_on

    @property
    def is_read(self) -> bool:
        """Whether anybody reads any more."""
        return any(channel.is_open for channel in self._channels)

    def wait(self) -> None:
        """Return once the next step is wanted."""
        while (waiter := self._next_waiter()) is not None:
            with contextlib.suppress(TimeoutError):
                waiter.result(_LOOK)

    async def wait_async(self) -> None:
        """The same in a task."""
        while (waiter := self._next_waiter()) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await waiter

    def _next_waiter(self) -> futures.Future[None] | None:
        if not self._is_ahead():
            return None
        waiter = self._waiter = futures.Future[None]()
        return waiter if self._is_ahead() else None  # a reader may have moved before it was there

    def _is_ahead(self) -> bool:
        waiting = [len(channel.results) for channel in self._channels if channel.is_open]
        return min(waiting, default=0) >= AHEAD and min(waiting) >= self._most_ahead()

    def _go_on(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            futures.settle([(waiter, None, None)])


class Stream(Generic[R]):
    """The results for one item, as the function yields them: `for result in stream`, or `async for`.

    It ends with the function, or raises what that failed with. Leaving it (`close`, or letting go of it) tells the
    function's batch that nobody waits for this item any more. Reading it once is all one can do.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        while True:
            found = self._take(StopIteration)
            if found is not None:
                return found[0]
            with self._waits(waiting.running_thread(), blocks=True) as waiter:
                waiter.result()

    def __aiter__(self) -> AsyncIterator[R]:
        return self

    async def __anext__(self) -> R:
        while True:
            found = self._take(StopAsyncIteration)
            if found is not None:
                return found[0]
            with self._waits(waiting.running_task(), blocks=False) as waiter:
                await waiter

    def close(self) -> None:
        """Read no further."""
        self._channel.close()

    async def aclose(self) -> None:
        """As `close`, for `contextlib.aclosing`."""
        self._channel.close()

    def __enter__(self) -> Stream[R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._channel.close()

    def _take(self, end: type[Exception]) -> tuple[R] | None:
        """The next result if there is one; raises `end` after the last."""
        channel = self._channel
        is_open = channel.is_open  # before the results are looked at: what was pushed before the end is there
        with contextlib.suppress(IndexError):
            return (channel.take(),)
        if is_open:
            return None
        error, channel.error = channel.error, None
        if error is not None:
            raise error
        raise end

    @contextlib.contextmanager
    def _waits(self, by: Sequence[Any] | None, *, blocks: bool) -> Iterator[futures.Future[None]]:
        """Done once there is more to read. Raises RuntimeError if that would be never, and reads no further."""
        channel = self._channel
        wait: waiting.Wait | None = None
        try:
            wait = waiting.begin(channel, by=by)
            source = channel.source
            if source is not None:
                source.flush()
                if blocks:
                    source.check_may_block()
            waiter: futures.Future[None] = futures.Future()
            channel.waiting.append(waiter)
            if channel.results or not channel.is_open:
                channel._wake()
            if wait is not None:
                wait.watch(waiter.done, lambda error: futures.settle([(waiter, None, error)]))
            yield waiter
        except RuntimeError as error:
            if waiting.is_circle(error):
                channel.close()
            raise
        finally:
            if wait is not None:
                wait.end()
