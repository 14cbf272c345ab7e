"""The numbers the scheduler obeys, and who is refused because of them.

The numbers are one object that every part has, so that a change at run time reaches all of them at once. None of them
can write it: only the scheduler's event does, `Scheduler.change_limits`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from carpool import errors
from carpool.scheduling import ledger
from carpool.scheduling.messages import Batch

# Weight of the newest batch in the running means: the last ten or so decide.
_EWMA = 0.2
_LONGEST_RETRY_AFTER = 60

RowMeasure = Callable[[Any, int, int], Sequence[int]]
"""Measures rows `start` to `stop` (exclusive) of a request's payload, one number for each."""

RowCosts = Callable[[Any, int, int], Sequence[float]]
"""The same of what they cost, which need not be a whole number."""

RowShape = Callable[[Any], Hashable | None]
"""What the rows of a payload have in common in their lengths; None if they are of several."""


def lengths(payload: Any, start: int, stop: int) -> list[int]:
    """The measure of payloads that are plain sequences of rows with a length, such as bytes."""
    return [len(row) for row in payload[start:stop]]


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Units: instances, bytes, seconds.

    `slo` is the service objective: seconds from arrival to answer. `max_queue_instances` bounds what waits for a batch;
    `max_queue_bytes` bounds everything held, waiting or at the predictor, because that is what memory is spent on.
    `max_in_flight` batches may be at the predictor at once. Where `learns_in_flight`, how many of them it works on at a
    time is found out; else all of them, until batches show that it does not.

    `retry_budget` is the number of extra predictor calls that each regular batch earns for isolating failures, see
    `isolation.Retries`.

    A batch carries at most `max_batch_size` instances, `max_batch_bytes` of request bodies and `max_batch_cost` of what
    `row_costs` measures (None: costs nothing); only an instance that is over a limit by itself goes beyond it, alone.
    `row_sizes` tells the bytes of each instance; it is asked only about requests that no batch could carry whole.
    `row_lengths` tells how long each row is, where rows of like length are to share batches (None: they need not): a
    request then overtakes others that came less than `priority_ageing` after the one that has waited longest.
    `row_shape` tells which requests' rows have equal lengths (None: nobody's have any); it is asked only where the
    predictor refused rows together.
    `allowed_sizes` are the sizes the predictor computes with, ascending (empty: any); its last is `max_batch_size`.
    Requests of at most `small_batch_threshold` instances overtake larger ones of equal priority that came less than
    `priority_ageing` before them. A request overtakes those of lower priority that came less than `level_ageing` before
    it, times the difference in levels; plus `priority_ageing` if it alone is small, less that if it alone is large.
    Both are finite, or some would wait for ever.
    """

    max_batch_size: int = 32
    max_latency: float = 0.5
    timeout: float = 60.0
    slo: float = math.inf
    max_in_flight: float = 1
    learns_in_flight: bool = False
    max_queue_instances: float = 4096
    max_queue_bytes: float = 256 * 1024 * 1024
    retry_budget: float = 2.0
    max_batch_bytes: float = math.inf
    max_batch_cost: float = math.inf
    row_sizes: RowMeasure = lengths
    row_costs: RowCosts | None = None
    row_lengths: RowMeasure | None = None
    row_shape: RowShape | None = None
    allowed_sizes: tuple[int, ...] = ()
    small_batch_threshold: int = 0
    priority_ageing: float = 1.0
    level_ageing: float = 60.0

    def become(self, other: Limits) -> None:
        """Have the numbers of another. For the scheduler alone, which lets all parts know."""
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, getattr(other, field.name))


class Admission:
    """Refuses what does not fit; learns from batches that came back when to try again."""

    def __init__(self, limits: Limits, memory: ledger.Ledger) -> None:
        self._limits = limits
        self._memory = memory
        self._batch_seconds = 0.0
        self._batch_rows = 0.0
        self._batches_out = 1.0

    def refusal(self, rows: int, size: int, waiting: int, draining: bool) -> errors.CarpoolError | None:
        """Why so many rows in so many bytes cannot be taken while so many instances wait, or None.

        If None is for those of several requests together, it is for each of them in turn.
        """
        limits, memory = self._limits, self._memory
        has_place = waiting + rows <= limits.max_queue_instances
        if has_place and memory.held + size <= memory.limit and not draining:
            return None
        if draining:
            return errors.Draining()
        if rows > limits.max_queue_instances or size > limits.max_queue_bytes:
            bounds = {"instances": limits.max_queue_instances, "bytes": limits.max_queue_bytes}
            most = " and ".join(f"{bound} {unit}" for unit, bound in bounds.items() if bound < math.inf)
            return errors.PayloadTooLarge(f"{rows} instances in {size} bytes; a request may have at most {most}")
        if not has_place:
            return errors.Overloaded(f"{waiting} instances are waiting already", self.drain_seconds(waiting))
        return errors.MemoryFull(f"{memory.held} bytes are held already", self.drain_seconds(waiting))

    def observe(self, batch: Batch, now: float, out: int) -> None:
        """Learn the predictor's pace from a batch that came back; `out` were out until then, with it."""
        weight = _EWMA if self._batch_rows else 1.0
        self._batch_seconds += weight * (now - batch.dispatched - self._batch_seconds)
        self._batch_rows += weight * (batch.rows - self._batch_rows)
        self._batches_out += weight * (out - self._batches_out)

    def drain_seconds(self, waiting: int) -> int:
        """Predicted time until so many instances have left, in whole seconds from 1 to 60."""
        if not self._batch_rows:
            return 1
        batches = waiting / self._batch_rows
        return whole_seconds(batches * self._batch_seconds / self._batches_out)


def whole_seconds(predicted: float) -> int:
    """When to try again, for a `Retry-After`: whole seconds from 1 to 60."""
    return math.ceil(min(_LONGEST_RETRY_AFTER, max(1.0, predicted)))
