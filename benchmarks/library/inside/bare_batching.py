"""The least that batches: what is left when everything that a batcher is for is left out."""

from __future__ import annotations

import asyncio
import collections
import threading
from typing import Any


class Tasks:
    """For callers on one event loop: a future for each call, and a task that takes what has come."""

    def __init__(self, function: Any, size: int) -> None:
        self._function, self._size = function, size
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._working: asyncio.Task[None] | None = None

    def call(self, item: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return future

    async def _work(self) -> None:
        while batch := self._waiting[: self._size]:
            del self._waiting[: self._size]
            for (_, future), result in zip(batch, await self._function([item for item, _ in batch]), strict=True):
                future.set_result(result)
            await asyncio.sleep(0)
        self._working = None


class Threads:
    """For callers in threads: a lock for each call, and a thread that takes what has come."""

    def __init__(self, function: Any, size: int) -> None:
        self._function, self._size = function, size
        self._waiting: collections.deque[list[Any]] = collections.deque()
        self._wake = threading.Semaphore(0)
        threading.Thread(target=self._work, daemon=True).start()

    def call(self, item: Any) -> Any:
        done = threading.Lock()
        done.acquire()
        entry = [item, done, None]
        self._waiting.append(entry)
        self._wake.release()  # each time: two who come at once may both see that they are not the first
        done.acquire()
        return entry[2]

    def _work(self) -> None:
        while self._wake.acquire():
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
                for entry, result in zip(batch, self._function([entry[0] for entry in batch]), strict=True):
                    entry[2] = result
                    entry[1].release()
