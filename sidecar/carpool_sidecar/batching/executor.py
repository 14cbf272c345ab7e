"""Carries out batches by calls to the predictor: joins bodies and headers, posts them, finds the rows in the answer.

What happens is counted and logged here as well, for the driver knows neither metrics nor how the sidecar logs.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from carpool.compiled import mypyc_attr
from carpool.program import logs
from carpool.runtime import driver
from carpool.scheduling import messages
from carpool_sidecar import errors, metrics, turns
from carpool_sidecar.batching import calls, retried_statuses
from carpool_sidecar.protocols import interface, steps
from carpool_sidecar.recording import ring

log = logging.getLogger("carpool.sidecar.batching")


_LESSONS = {
    messages.Lesson.APART: "the predictor refuses instances of several lengths in one call; they travel apart for now",
    messages.Lesson.TOGETHER: "the predictor takes instances of several lengths in one call again; they share calls",
    messages.Lesson.ROWS: "the predictor refuses so many instances in one call; fewer are sent for now",
    messages.Lesson.BYTES: "the predictor refuses so many bytes in one call; fewer are sent for now",
}


class Tracing(Protocol):
    """Is told of the calls for batches."""

    def headers_of(self, batch: messages.Batch, route: calls.Route, target: str) -> calls.Headers:
        """A batch goes to a target: the trace context that goes with it, if it has one of its own."""
        ...

    def came_back(self, batch: messages.Batch, reply: interface.UpstreamResponse | errors.UpstreamError) -> None:
        """The predictor replied, or failed to."""
        ...


class Executor:
    """Implements `driver.Executor`: one call to the route's predictor for each batch.

    `batch.about` is what the predictor answered. `rules` tell what is done after a status of the predictor's. `clock`
    is the driver's. Large replies are read in the `worked` turns.
    """

    def __init__(
        self,
        rules: retried_statuses.Rules | None = None,
        clock: Callable[[], float] = time.monotonic,
        tracing: Tracing | None = None,
        worked: turns.Turns | None = None,
    ) -> None:
        self._rules = rules or retried_statuses.Rules()
        self._clock = clock
        self._tracing = tracing
        self._turns = worked or turns.Turns()

    def start(self, batch: messages.Batch, done: Callable[[driver.Outcome], None]) -> driver.Execution:
        """Post a batch."""
        heads: Sequence[calls.Head] = [part.request.tag for part in batch.parts]
        route = heads[0].route
        call = route.codec.merge(batch.id, heads[0].target, batch.parts)
        trace = () if self._tracing is None else self._tracing.headers_of(batch, route, call.target)
        headers = calls.merged_headers(heads, call.headers, trace)
        last_deadline = batch.parts[0].request.deadline
        for part in batch.parts:
            last_deadline = max(last_deadline, part.request.deadline)
        timeout = max(0.001, last_deadline - self._clock())
        out = _Out()
        out.work = None
        reply = functools.partial(self._returned, batch, call, route, done, out)
        out.post = route.predictor.post(call.target, headers, call.body, timeout, reply)
        return out

    def _returned(
        self,
        batch: messages.Batch,
        call: interface.UpstreamRequest,
        route: calls.Route,
        done: Callable[[driver.Outcome], None],
        out: _Out,
        reply: interface.UpstreamResponse | errors.UpstreamError,
    ) -> None:
        """Read the predictor's reply: predictions, or an error with its remedy."""
        outcome: driver.Outcome
        if self._tracing is not None:
            self._tracing.came_back(batch, reply)
        try:
            if isinstance(reply, errors.UpstreamError):
                outcome = reply
                if isinstance(reply, errors.UpstreamStatus):
                    self._rules.judge(reply, route.doubtful, batch.rows)
                    if route.rejected is not None and len(batch.parts) > 1:
                        route.rejected()
            elif len(reply.body) >= interface.LARGE_ANSWER:
                told = functools.partial(self._read, batch, done)
                out.work = self._turns.start(call.read_in_steps(reply), told)
                return
            else:
                batch.about = found = steps.at_once(call.read_in_steps(reply))
                outcome = found.rows
        except Exception as error:
            outcome = error
        done(outcome)

    def _read(
        self,
        batch: messages.Batch,
        done: Callable[[driver.Outcome], None],
        found: interface.BatchPredictions | Exception,
    ) -> None:
        """A large reply was read."""
        if isinstance(found, Exception):
            done(found)
        else:
            batch.about = found
            done(found.rows)


class _Out:
    """Implements `driver.Execution`: a call that was posted, until its reply is read."""

    __slots__ = ("post", "work")
    post: driver.Execution
    work: turns.Work | None

    def cancel(self) -> bool | None:
        """Nobody waits for it any more."""
        if self.work is not None:
            self.work.cancel()
            return None
        return self.post.cancel()


