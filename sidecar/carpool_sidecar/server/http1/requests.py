"""Predict requests, each from a parsed head and a body to its answer, and answers in the order of their requests.

The rules are those of `predict`. What is done for a plain request and its answer is written out, as there are so many
of them. One whose head or body is unusual is read by `handler`, and then is a call like any other.
"""

from __future__ import annotations

import asyncio
import http
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, cast

from carpool.runtime import driver
from carpool.scheduling import ledger, messages
from carpool_sidecar import errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import interface, v1
from carpool_sidecar.protocols.v2_http import answers as v2_answers
from carpool_sidecar.protocols.v2_http import framing
from carpool_sidecar.server import content_coding, predict, responses
from carpool_sidecar.server.http1 import exchange

MOST_PENDING: Final = 64
"""Unanswered requests at most; later ones stay unparsed."""

_LARGE: Final = responses.LARGE


class PlainRequest(calls.Call):
    """A request of one connection. `started` is when it came, `message` waits until earlier ones are answered.

    One that is unusual is answered by its exchange, `asked`.
    """

    __slots__ = ("asked", "connection", "message", "started")
    asked: exchange.Exchange | None
    connection: Answers
    message: tuple[bytes, bytes, bool] | None
    started: float

    @property
    def origin(self) -> Hashable:
        """Implements `calls.Call`."""
        return self.connection.peer


class PlainRequests:
    """Makes calls of requests and answers of outcomes.

    `now` is when that last happened, on `clock`, and `submitted` how many calls were put in the queue.
    """

    def __init__(self, rules: predict.PredictRules, calls_driver: driver.Driver, clock: Callable[[], float]) -> None:
        self.rules = rules
        self.memory = rules.bodies.memory
        self.clock = clock
        self.now = clock()
        self.submitted = 0
        self.driver = calls_driver
        self._predictions = Predictions(rules.dialect)

    def takes(self, size: int) -> bool:
        """Whether nothing speaks against a body of `size` bytes; else whoever answers any request will tell what."""
        is_small = size <= self.rules.bodies.max_body_bytes and self.memory.has_room(size)
        return is_small and not (self.rules.life.draining and not self.rules.life.admits())

    def scan(self, head: calls.Head, size: int) -> v1.RequestScan | None:
        """What looks through a v1 body of `size` bytes while it arrives; None if that is not worth it."""
        codec = head.route.codec
        if size < v1.LARGE or head.coding is not None or not isinstance(codec, v1.Codec):
            return None
        return v1.RequestScan(int(self.rules.bounds.max_queue_instances), codec.mixes)

    def accept(
        self,
        head: calls.Head,
        body: bytes,
        connection: Answers,
        started: float,
        payload: interface.Payload | None = None,
        size: int = 0,
    ) -> PlainRequest | None:
        """Make a call of a request; None if anything speaks against it: whoever answers any request tells what.

        Raises `errors.CarpoolError` if it is no predict request, in the words that its client has to be told. The
        `payload` may have been found before, in `size` bytes; then the `body` does not matter.
        """
        rules, route, memory = self.rules, head.route, self.memory
        if rules.life.draining and not rules.life.admits():
            return None
        if payload is None:
            if head.coding is not None:
                decoded = content_coding.decode_small(body, head.coding)
                if decoded is None:
                    return None
                body = decoded
            size = len(body)
        if size > rules.bodies.max_body_bytes or memory.held + size > memory.limit:
            return None
        try:
            watched = route.watched
            if watched is not None and started >= watched.settled_until and _has_objection(route):
                return None
            if payload is None:
                codec, most = route.codec, int(rules.bounds.max_queue_instances)
                payload = codec.parse(body, most, head.json_size)
        except errors.Unbatchable:
            return None
        except errors.CarpoolError as error:
            if _is_certain(error, head):
                raise errors.bare(error) from None
            return None
        except Exception:
            rules.bug("a request could not be looked at for a reason that is a bug: it goes the way of any other")
            return None
        request = PlainRequest(head, payload, size)
        request.replier = self
        request.message = request.asked = None
        request.connection = connection
        request.started = started
        return request

    def serve(
        self, asked: exchange.Exchange, head: calls.Head, payload: interface.Payload, size: int, started: float
    ) -> PlainRequest:
        """Put an unusual request of `size` bytes in the queue; its exchange is answered once, perhaps at once."""
        request = PlainRequest(head, payload, size)
        request.replier = self
        request.message = None
        request.asked = asked
        request.connection = cast(Answers, asked.connection.answers)  # which is more than exchanges know of it
        request.started = started
        self.submit(request)
        return request

    def submit(self, request: PlainRequest) -> None:
        """Put it in the queue and count it; it is answered once, in its turn, perhaps before this returns."""
        self.submitted += 1
        if request.asked is None:
            request.connection.pending.append(request)
            request.connection.held.add(0, 1)
        try:
            self.driver.submit(request)
        except Exception:
            error = self.rules.bug()
            if request.payload is not None:  # not answered yet
                self.refuse(request, error)

    def answer(self, answers: Sequence[messages.Answer], about: interface.BatchPredictions) -> None:
        """Render the answers of a batch, each for its connection."""
        self.now = now = self.clock()
        predictions, seconds = self._predictions, []
        timings = self.rules.timings
        list_name, members = about.list_name, about.members
        is_plain = timings is None and not self.rules.life.parting  # the connection may have to close
        for call, pieces in answers:
            request: PlainRequest = call  # type: ignore[assignment]
            try:
                form, message, body = request.response_format, None, b""
                if not is_plain or request.asked is not None:
                    pass
                elif form is None:
                    message = predictions.render(list_name, pieces, members)
                elif len(pieces) == 1:
                    try:
                        message, body = predictions.render_form(form, pieces)
                    except Exception:
                        message = None  # `_tell` fails alike, logs it, and answers all the same
                if message is None:
                    timing = None if timings is None else timings.of(request)
                    self._tell(request, calls.Answered(list_name, pieces, form, timing, members))
                else:
                    seconds.append(now - request.started)
                    request.connection.answered(request, message, body, False)
            except Exception:
                self.rules.bug("an answer could not be handed over")
        self.rules.metrics.batched_ok.value += len(seconds)
        self.rules.metrics.request_seconds.observe_all(seconds)

    def refuse(self, call: calls.Call, error: errors.CarpoolError) -> None:
        """Implements `driver.Replier`."""
        self._tell(cast(PlainRequest, call), error)

    def refusal(self, error: errors.CarpoolError, since: float, close: bool = False) -> tuple[bytes, bool]:
        """The answer to a request that began at `since` and became no call.

        And whether the connection ends behind it: always with `close`, as where the rest is not waited for.
        """
        self.now = self.clock()
        answer = self.rules.render_outcome(error, self.now - since, is_accepted=False)
        close = close or answer.close or self.rules.life.parting
        return b"".join(responses.render(answer, close)), close

    def _tell(self, request: PlainRequest, outcome: calls.Outcome) -> None:
        """Tell the caller any outcome."""
        rules, is_v1 = self.rules, request.response_format is None
        self.now = self.clock()
        words = request.error_words
        answer = rules.render_outcome(
            outcome, self.now - request.started, is_v1=is_v1, words=words, host=request.tag.host
        )
        request.payload = None  # one that was refused may have to wait for its turn
        if request.asked is not None:
            request.asked.respond(answer, close=rules.life.parting)
            return
        close = answer.close or (rules.life.parting and request.connection.is_last(request))
        message, *body = responses.render(answer, close)
        request.connection.answered(request, message, b"".join(body), close)


