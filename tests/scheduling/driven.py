"""A scheduler driven by hand: a clock that is set, batches that are answered, and a record of outcomes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

from carpool import errors
from carpool.scheduling import limits as core_limits
from carpool.scheduling import messages, policy, scheduler, suspicion, window
from carpool_sidecar import errors as sidecar_errors
from carpool_sidecar.batching import retried_statuses


def refused(
    status: int, body: bytes = b"", *, named: str | None = None, doubtful: Collection[int] = (), rows: int = 32
) -> sidecar_errors.UpstreamStatus:
    """A refusal of a batch of so many rows, with the remedy that the sidecar's rules give it."""
    error = sidecar_errors.UpstreamStatus(status, body)
    retried_statuses.Rules(named).judge(error, doubtful, rows)
    return error


class DrivenScheduler:
    """Drives the production scheduler and notes what it wants done.

    Requests are named; their rows are `name/0`, `name/1`, …, and the fake predictor answers each row with itself.
    """

    scheduler: type[scheduler.Scheduler] = scheduler.Scheduler

    def __init__(
        self,
        policy: Callable[[core_limits.Limits], policy.Policy] = window.Window,
        traits: suspicion.Traits = suspicion.NO_TRAITS,
        **limits: Any,
    ) -> None:
        self.now = 1000.0
        self.limits = core_limits.Limits(**limits)
        self._ids = 0
        self.policy = policy(self.limits)
        self.core = self.scheduler(self.limits, self.policy, lambda: self.now, self._new_id, traits)
        self.out: list[messages.Batch] = []
        self.sent: list[messages.Batch] = []
        self.abandoned: list[messages.Batch] = []
        self.answers: dict[str, list[str]] = {}
        self.answer_ids: dict[str, list[str]] = {}
        self.refusals: dict[str, errors.CarpoolError] = {}
        self.requests: dict[str, messages.Request] = {}
        self._bodies: dict[messages.Batch, list[str]] = {}

    def _new_id(self) -> str:
        self._ids += 1
        return f"batch-{self._ids}"

    # --- doing -------------------------------------------------------------------------------------------------

    def submit(
        self,
        name: str,
        rows: int = 1,
        key: Hashable = "key",
        timeout: float | None = None,
        size: int = 10,
        max_batch_size: float = math.inf,
        priority: int = 0,
    ) -> messages.Request:
        request = self.make(name, rows, key, timeout, size, max_batch_size, priority)
        self.do(self.core.submit(request))
        return request

    def submit_all(self, *wanted: tuple[Any, ...]) -> None:
        """Submit requests together; each is what `make` takes."""
        self.do(self.core.submit_all([self.make(*about) for about in wanted]))

    def make(
        self,
        name: str,
        rows: int = 1,
        key: Hashable = "key",
        timeout: float | None = None,
        size: int = 10,
        max_batch_size: float = math.inf,
        priority: int = 0,
    ) -> messages.Request:
        payload = [f"{name}/{i}" for i in range(rows)]
        request = messages.Request(key, rows, size, payload, name, timeout, max_batch_size, priority)
        self.requests[name] = request
        return request

    def change(self, **limits: Any) -> None:
        """Have the scheduler obey other limits."""
        self.do(self.core.change_limits(dataclasses.replace(self.limits, **limits)))

    def cancel(self, name: str) -> None:
        self.do(self.core.cancel(self.requests[name]))

    def pass_time(self, seconds: float) -> None:
        """Let time pass, polling at each deadline on the way, as the driver's timer does."""
        end = self.now + seconds
        while (deadline := self.core.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.do(self.core.poll())
        self.now = end

    def answer(self, batch: messages.Batch | None = None) -> None:
        """The predictor answers a batch, by default the oldest one out."""
        batch = batch or self.out[0]
        self.out.remove(batch)
        self.do(self.core.done(batch, self.rows_of(batch)))

    def fail(self, error: errors.CarpoolError, batch: messages.Batch | None = None) -> None:
        batch = batch or self.out[0]
        self.out.remove(batch)
        self.do(self.core.failed(batch, error))

    def answer_all(self) -> None:
        while self.out:
            self.answer()

    def do(self, effects: Iterable[messages.Effect]) -> None:
        for effect in effects:
            match effect:
                case messages.Dispatch(batch):
                    # The driver reads payloads at dispatch, so later departures do not change what was sent.
                    self._bodies[batch] = [row for request, a, b in batch.parts for row in request.payload[a:b]]
                    assert len(self._bodies[batch]) == batch.rows
                    self.out.append(batch)
                    self.sent.append(batch)
                case messages.Abandon(batch):
                    self.out.remove(batch)
                    self.abandoned.append(batch)
                    self.do(self.core.failed(batch, errors.Abandoned()))
                case messages.Answer(request, pieces):
                    assert request.tag not in self.answers, "answered twice"
                    self.answers[request.tag] = [row for piece in pieces for row in piece.predictions]
                    self.answer_ids[request.tag] = [piece.batch_id for piece in pieces]
                case messages.Refuse(request, error):
                    assert request.tag not in self.refusals, "refused twice"
                    self.refusals[request.tag] = error

    # --- looking -----------------------------------------------------------------------------------------------

    def rows_of(self, batch: messages.Batch) -> list[str]:
        return self._bodies[batch]

    def members(self, batch: messages.Batch) -> list[str]:
        return [part.request.tag for part in batch.parts]

    @property
    def sizes(self) -> Sequence[int]:
        return [batch.rows for batch in self.sent]

    @property
    def reasons(self) -> Sequence[str]:
        return [batch.reason for batch in self.sent]