class Recorder(Protocol):
    """Wants to know of each batch that leaves and comes back."""

    def sent(self, batch: messages.Batch, waited: Sequence[float] | None) -> None:
        """It leaves; `waited` is how long each of its parts did, in seconds, if that is known already."""
        ...

    def answered(self, batch: messages.Batch, seconds: float) -> None:
        """It came back with predictions after so many seconds."""
        ...

    def failed(self, batch: messages.Batch, error: errors.CarpoolError) -> None:
        """It came back without, or was broken off."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
class Observer(driver.Observer):
    """Counts what happens to batches, and logs what goes wrong. A `recorder` is told as well, while there is one.

    A `kept` ring is told what came, `timings` of each batch. Waits are counted by level where `has_levels`.
    """

    def __init__(
        self,
        counters: metrics.Metrics,
        clock: Callable[[], float] = time.monotonic,
        kept: ring.Ring | None = None,
        timings: calls.ServerTimings | None = None,
    ) -> None:
        self._timings = timings
        self._metrics = counters
        self._ring = kept
        self._sent = {reason: counters.batches.labels(reason) for reason in messages.Reason}
        self._complaints = logs.RateLimitedLog(log, clock)
        self.recorder: Recorder | None = None
        self.has_levels = False

    def sent(self, batch: messages.Batch) -> None:
        """Count a batch, its size, and how long its requests waited."""
        counters, reason = self._metrics, batch.reason
        self._sent[reason].value += 1
        counters.batch_size.observe_all((batch.rows,))
        if reason in messages.RETRIES:
            counters.retries.labels(reason).inc()
        arrived, left = [request.arrived for request in batch.newcomers], batch.dispatched
        waited = [left - moment for moment in arrived]
        counters.queue_seconds.observe_all(waited)
        if self.has_levels:
            for request, seconds in zip(batch.newcomers, waited, strict=True):
                level = calls.LEVELS[request.priority]
                counters.level_requests.labels(level).inc()
                counters.level_waits.labels(level).inc(seconds)
        if self._ring is not None:
            self._ring.sent(batch, arrived)
        if self._timings is not None:
            self._timings.note(batch)
        if self.recorder is not None:
            self.recorder.sent(batch, waited)
        if log.isEnabledFor(logging.DEBUG):
            oldest = min(part.request.arrived for part in batch.parts)
            told = {"reason": str(reason), "instances": batch.rows, "requests": len(batch.parts)}
            waited_ms = round((batch.dispatched - oldest) * 1000, 1)
            log.debug("batch leaves", extra=logs.facts(batch=batch.id, **told, waited_ms=waited_ms))

    def answered(self, batch: messages.Batch, seconds: float) -> None:
        """Count how long the predictor took."""
        self._metrics.predictor_seconds.observe_all((seconds,))
        if self._ring is not None:
            self._ring.answered(batch, seconds)
        if self.recorder is not None:
            self.recorder.answered(batch, seconds)

    def failed(self, batch: messages.Batch, error: errors.CarpoolError) -> None:
        if self.recorder is not None:
            self.recorder.failed(batch, error)
        if isinstance(error, errors.Abandoned):
            log.debug("batch abandoned", extra=logs.facts(batch=batch.id))
            return
        self._metrics.predictor_errors.labels(error.reason).inc()
        told = {"batch": batch.id, "instances": batch.rows, "reason": error.reason, "error": str(error)}
        if error.remedy is errors.Remedy.SMALLER and (pieces_of := getattr(batch, "pieces_of", None)):
            target = batch.parts[0].request.tag.target.partition("?")[0]
            words = "the predictor refused a batch for its size; it goes again in smaller ones"
            self._complaints.warning(
                "size", words, target=target, status=errors.status_of(error), at_most=pieces_of, **told
            )
            return
        self._complaints.warning(error.reason, "batch failed", **told)

    def learned(self, lesson: messages.Learned) -> None:
        """Log it, once for each time that something else holds."""
        told: dict[str, object] = {} if not lesson.most else {"at_most": lesson.most}
        target = lesson.batch.parts[0].request.tag.target.partition("?")[0]
        self._complaints.warning(lesson.lesson, _LESSONS[lesson.lesson], target=target, **told)

    def left(self, call: messages.Request) -> None:
        self._metrics.abandoned.inc()
        if self._ring is not None and not call.was_sent:
            self._ring.turned_away(call)

    def turned_away(self, call: messages.Request, error: errors.CarpoolError) -> None:
        """Keep what came and is refused."""
        if self._ring is not None:
            self._ring.refused(call, error)

    def bug(self, words: str, error: BaseException, batch: messages.Batch | None = None) -> None:
        super().bug(words, error, batch)
        self._metrics.internal_errors.labels("batch").inc()
