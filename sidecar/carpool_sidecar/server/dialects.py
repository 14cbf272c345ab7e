"""Outcomes as HTTP answers: status, headers and bytes, whoever writes them.

Two dialects: honest status codes with the v1 protocol's `{"error": …}`, and what KServe's batcher does, for clients
that depend on it (`--kserve-errors`).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import v1

_JSON = "application/json"
# KServe's batcher sets no Content-Type, and Go's server sniffs this one.
_SNIFFED = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """An HTTP answer with a complete body. `close`: the connection must not be used again."""

    status: int
    headers: calls.Headers
    body: bytes
    close: bool = False


TOO_MANY_CONNECTIONS = Answer(
    503,
    (("Content-Type", _JSON), ("Retry-After", "1")),
    b'{"error":"too many connections; send the request to another replica"}',
    close=True,
)
"""What a client is told that connects when `--max-connections` others are connected."""


class Dialect:
    """How outcomes are told."""

    def predictions(self, outcome: calls.Answered) -> Answer:
        """The caller's predictions, with the id of the batch they came from.

        If a request was split over several batches, that is the first one's, and the header `carpool-batch-count`
        says how many there were.
        """
        batch_id, count = calls.batches(outcome.pieces)
        if outcome.response_format is not None:
            headers, pieces = outcome.response_format.render(outcome.pieces)
            headers, body = (*headers, (calls.BATCH_ID, batch_id)), b"".join(pieces)
        else:
            headers = (("Content-Type", self.content_type),)
            body = v1.render(batch_id, outcome.list_name, [piece.predictions for piece in outcome.pieces])
        if count > 1:
            headers += ((calls.BATCH_COUNT, str(count)),)
        return Answer(200, headers, body)

    def error(self, error: errors.CarpoolError) -> Answer:
        """A request that failed before or outside a batch."""
        if isinstance(error, errors.UpstreamStatus):
            return Answer(error.status, error.headers, error.body)
        headers: calls.Headers = (("Content-Type", _JSON),)
        if isinstance(error, errors.BatchStatus):
            headers += error.headers
        if error.retry_after is not None:
            headers += (("Retry-After", str(error.retry_after)),)
        if isinstance(error, errors.UnsupportedEncoding):
            headers += (("Accept-Encoding", "gzip, deflate"),)  # RFC 9110, 12.5.3: in answers, what is accepted
        return Answer(errors.status_of(error), headers, v1.render_error(str(error)), isinstance(error, errors.CLOSING))

    def failure(self, error: errors.CarpoolError) -> Answer:
        """A request that was accepted and got no predictions."""
        return self.error(error)

    content_type = _JSON


class KServeDialect(Dialect):
    """What clients of KServe's batcher depend on (pkg/batcher/handler.go of kserve/kserve).

    As there: the Content-Type of predictions, the status and words for malformed bodies, and 200 with the error in
    `message` when a batch fails. Otherwise honest, as `Dialect`: overload, shutdown, bodies too large, too late or in
    an unknown coding.
    """

    content_type = _SNIFFED

    def error(self, error: errors.CarpoolError) -> Answer:
        if isinstance(error, errors.BadRequest):
            missing = isinstance(error, errors.NoInstances)
            text = b"no instances in the request\n" if missing else b"can't Unmarshal body\n"
            return Answer(400, (("Content-Type", _SNIFFED),), text)
        return super().error(error)

    def failure(self, error: errors.CarpoolError) -> Answer:
        text = error.body.decode(errors="replace") if isinstance(error, errors.UpstreamStatus) else str(error)
        # Overload has no counterpart there: a client must be told to come back.
        if isinstance(error, (errors.Overloaded, errors.Draining, errors.PayloadTooLarge)):
            return super().error(error)
        body = msgspec.json.encode({"message": text, "batchId": "", "predictions": None})
        return Answer(200, (("Content-Type", _SNIFFED),), body)