class Predictions:
    """Renders the answers of one batch after the other, in the words of a dialect."""

    # State: the batch that was rendered last, and what all answers of it begin with; the same for `render_form`.
    def __init__(self, dialect: responses.Dialect) -> None:
        self._content_type = (("Content-Type", dialect.content_type),)
        self._batch_id = ""
        self._list_name = self._members = self._head = self._start = b""
        self._form_batch_id, self._form_head = "", b""
        self._form_headers: calls.Headers = ()

    def render_form(
        self, form: interface.ResponseFormat, pieces: Sequence[messages.Piece]
    ) -> tuple[bytes | None, bytes]:
        """As `render`, for one piece, in the words of another protocol; large ones have a body apart.

        No head for what has another status than 200.
        """
        headers: calls.Headers = framing.JSON
        text = form.text(pieces[0].predictions) if type(form) is v2_answers.ResponseFormat else None
        if text is None:
            if responses.status(pieces) != http.HTTPStatus.OK:
                return None, b""
            headers, body = form.render(pieces)
            text = b"".join(body)
        batch_id = pieces[0].batch_id
        if batch_id is not self._form_batch_id or headers is not self._form_headers:
            start = responses.heads[200, (*headers, (interface.BATCH_ID, batch_id)), False, int(time.time())]
            self._form_batch_id, self._form_headers, self._form_head = batch_id, headers, start + b"Content-Length: "
        size = len(text)
        if size <= _LARGE:
            return b"%b%d\r\n\r\n%b" % (self._form_head, size, text), b""
        return b"%b%d\r\n\r\n" % (self._form_head, size), text

    def render(self, list_name: bytes, pieces: Sequence[messages.Piece], members: bytes = b"") -> bytes | None:
        """Head and body of an answer on a connection that stays open; None if it is large, or of several batches."""
        if len(pieces) > 1:
            return None
        _, batch_id, rows = pieces[0]
        if len(rows[0]) > _LARGE:
            return None
        if batch_id is not self._batch_id or list_name != self._list_name or members != self._members:
            # All answers of a batch are given within one turn of the loop, so one Date is right for all.
            self._batch_id, self._list_name, self._members = batch_id, list_name, members
            self._start = v1.START % (batch_id.encode(), members, list_name)
            self._head = responses.heads[200, self._content_type, False, int(time.time())] + b"Content-Length: "
        joined = b",".join(rows)
        size = len(self._start) + len(joined) + len(v1.END)
        return None if size > _LARGE else b"%b%d\r\n\r\n%b%b%b" % (self._head, size, self._start, joined, v1.END)


