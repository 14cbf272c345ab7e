"""The asyncio shell around the core: carries out its effects and tells it what happened.

It owns one task for each batch at the predictor and one timer. It decides nothing: when a batch leaves, who is in it
and who gets which answer is the core's business.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from sidecar import calls, errors, logs, metrics
from sidecar.core import model, scheduler
from sidecar.wire import v1

log = logging.getLogger("carpool.driver")


class Predictor(Protocol):
    """Where batches go."""

    async def predict(self, target: str, headers: calls.Headers, body: calls.Pieces, timeout: float) -> bytes:
        """Post a body and return the answer's, within `timeout` seconds; raises `errors.UpstreamError` only."""
        ...


class Driver:
    """Takes calls, answers each exactly once."""

    # Mutable state: the scheduler's; _tasks, one for each batch out; _timer and when it fires (on `clock`).
    def __init__(
        self,
        core: scheduler.Scheduler,
        predictor: Predictor,
        counters: metrics.Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = core
        self._predictor = predictor
        self._metrics = counters
        self._clock = clock
        self._complaints = logs.Seldom(log, clock)
        self._tasks: dict[model.Batch, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._idle: asyncio.Event | None = None  # once draining: set when nothing is left

    def submit(self, call: calls.Call) -> None:
        """Put a call in; it is answered or refused once, perhaps before this returns."""
        effects = self.core.submit(call)
        if effects:
            self._carry_out(effects)
        else:
            self._arm()

    def cancel(self, call: calls.Call) -> None:
        """The caller left; it will not be answered."""
        if call.open:
            self._metrics.abandoned.inc()
        self._carry_out(self.core.cancel(call))

    def limits_changed(self) -> None:
        """The core's limits were edited."""
        self._carry_out(self.core.limits_changed())

    async def drain(self) -> None:
        """Take nothing new; return once everything accepted has been answered."""
        self._idle = self._idle or asyncio.Event()
        self._carry_out(self.core.drain())
        await self._idle.wait()

    async def close(self) -> None:
        """Answer everybody who still waits 503, and cancel what is out. For the end of a grace period."""
        self._carry_out(self.core.abort(errors.Draining()))
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    # --- effects -----------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[model.Effect], member: bytes = b"predictions") -> None:
        replies = []
        for effect in effects:
            if type(effect) is model.Dispatch:
                self._try_dispatch(effect.batch)
            elif type(effect) is model.Abandon:
                self._break_off(effect.batch)
            else:
                replies.append(effect)
        if replies and len(replies) < len(effects):
            # The new batch's task has not run yet. Answering first would keep the predictor idle meanwhile.
            asyncio.get_running_loop().call_soon(self._reply, replies, member)
        else:
            self._reply(replies, member)
        self._arm()
        if self._idle is not None and self.core.idle:
            self._idle.set()

    @staticmethod
    def _reply(effects: Iterable[model.Effect], member: bytes) -> None:
        for effect in effects:
            call: calls.Call = effect.request  # type: ignore[assignment,union-attr] # what `submit` was given
            try:
                if type(effect) is model.Answer:
                    call.answer(member, effect.pieces)
                elif type(effect) is model.Refuse:
                    call.refuse(effect.error)
            except Exception:  # one caller's trouble is not the others'
                log.exception("an answer could not be handed over")

    def _try_dispatch(self, batch: model.Batch) -> None:
        try:
            self._dispatch(batch)
        except Exception:
            log.exception("a batch could not be sent", extra=logs.facts(batch=batch.id))
            effects = self.core.failed(batch, errors.CarpoolError())
            asyncio.get_running_loop().call_soon(self._settle, batch, effects)

    def _dispatch(self, batch: model.Batch) -> None:
        self._metrics.dispatched(batch)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("batch leaves", extra=_facts(batch, batch.dispatched))
        # The body is built now: a member that leaves while the task waits to start takes its payload with it.
        body = v1.merge((part.request.payload, part.start, part.stop) for part in batch.parts)
        heads: Sequence[calls.Head] = [part.request.tag for part in batch.parts]
        sending = self._send(batch, heads[0].target, calls.merged_headers(heads), body)
        task = asyncio.get_running_loop().create_task(sending, name=f"batch {batch.id}")
        self._tasks[batch] = task
        task.add_done_callback(functools.partial(self._ended, batch))

    async def _send(self, batch: model.Batch, target: str, headers: calls.Headers, body: calls.Pieces) -> None:
        try:
            timeout = max(0.001, batch.deadline - self._clock())
            answer = v1.parse_answer(await self._predictor.predict(target, headers, body, timeout))
        except errors.CarpoolError as error:
            self._settle(batch, self.core.failed(batch, errors.bare(error)))
        except Exception:
            log.exception("a batch failed for a reason that is a bug", extra=logs.facts(batch=batch.id))
            self._settle(batch, self.core.failed(batch, errors.CarpoolError()))
        else:
            self._settle(batch, self.core.done(batch, answer.rows), answer.member)

    def _break_off(self, batch: model.Batch) -> None:
        task = self._tasks.get(batch)
        if task is not None:
            task.cancel()

    def _ended(self, batch: model.Batch, task: asyncio.Task[None]) -> None:
        del self._tasks[batch]
        if batch not in self.core.in_flight:
            return
        # Here and not in the task: one that is cancelled before its first step never runs a line.
        if task.cancelled():
            self._settle(batch, self.core.failed(batch, errors.Abandoned()))
        else:
            log.error("a batch was left unsettled by a bug", exc_info=task.exception())
            self._settle(batch, self.core.failed(batch, errors.CarpoolError()))

    def _settle(self, batch: model.Batch, effects: Sequence[model.Effect], member: bytes = b"predictions") -> None:
        error = batch.error
        if error is None:
            self._metrics.predictor_seconds.observe(self._clock() - batch.dispatched)
        elif isinstance(error, errors.Abandoned):
            log.debug("batch abandoned", extra=logs.facts(batch=batch.id))
        else:
            self._metrics.predictor_errors.labels(error.reason).inc()
            told = {"batch": batch.id, "instances": batch.rows, "reason": error.reason, "error": str(error)}
            self._complaints.warning(error.reason, "batch failed", **told)
        self._carry_out(effects, member)

    # --- time --------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Make sure the timer fires by the core's next deadline; an early one only polls in vain."""
        deadline = self.core.next_deadline()
        if deadline is None or deadline >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        # libuv counts whole milliseconds and rounds down; rounding up here avoids a spin of early wake-ups.
        delay = math.ceil(max(0.0, deadline - self._clock()) * 1000) / 1000
        self._timer_at = deadline
        self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        self._carry_out(self.core.poll())


def _facts(batch: model.Batch, now: float) -> dict[str, dict[str, object]]:
    oldest = min(part.request.arrived for part in batch.parts)
    return logs.facts(
        batch=batch.id,
        reason=batch.reason,
        instances=batch.rows,
        requests=len(batch.parts),
        waited_ms=round((now - oldest) * 1000, 1),
    )
