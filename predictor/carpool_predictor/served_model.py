"""One model as the server sees it: its worker process, and the bound on what may wait for that.

The bound is what makes a slow model fill its callers' patience and not the memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import TracebackType

import msgspec

from carpool.workers import connection, frames, supervisor
from carpool_predictor import errors, worker

# OpenMP threads (torch's) spin while they wait for each other. With a half-busy neighbour on two cores, as a sidecar
# is, MiniLM made 5 sentences/s one by one and 47 in batches, and 50 and 135 when they yield instead; alone, yielding
# takes it from 135 to 103 and from 372 to 341. Must be set before the process starts; an operator's choice wins.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}


class ServedModel:
    """A model in a worker process of its own. `worker.run()` must be running for it to become ready."""

    def __init__(self, setup: worker.Setup, limit: WaitingLimit, pauses: supervisor.Backoff | None = None) -> None:
        argument = msgspec.json.encode(setup).decode()
        self.name = setup.spec.name
        self.limit = limit
        self.worker = supervisor.Supervisor(
            self.name,
            lambda descriptor: (sys.executable, "-m", "carpool_predictor.worker", str(descriptor), argument),
            {**_ENVIRONMENT, **os.environ},
            pauses or supervisor.Backoff(),
        )

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded, warm and has a live worker."""
        return self.worker.is_ready

    async def predict(self, body: Sequence[frames.Buffer], length: int) -> connection.Reply:
        """Status and body of the worker's answer to one request body, given in pieces of `length` bytes together.

        Raises `errors.NotReady` at once if the worker is down, `errors.WorkerDied` if it dies before answering.
        """
        try:
            return await self.worker.call(body, length)
        except connection.WorkerDown:
            raise errors.NotReady(f"model {self.name} is not ready; try again later") from None
        except connection.WorkerDied:
            raise errors.WorkerDied from None


class WaitingLimit:
    """How many more calls, and bytes of their bodies, may be between arrival and answer."""

    def __init__(self, calls: int, size: int) -> None:
        # Changed by `Claim` only.
        self.calls = calls
        self.size = size

    def claim(self) -> Claim:
        """Space for one more call, as a context manager that gives it back.

        Raises `errors.TooMuchWaiting` if there is none.
        """
        if self.calls <= 0:
            raise errors.TooMuchWaiting
        return Claim(self)


class Claim:
    """One call's share of a `WaitingLimit`, growing while its body arrives."""

    __slots__ = ("_limit", "_size")

    def __init__(self, limit: WaitingLimit) -> None:
        limit.calls -= 1
        self._limit = limit
        self._size = 0

    def grow(self, size: int) -> None:
        """Take `size` more bytes. Raises `errors.TooMuchWaiting` if there are not so many."""
        if size > self._limit.size:
            raise errors.TooMuchWaiting
        self._limit.size -= size
        self._size += size

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limit.calls += 1
        self._limit.size += self._size
