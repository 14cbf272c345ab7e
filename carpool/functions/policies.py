"""When a batch of a function leaves, where that function's batches may wait for each other."""

from __future__ import annotations

import math
from collections.abc import Callable

from carpool.scheduling import adaptive, messages, policy
from carpool.scheduling.backlog import Backlog
from carpool.scheduling.limits import Limits


class Adaptive(adaptive.Adaptive):
    """Waits for no batch that waits for a call behind it: while it `is_stuck`, the next batch leaves at once."""

    def __init__(self, bounds: Limits, tick: float, is_stuck: Callable[[], bool]) -> None:
        super().__init__(bounds, tick)
        self._most = bounds
        self._is_stuck = is_stuck

    @property
    def max_in_flight(self) -> float:
        return self._most.max_in_flight if self._is_stuck() else super().max_in_flight

    def choose(self, backlog: Backlog, now: float) -> policy.Decision:
        decision = super().choose(backlog, now)
        if not isinstance(decision, policy.Wait) or not self._is_stuck():
            return decision
        queue = backlog.due(math.inf, 0.0)
        return decision if queue is None else policy.Release(queue, messages.Reason.IDLE)
