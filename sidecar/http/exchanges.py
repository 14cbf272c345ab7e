"""One predict request on the fast lane, from a parsed head and a body to the bytes of its answer.

The same steps as `front.Front` takes for a request that came through aiohttp, with a callback instead of a coroutine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from sidecar import calls, errors, lifecycle, metrics
from sidecar.core import model
from sidecar.http import answers, predict, rendering

log = logging.getLogger("carpool.http")


class Connection(Protocol):
    """Who wants the answer."""

    def answered(self, exchange: Exchange, message: bytes, body: bytes, close: bool) -> None:
        """Send `message` and `body` when it is their turn, then end the connection if told so."""
        ...


class Exchange(calls.Call):
    """A request of one connection. `started` is when it came, `message` waits until earlier ones are answered."""

    __slots__ = ("connection", "desk", "message", "started")
    connection: Connection
    desk: Desk
    message: tuple[bytes, bytes, bool] | None
    started: float

    def answer(self, member: bytes, pieces: Sequence[model.Piece]) -> None:
        self.desk.answer(self, member, pieces)

    def refuse(self, error: errors.CarpoolError) -> None:
        self.desk.tell(self, error)


class Desk:
    """Makes exchanges of requests and answers of outcomes. `now` is when that last happened, on `clock`."""

    def __init__(
        self,
        lane: predict.PredictLane,
        life: lifecycle.Lifecycle,
        counters: metrics.Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.lane = lane
        self.life = life
        self.clock = clock
        self.now = clock()
        self._metrics = counters
        self._predictions = rendering.Predictions(lane.dialect)

    def takes(self, size: int, more: int) -> bool:
        """Whether nothing speaks against a body of `size` bytes of which `more` are here; else others may say what."""
        return not self.life.draining and self.lane.bodies.takes(size, more)

    def accept(self, head: calls.Head, body: bytes, connection: Connection, started: float) -> Exchange | None:
        """Make a call of a request; None if anything is wrong with its body: the general server will tell."""
        try:
            payload = self.lane.payload(body)
        except Exception:
            return None
        exchange = Exchange(head.key(payload), len(payload.rows), len(body), payload, head, head.timeout)
        exchange.message = None
        exchange.connection = connection
        exchange.desk = self
        exchange.started = started
        self.life.enter()
        return exchange

    def submit(self, exchange: Exchange) -> None:
        """Put it in the queue; it is answered once, perhaps before this returns."""
        try:
            self.lane.driver.submit(exchange)
        except Exception:
            log.exception("a request failed for a reason that is a bug")
            if exchange.message is None:
                self.tell(exchange, errors.CarpoolError())

    def answer(self, exchange: Exchange, member: bytes, pieces: Sequence[model.Piece]) -> None:
        """Give the caller its predictions."""
        message = None if self.life.draining else self._predictions.render(member, pieces)
        if message is None:
            self.tell(exchange, calls.Answered(member, pieces))
            return
        self.now = now = self.clock()
        self._metrics.predicted(200, now - exchange.started)
        exchange.connection.answered(exchange, message, b"", False)

    def tell(self, exchange: Exchange, outcome: calls.Outcome) -> None:
        """Tell the caller any outcome."""
        answer = self._tell(outcome)
        close = self.life.draining or answer.close
        message, *body = rendering.render(answer, close)
        self.now = self.clock()
        self._metrics.predicted(answer.status, self.now - exchange.started)
        exchange.connection.answered(exchange, message, b"".join(body), close)

    def late(self, error: errors.CarpoolError, since: float) -> bytes:
        """The answer to a request that began at `since` and did not arrive in time."""
        self._metrics.refused.labels(error.reason).inc()
        self._metrics.predicted(error.status, self.clock() - since)
        return b"".join(rendering.render(self.lane.tell_early(error), close=True))

    def _tell(self, outcome: calls.Outcome) -> answers.Answer:
        try:
            answer = self.lane.tell(outcome)
        except Exception:
            log.exception("a request failed for a reason that is a bug")
            outcome = errors.CarpoolError()
            answer = self.lane.tell_early(outcome)
        if isinstance(outcome, errors.CarpoolError):
            self._metrics.refused.labels(outcome.reason).inc()
        return answer
