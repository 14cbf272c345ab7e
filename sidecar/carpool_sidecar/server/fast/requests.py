"""One predict request on the fast lane, from a parsed head and a body to the bytes of its answer.

The same steps as `front.Front` takes for a request that came through aiohttp, with a callback instead of a coroutine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, cast

from carpool.scheduling import messages
from carpool_sidecar import drain, errors, metrics
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import incremental_scan, interface, v1
from carpool_sidecar.server import predict, responses

log = logging.getLogger("carpool.sidecar.server")


class Connection(Protocol):
    """Who wants the answer."""

    @property
    def peer(self) -> Hashable:
        """The address of its other end, or None if that is not known."""
        ...

    def answered(self, exchange: Exchange, message: bytes, body: bytes, close: bool) -> None:
        """Send `message` and `body` when it is their turn, then end the connection if told so."""
        ...

    def is_last(self, exchange: Exchange) -> bool:
        """Whether no request came after this one."""
        ...


class Exchange(calls.Call):
    """A request of one connection. `started` is when it came, `message` waits until earlier ones are answered."""

    __slots__ = ("connection", "message", "started")
    connection: Connection
    message: tuple[bytes, bytes, bool] | None
    started: float

    @property
    def origin(self) -> Hashable:
        """Part of `calls.Call`."""
        return self.connection.peer


class Desk:
    """Makes exchanges of requests and answers of outcomes. `now` is when that last happened, on `clock`.

    What it does for a plain request and its answer is written out, as there are so many of them.
    """

    def __init__(
        self,
        lane: predict.PredictLane,
        life: drain.Lifecycle,
        counters: metrics.Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.lane = lane
        self.life = life
        self.clock = clock
        self.now = clock()
        self._metrics = counters
        self._predictions = responses.Predictions(lane.dialect)

    def takes(self, size: int) -> bool:
        """Whether nothing speaks against a body of `size` bytes; else the general server will tell what."""
        return not self.life.draining and self.lane.bodies.takes(size)

    def scan(self, head: calls.Head, size: int) -> incremental_scan.IncrementalScan | None:
        """What looks through a v1 body of `size` bytes while it arrives; None if that is not worth it."""
        if size < incremental_scan.LARGE or not isinstance(head.route.codec, v1.Codec):
            return None
        return incremental_scan.IncrementalScan(self.lane.bounds.max_queue_instances)

    def accept(
        self,
        head: calls.Head,
        body: bytes,
        connection: Connection,
        started: float,
        scan: incremental_scan.IncrementalScan | None = None,
    ) -> Exchange | None:
        """Make a call of a request; None if anything speaks against it: the general server will tell what.

        A `scan` that was fed with the body spares another look at it, most times.
        """
        size, lane = len(body), self.lane
        if self.life.draining or not lane.bodies.takes(size):
            return None
        try:
            route = head.route
            watched = route.watched
            if watched is not None and started >= watched.settled_until and _has_objection(route):
                return None
            payload: interface.Payload | None = scan.payload(body) if scan is not None else None
            exchange = Exchange(head, payload or lane.payload(head, body), size)
        except (errors.CarpoolError, errors.Unbatchable):
            return None
        except Exception:
            self._bug("a request could not be looked at for a reason that is a bug: it goes the general server's way")
            return None
        exchange.replier = self
        exchange.message = None
        exchange.connection = connection
        exchange.started = started
        self.life.enter()
        return exchange

    def withdraw(self, exchange: Exchange) -> None:
        """Forget a call that was made and not submitted."""
        self.life.leave()

    def submit(self, exchange: Exchange) -> None:
        """Put it in the queue; it is answered once, perhaps before this returns."""
        try:
            self.lane.driver.submit(exchange)
        except Exception:
            self._bug("a request failed for a reason that is a bug")
            if exchange.payload is not None:  # not answered yet
                self.tell(exchange, errors.CarpoolError())

    def answer(self, answers_: Sequence[messages.Answer], list_name: bytes) -> None:
        """Part of `driver.Replier`."""
        self.now = now = self.clock()
        render, render_form, seconds = self._predictions.render, self._predictions.render_form, []
        for call, pieces in answers_:
            exchange: Exchange = call  # type: ignore[assignment]
            try:
                form, message, body = exchange.response_format, None, b""
                if self.life.draining:
                    pass  # the connection may have to close
                elif form is None:
                    message = render(list_name, pieces)
                elif len(pieces) == 1:
                    try:
                        message, body = render_form(form, pieces)
                    except Exception:
                        message = None  # `tell` fails alike, logs it, and answers all the same
                if message is None:
                    self.tell(exchange, calls.Answered(list_name, pieces, form))
                else:
                    seconds.append(now - exchange.started)
                    exchange.connection.answered(exchange, message, body, False)
            except Exception:
                self._bug("an answer could not be handed over")
        self._metrics.predicted_all(200, seconds)

    def refuse(self, call: calls.Call, error: errors.CarpoolError) -> None:
        """Part of `driver.Replier`."""
        self.tell(cast(Exchange, call), error)

    def tell(self, exchange: Exchange, outcome: calls.Outcome) -> None:
        """Tell the caller any outcome."""
        answer = self._tell(outcome, exchange.response_format is None)
        exchange.payload = None  # one that was refused may have to wait for its turn
        close = answer.close or (self.life.draining and exchange.connection.is_last(exchange))
        message, *body = responses.render(answer, close)
        self.now = self.clock()
        self._metrics.predicted(answer.status, self.now - exchange.started)
        exchange.connection.answered(exchange, message, b"".join(body), close)

    def refusal(self, error: errors.CarpoolError, since: float) -> bytes:
        """The answer to a request that began at `since` and is not waited for any more."""
        self._metrics.refused.labels(error.reason).inc()
        self._metrics.predicted(error.status, self.clock() - since)
        return b"".join(responses.render(self.lane.tell_early(error), close=True))

    def _tell(self, outcome: calls.Outcome, is_v1: bool) -> responses.Response:
        try:
            answer = self.lane.tell(outcome, is_v1)
        except errors.CarpoolError as error:  # parts of a split request that do not go together
            outcome = errors.bare(error)
            answer = self.lane.tell_early(outcome, is_v1)
        except Exception:
            self._bug("a request failed for a reason that is a bug")
            outcome = errors.CarpoolError()
            answer = self.lane.tell_early(outcome, is_v1)
        if isinstance(outcome, errors.CarpoolError):
            self._metrics.refused.labels(outcome.reason).inc()
        return answer

    def _bug(self, words: str) -> None:
        """Tell of the exception that is being handled."""
        self._metrics.internal_errors.labels("fast_lane").inc()
        log.exception(words)


def _has_objection(route: calls.Route) -> bool:
    return route.objection is not None and route.objection() is not None
