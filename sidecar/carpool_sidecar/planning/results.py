"""What a simulation saw, and the figures people judge it by. Times are seconds, rates a second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from carpool_sidecar.planning import service_times


class Outcome:
    """One request. `refused` is the label of the error it got, None if it was answered.

    `finished` is when it was answered or refused, infinity as long as neither has happened; `batch_rows` is the size
    of the batch that completed it.
    """

    __slots__ = ("arrived", "batch_rows", "deadline", "finished", "pod", "refused")

    def __init__(self, arrived: float, deadline: float, pod: int) -> None:
        self.arrived = arrived
        self.deadline = deadline
        self.pod = pod
        self.finished = math.inf
        self.refused: str | None = None
        self.batch_rows = 0


class Summary(NamedTuple):
    """Latencies are of answered requests that arrived after warm-up; rates and shares of the time after it.

    `offered` counts arrivals and `goodput` answers within their deadline, `refused` is a share of all requests,
    `mean_batch` is in instances, `utilisation` the share of time that workers were busy.
    """

    requests: int
    offered: float
    mean: float
    p50: float
    p99: float
    throughput: float
    goodput: float
    refused: float
    mean_batch: float
    utilisation: float


class Result(NamedTuple):
    """Everything that happened until `end`, the last arrival, and to those requests afterwards."""

    outcomes: Sequence[Outcome]
    stays: Sequence[service_times.Stay]
    workers: int  # of all pods
    end: float

    def summary(self, warm_up: float = 0.1) -> Summary:
        """The figures, without the first `warm_up` share of the time."""
        begin = warm_up * self.end
        span = self.end - begin
        counted = [outcome for outcome in self.outcomes if outcome.arrived >= begin]
        answered = [outcome for outcome in self.outcomes if outcome.refused is None]
        waits = sorted(outcome.finished - outcome.arrived for outcome in answered if outcome.arrived >= begin)
        back = [outcome for outcome in answered if begin <= outcome.finished < self.end]
        sizes = [stay.rows for stay in self.stays if begin <= stay.sent < self.end]
        busy = sum(max(0.0, min(stay.ended, self.end) - max(stay.started, begin)) for stay in self.stays)
        return Summary(
            requests=len(counted),
            offered=len(counted) / span,
            mean=sum(waits) / len(waits) if waits else math.inf,
            p50=quantile(waits, 0.50),
            p99=quantile(waits, 0.99),
            throughput=len(back) / span,
            goodput=sum(outcome.finished <= outcome.deadline for outcome in back) / span,
            refused=1 - len(waits) / len(counted) if counted else 0.0,
            mean_batch=sum(sizes) / len(sizes) if sizes else 0.0,
            utilisation=busy / (span * self.workers),
        )


def quantile(ascending: Sequence[float], share: float) -> float:
    """The value that `share` of them do not exceed (nearest rank); infinity if there are none."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)] if ascending else math.inf