class Answers:
    """The answers of one connection, in the order of its requests, to a client that takes them as it likes.

    A client that sends and does not read must not fill the memory: what it has not taken counts as held, and a request
    whose answer waits in the transport is not over before the client has taken it.

    `pending` are the requests that have no answer yet, in order; each counts in `held`, and so do answers that wait.
    `is_full` is whether some wait for the client, `is_awaited` whether the owner waits for the last of all. `touched`
    is when the client last did something, or was last given something.
    """

    # State: those; unsent and unsent_bytes, the answers that the client has not taken, and their bytes. From
    # connection_made on there is a transport.
    __slots__ = (
        "_owner", "_plain", "held", "is_awaited", "is_full", "pending", "touched", "transport", "unsent",
        "unsent_bytes",
    )  # fmt: skip

    def __init__(self, owner: exchange.Connection, plain: PlainRequests, held: ledger.Reservation) -> None:
        self._owner: exchange.Connection | None = owner
        self._plain = plain
        self.held = held
        self.transport: asyncio.Transport
        self.pending: list[PlainRequest] = []  # few at most, and mostly one
        self.is_full = self.is_awaited = False
        self.unsent = self.unsent_bytes = 0
        self.touched = plain.clock()

    @property
    def peer(self) -> Hashable:
        """The address of the other end, or None if that is not known."""
        address: Hashable = self.transport.get_extra_info("peername")
        return address

    @property
    def may_own(self) -> bool:
        """Whether a request that is not added here may be answered: no other waits before it."""
        return not self.pending and not self.is_full

    def answered(self, request: PlainRequest, message: bytes, body: bytes, close: bool) -> None:
        """Send `message` and `body` when it is their turn, then end the connection if told so."""
        pending, owner = self.pending, self._owner
        if not pending or owner is None:
            return  # the client left between its answer's making and its turn
        if pending[0] is not request:
            request.message = (message, body, close)
            self.held.add(len(message) + len(body))
            return
        pending.pop(0)
        while True:
            self.touched = self._plain.now
            self.transport.write(message)
            if body:
                self._write_large(body)
            if self.is_full:  # the request ends when the client has taken its answer
                self.unsent += 1
                self.unsent_bytes += len(message) + len(body)
                self.held.add(len(message) + len(body))
            else:
                self.held.add(0, -1)
            if close:
                owner.part()
            if not pending or (following := pending[0].message) is None:
                break
            pending.pop(0)
            message, body, close = following
            self.held.add(-len(message) - len(body))
        if self.is_awaited and not pending:
            self.is_awaited = False
            owner.look_what_to_read()

    def is_last(self, request: PlainRequest) -> bool:
        """Whether no request came after this one."""
        return not self.pending or self.pending[-1] is request

    def cancel(self) -> None:
        """Wait for no answer any more, and let go of the owner, which has this."""
        self._owner = None
        while self.pending:
            request = self.pending.pop(0)
            waiting = request.message
            self.held.add(0 if waiting is None else -len(waiting[0]) - len(waiting[1]), -1)
            self._plain.driver.cancel(request)

    # --- answers of requests that are not added here -------------------------------------------------------------

    def write(self, data: bytes, body: bytes = b"") -> None:
        """Write some of one, when no other waits before it."""
        self.touched = self._plain.clock()
        if not self.transport.is_closing():
            self.transport.write(data)
            if body:
                self._write_large(body)
            if self.is_full:
                self._count_unsent(len(body))

    def end_own(self) -> None:
        """One is complete. Its request counts in `held` until the client has taken it."""
        if self.is_full:
            self.unsent += 1
        else:
            self.held.add(0, -1)
        self.touched = self._plain.clock()

    # --- what the client takes -----------------------------------------------------------------------------------

    def set_full(self, is_full: bool, has_own: bool) -> None:
        """The transport tells whether there is room; `has_own` while a request that is not added here has its turn."""
        self.is_full = is_full
        if not is_full:
            self.transport.set_write_buffer_limits()
            self.held.add(-self.unsent_bytes, -self.unsent)
            self.unsent = self.unsent_bytes = 0
        elif has_own:
            self._count_unsent()

    def _count_unsent(self, body: int = 0) -> None:
        """Count what waits for the client to read: all of a `body` of so many bytes, as that is kept whole."""
        more = max(body, self.transport.get_write_buffer_size()) - self.unsent_bytes
        if more > 0:
            self.unsent_bytes += more
            self.held.add(more)

    def _write_large(self, body: bytes) -> None:
        # The transport keeps all of it until its last byte is sent, so it waits for the client until then.
        self.transport.set_write_buffer_limits(0)
        self.transport.write(body)
        if not self.is_full:
            self.transport.set_write_buffer_limits()


def _is_certain(error: errors.CarpoolError, head: calls.Head) -> bool:
    """Whether the error of a body is what its client has to be told, as v1 does, and not that it is something else."""
    return isinstance(head.route.codec, v1.Codec) and (head.says_so or not isinstance(error, errors.BadRequest))


def _has_objection(route: calls.Route) -> bool:
    return route.objection is not None and route.objection() is not None
