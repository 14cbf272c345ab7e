"""How long a predictor takes: service times of a batch, and the device that serves batches one after another.

All times are seconds. A service model gives the mean time of a batch of `rows` instances that starts at `now`; the
device adds noise, queueing and the overhead around it (network, JSON), which other batches overlap.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from carpool_sidecar.planning import chance


class Service(Protocol):
    """Mean seconds on the device."""

    def seconds(self, rows: int, now: float) -> float:
        """For a batch of `rows` that starts at `now`."""
        ...


@dataclass(frozen=True)
class Affine:
    """`fixed + per_row * rows`: what most models do between one instance and a full batch."""

    fixed: float
    per_row: float

    def seconds(self, rows: int, now: float) -> float:
        """The same at any time."""
        return self.fixed + self.per_row * rows


@dataclass(frozen=True)
class Padded:
    """Batches cost as much as the next power of two, as on predictors compiled for a few shapes."""

    service: Service

    def seconds(self, rows: int, now: float) -> float:
        """The time of 1, 2, 4, 8, … rows."""
        return self.service.seconds(1 << (rows - 1).bit_length(), now)


@dataclass(frozen=True)
class Drifting:
    """`factor` times slower for batches that start from `begin` to `end`: a noisy neighbour."""

    service: Service
    factor: float
    begin: float
    end: float

    def seconds(self, rows: int, now: float) -> float:
        """The usual time, or `factor` times that."""
        slow = self.begin <= now < self.end
        return self.service.seconds(rows, now) * (self.factor if slow else 1.0)


class Predictor(NamedTuple):
    """A model server: `workers` batches at a time, each with `overhead` seconds, half before and half after.

    `variation` is the coefficient of variation (deviation over mean) of the lognormal noise on service times.
    """

    service: Service
    overhead: float = 0.0
    workers: int = 1
    variation: float = 0.05

    def capacity(self, max_batch_size: int) -> float:
        """Instances a second when every batch is full."""
        return self.workers * max_batch_size / self.service.seconds(max_batch_size, 0.0)


class Stay(NamedTuple):
    """A batch at the predictor: sent, on the device from `started` to `ended`, and back at `returned`."""

    sent: float
    started: float
    ended: float
    returned: float
    rows: int


class Device:
    """One predictor at work. Batches start in the order in which they were sent, on the worker that is free first."""

    def __init__(self, predictor: Predictor, seed: str) -> None:
        self.predictor = predictor
        self._free = [0.0] * predictor.workers  # a heap: when each worker has finished what it was given
        self._random = chance.source(seed)
        variance = math.log1p(predictor.variation**2)
        self._mu, self._sigma = -variance / 2, math.sqrt(variance)  # mean 1

    def serve(self, rows: int, now: float) -> Stay:
        """What becomes of a batch of `rows` sent `now`. Times of later calls never go back."""
        half = self.predictor.overhead / 2
        started = max(now + half, self._free[0])
        seconds = self.predictor.service.seconds(rows, started)
        if self._sigma:
            seconds *= self._random.lognormvariate(self._mu, self._sigma)
        ended = started + seconds
        heapq.heapreplace(self._free, ended)
        return Stay(now, started, ended, ended + half, rows)
