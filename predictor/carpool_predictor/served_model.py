"""One model as the server sees it: its worker processes, how requests come to them, and the bound on what may wait.

The bound is what makes a slow model fill its callers' patience and not the memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import carpool
from carpool.workers import pool
from carpool.workers.worker import Backoff
from carpool_predictor import embeddings, errors, pipelines, v1, worker

# OpenMP threads (torch's) spin while they wait for each other. With a half-busy neighbour on two cores, as a sidecar
# is, MiniLM made 5 sentences/s one by one and 47 in batches, and 50 and 135 when they yield instead; alone, yielding
# takes it from 135 to 103 and from 372 to 341. Must be set before the process starts; an operator's choice wins.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True, slots=True)
class Batching:
    """Up to so many instances share a call; the oldest waits for others so many seconds, None: as long as it pays."""

    max_batch_size: int
    max_latency: float | None


class ServedModel:
    """A model in worker processes of its own, one for each device. `run()` must be running for it to become ready."""

    def __init__(
        self,
        setup: worker.Setup,
        limit: WaitingLimit,
        devices: Sequence[str] = ("auto",),
        batching: Batching | None = None,
        pauses: Callable[[], Backoff] = Backoff,
    ) -> None:
        self.name = setup.spec.name
        self.limit = limit
        kind: Any = worker.Requests if batching is None else worker.Rows
        self.pool = pool.processes(kind, setup).on(
            *devices,
            waits=False,
            env={name: value for name, value in _ENVIRONMENT.items() if name not in os.environ},
            name=self.name,
            pauses=pauses,
        )
        self._requests = pipelines.Pipelines(self.pool)
        self._rows: Any = None
        if batching is not None:
            self._rows = carpool.batched(
                self.pool, max_batch_size=batching.max_batch_size, max_latency=batching.max_latency, name=self.name
            )

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded, warm and has a live worker."""
        return self.pool.is_ready

    async def run(self) -> None:
        """Keep the workers running until `stop()`, and return once they have ended.

        Raises `carpool.workers.errors.Unusable` for a model that can never run.
        """
        with futures.ThreadPoolExecutor(1, f"carpool-{self.name}-run") as executor:
            await asyncio.get_running_loop().run_in_executor(executor, self.pool.run)

    def stop(self) -> None:
        """Make `run()` return: requests still held get `errors.WorkerDied`, the workers are told to exit."""
        self.pool.stop(0.0, wait=False)

    async def predict(self, body: worker.Body) -> worker.Reply:
        """The answer to one request body. Raises `errors.Refusal`; `errors.NotReady` at once if no worker is up."""
        with self._failures_told():
            if self._rows is not None:
                predictions = await self._rows.map(v1.rows_of_request(body))
                return worker.Reply(200, v1.render_predictions(b",".join(predictions)))
            return worker.reply_of(await self._requests(body, worker.Asked.PREDICTIONS.value))

    async def embed(self, request: embeddings.Request) -> worker.Reply:
        """The answer to one embeddings request. Raises as `predict` does."""
        asked = worker.Asked.EMBEDDINGS_IN_BASE64 if request.is_base64 else worker.Asked.EMBEDDINGS
        with self._failures_told():
            if self._rows is not None:
                rows = [worker.row_to_embed(row, asked) for row in v1.rows_of(request.inputs)]
                found = map(worker.embedding_of, await self._rows.map(rows))
                return worker.Reply(200, embeddings.render(self.name, list(found)))
            return worker.reply_of(await self._requests(request.inputs, asked.value))

    @contextlib.contextmanager
    def _failures_told(self) -> Iterator[None]:
        """A call of the model, whose failures become refusals."""
        if not self.is_ready:
            raise errors.NotReady(f"model {self.name} is not ready; try again later")
        try:
            yield
        except carpool.WorkerDied:
            raise errors.WorkerDied from None
        except carpool.NotIsolated:
            raise errors.NotIsolated from None


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
