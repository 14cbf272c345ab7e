"""What decides when a batch leaves.

A policy is asked only while it allows one more batch in flight and something waits; it names the queue to cut the next
batch from, or says until when to wait. It never seals a batch: requests keep joining until the moment it goes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from carpool import errors
from carpool.scheduling.backlog import Backlog, Queue
from carpool.scheduling.messages import Batch, Reason, Request
from carpool.scheduling.own_time import OwnTimeModel
from carpool.scheduling.predictor_model import PredictorModel


class Release(NamedTuple):
    """Cut a batch from `queue` now, of at most `rows` instances (None: as many as fit); `reason` says why it goes."""

    queue: Queue
    reason: Reason
    rows: int | None = None


class Wait(NamedTuple):
    """Nothing goes yet. Ask again at `until` or at the next event, whichever is first.

    Until `settled_until` neither the time that passes nor a new request changes this decision. Until then a new request
    needs no asking, unless it fills its queue, is first in it, or has the earliest goal of it.
    """

    until: float | None
    settled_until: float = -math.inf


class Drop(NamedTuple):
    """Refuse this waiting request with this error, then ask again."""

    request: Request
    error: errors.CarpoolError


Decision = Release | Wait | Drop


class Policy(Protocol):
    """Decides when batches leave. The scheduler tells it what happened and asks what to do; times are in seconds."""

    predictor: PredictorModel
    """What is known of the predictor. The scheduler tells it of time and of changed limits, the policy of batches."""

    own_time: OwnTimeModel
    """What batching itself takes, for whoever measures it to teach."""

    @property
    def max_in_flight(self) -> float:
        """How many batches may be out now. Arrivals do not change it; time may at `predictor.overdue_at`."""
        ...

    def arrived(self, rows: int, goal: float, ahead: int, now: float) -> errors.CarpoolError | None:
        """Requests of so many rows in all came at one moment, and would fit.

        Returns None if all of them are to go into the backlog now, or why not: then nothing has happened. `goal` is the
        earliest of theirs, and `ahead` how many instances would wait before the last of them: whoever is taken would
        also be taken with a later goal, and with fewer ahead.
        """
        ...

    def choose(self, backlog: Backlog, now: float) -> Decision:
        """What to do with a free slot; the backlog is not empty."""
        ...

    def sent(self, batch: Batch, now: float) -> None:
        """A batch left, by this policy's choice or as a retry."""
        ...

    def completed(self, batch: Batch, now: float) -> None:
        """A batch came back with predictions."""
        ...

    def batch_failed(self, batch: Batch, error: errors.CarpoolError, now: float) -> None:
        """A batch failed."""
        ...

    def learned(self, backlog: Backlog, now: float) -> Mapping[str, float]:
        """What the policy knows about the predictor and its callers, by name, in base units."""
        ...
