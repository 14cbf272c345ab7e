"""The asyncio shell around the core: carries out its effects and tells it what happened.

It owns one exchange with the predictor for each batch that is out, and one timer. It decides nothing: when a batch
leaves, who is in it and who gets which answer is the core's business.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections.abc import Callable, Sequence

from carpool.program import logs
from carpool.scheduling import messages, scheduler
from carpool_sidecar import errors, metrics
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import interface

log = logging.getLogger("carpool.sidecar.batching")


class Driver:
    """Takes calls, answers each exactly once."""

    # Mutable state: the scheduler's; _exchanges, one for each batch out; _timer and when it fires (on `clock`).
    def __init__(
        self,
        core: scheduler.Scheduler,
        counters: metrics.Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = core
        self._metrics = counters
        self._clock = clock
        self._complaints = logs.RateLimitedLog(log, clock)
        self._exchanges: dict[messages.Batch, calls.Exchange] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._idle: asyncio.Event | None = None  # once draining: set when nothing is left

    def submit(self, call: calls.Call) -> None:
        """Put a call in; it is answered or refused once, perhaps before this returns."""
        core = self.core
        effects = core.submit(call)
        if effects:
            self._carry_out(effects)
        elif core.wake < self._timer_at or call.deadline < self._timer_at:
            self._arm()

    def cancel(self, call: calls.Call) -> None:
        """The caller left; it will not be answered."""
        if call.open:
            self._metrics.abandoned.inc()
        self._carry_out(self.core.cancel(call))

    def limits_changed(self) -> None:
        """The core's limits were edited."""
        self._carry_out(self.core.limits_changed())

    def reconsider(self) -> None:
        """The core's policy was told something."""
        self._carry_out(self.core.reconsider())

    async def drain(self) -> None:
        """Take nothing new; return once everything accepted has been answered."""
        self._idle = self._idle or asyncio.Event()
        self._carry_out(self.core.drain())
        await self._idle.wait()

    def close(self) -> None:
        """Answer everybody who still waits 503, and break off what is out. For the end of a grace period."""
        self._carry_out(self.core.abort(errors.Draining()))
        for batch in list(self._exchanges):
            self._break_off(batch)
        if self._timer is not None:
            self._timer.cancel()

    # --- effects -----------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[messages.Effect], list_name: bytes = b"predictions") -> None:
        # In their order: a batch is written to its connection before the answers of the last one are to theirs.
        answers: list[messages.Answer] = []
        for effect in effects:
            if type(effect) is messages.Answer:
                answers.append(effect)
            elif type(effect) is messages.Dispatch:
                self._try_dispatch(effect.batch)
            elif type(effect) is messages.Refuse:
                self._refuse(effect)
            elif type(effect) is messages.Abandon:
                self._break_off(effect.batch)
        if answers:
            self._answer(answers, list_name)
        self._arm()
        if self._idle is not None and self.core.idle:
            self._idle.set()

    def _answer(self, answers: Sequence[messages.Answer], list_name: bytes) -> None:
        """Hand them to their repliers; there are two, and mostly one of them has all."""
        replier = _call(answers[0]).replier
        others = [answer for answer in answers if answer.request.replier is not replier]  # type: ignore[attr-defined]
        mine = [answer for answer in answers if _call(answer).replier is replier] if others else answers
        try:
            replier.answer(mine, list_name)
        except Exception:
            log.exception("answers could not be handed over")
            self._metrics.internal_errors.labels("batch").inc()
        if others:
            self._answer(others, list_name)

    def _refuse(self, effect: messages.Refuse) -> None:
        call = _call(effect)
        try:
            call.replier.refuse(call, effect.error)
        except Exception:
            log.exception("an error could not be handed over")
            self._metrics.internal_errors.labels("batch").inc()

    def _try_dispatch(self, batch: messages.Batch) -> None:
        try:
            self._dispatch(batch)
        except Exception as error:
            reason = error if isinstance(error, errors.CarpoolError) else errors.CarpoolError()
            if reason is not error:
                log.exception("a batch could not be sent", extra=logs.facts(batch=batch.id))
                self._metrics.internal_errors.labels("batch").inc()
            # Later: the effects of the event that this batch is one of come first.
            asyncio.get_running_loop().call_soon(self._fail, batch, errors.bare(reason))

    def _dispatch(self, batch: messages.Batch) -> None:
        self._metrics.dispatched(batch)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("batch leaves", extra=_facts(batch, batch.dispatched))
        heads: Sequence[calls.Head] = [part.request.tag for part in batch.parts]
        route = heads[0].route
        target, own, body, read = route.codec.merge(batch.id, heads[0].target, batch.parts)
        headers = calls.merged_headers(heads, own)
        timeout = max(0.001, batch.deadline - self._clock())
        reply = functools.partial(self._returned, batch, read, route)
        self._exchanges[batch] = route.predictor.post(target, headers, body, timeout, reply)

    def _returned(
        self,
        batch: messages.Batch,
        read: Callable[[interface.UpstreamResponse], interface.BatchPredictions],
        route: calls.Route,
        outcome: interface.UpstreamResponse | errors.UpstreamError,
    ) -> None:
        del self._exchanges[batch]
        try:
            if isinstance(outcome, errors.UpstreamError):
                if isinstance(outcome, errors.UpstreamStatus):
                    outcome.is_doubtful = outcome.status in route.doubtful
                    if route.rejected is not None and len(batch.parts) > 1:
                        route.rejected()
                raise outcome
            answer = read(outcome)
        except errors.CarpoolError as error:
            self._fail(batch, errors.bare(error))
        except Exception:
            log.exception("a batch failed for a reason that is a bug", extra=logs.facts(batch=batch.id))
            self._metrics.internal_errors.labels("batch").inc()
            self._fail(batch, errors.CarpoolError())
        else:
            self._settle(batch, self.core.done(batch, answer.rows), answer.list_name)

    def _break_off(self, batch: messages.Batch) -> None:
        exchange = self._exchanges.pop(batch, None)
        if exchange is not None:
            exchange.cancel()
            self._fail(batch, errors.Abandoned())

    def _fail(self, batch: messages.Batch, error: errors.CarpoolError) -> None:
        self._settle(batch, self.core.failed(batch, error))

    def _settle(
        self, batch: messages.Batch, effects: Sequence[messages.Effect], list_name: bytes = b"predictions"
    ) -> None:
        error = batch.error
        if error is None:
            self._metrics.predictor_seconds.observe(self._clock() - batch.dispatched)
        elif isinstance(error, errors.Abandoned):
            log.debug("batch abandoned", extra=logs.facts(batch=batch.id))
        else:
            if error.__cause__ is not None:
                log.error("a batch failed for a reason that is a bug", exc_info=error.__cause__)
                self._metrics.internal_errors.labels("batch").inc()
            self._metrics.predictor_errors.labels(error.reason).inc()
            told = {"batch": batch.id, "instances": batch.rows, "reason": error.reason, "error": str(error)}
            self._complaints.warning(error.reason, "batch failed", **told)
        self._carry_out(effects, list_name)

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


def _call(effect: messages.Answer | messages.Refuse) -> calls.Call:
    return effect.request  # type: ignore[return-value] # what `submit` was given


def _facts(batch: messages.Batch, now: float) -> dict[str, dict[str, object]]:
    oldest = min(part.request.arrived for part in batch.parts)
    return logs.facts(
        batch=batch.id,
        reason=batch.reason,
        instances=batch.rows,
        requests=len(batch.parts),
        waited_ms=round((now - oldest) * 1000, 1),
    )
