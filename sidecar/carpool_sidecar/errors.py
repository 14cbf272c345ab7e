"""How requests fail, in HTTP: the failures of the core and the sidecar's own, and one table of their statuses.

Each class is a decision somebody makes: the caller (fix the request), the operator (fix the predictor), or nobody (try
again later). Errors of client libraries are translated into these in `carpool_sidecar.upstream` and never travel
further.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from carpool.errors import Abandoned as Abandoned
from carpool.errors import CarpoolError as CarpoolError
from carpool.errors import DeadlineExceeded as DeadlineExceeded
from carpool.errors import Draining as Draining
from carpool.errors import MemoryFull as MemoryFull
from carpool.errors import NotIsolated as NotIsolated
from carpool.errors import NotMergeable as NotMergeable
from carpool.errors import Overloaded as Overloaded
from carpool.errors import PayloadTooLarge as PayloadTooLarge
from carpool.errors import Remedy as Remedy
from carpool.errors import TooManySuspects as TooManySuspects
from carpool.errors import Uneven as Uneven
from carpool.errors import UpstreamBroken as UpstreamBroken
from carpool.errors import UpstreamError as UpstreamError
from carpool.errors import WouldBeLate as WouldBeLate
from carpool.errors import bare as bare
from carpool.errors import reasons as reasons

# --- the caller's side -----------------------------------------------------------------------------------------


class BadRequest(CarpoolError):
    """The request can never succeed as it is; it was not forwarded."""

    reason = "bad_request"
    message = "the request is malformed"


class BadHeader(BadRequest):
    """A header has a value that is not allowed; the body is another matter."""


class MalformedBody(BadRequest):
    """The body's framing is no HTTP: nobody knows where it ends, nor where another request would begin."""


class NoInstances(BadRequest):
    """A JSON object without anything to predict. KServe words this case apart, so it is a class apart."""

    message = 'the body has no instances: send {"instances": [...]} with at least one element'


class BadMember(BadRequest):
    """One member of the body is at fault: `name` is its name. OpenAI's clients are told it apart from the message."""

    def __init__(self, message: str | None = None, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class ModelNotFound(CarpoolError):
    """The body of a request names a model that the predictor does not have."""

    reason = "model_not_found"
    message = "the predictor has no such model"


class HeadTooLate(CarpoolError):
    """The caller stopped in the middle of a request's head."""

    reason = "head_timeout"
    message = "the head of the request did not arrive in time"


class BodyTooLate(CarpoolError):
    """The caller stopped sending its body."""

    reason = "body_timeout"
    message = "the request body did not arrive in time"


class UnsupportedEncoding(CarpoolError):
    """A Content-Encoding this sidecar cannot undo (RFC 9110, 15.5.16)."""

    reason = "unsupported_encoding"
    message = "unsupported Content-Encoding; allowed: gzip, deflate, identity"


class TooManyModels(Overloaded):
    """Questions about so many models are under way that no more are asked."""

    reason = "too_many_models"
    message = "too many models are being asked about; try again later"


# --- the predictor's side ---------------------------------------------------------------------------------------


class UpstreamUnreachable(UpstreamError):
    """No connection to the predictor could be made."""

    reason = "unreachable"
    message = "the predictor cannot be reached"
    is_overload = True


class OutOfSockets(UpstreamError):
    """The sidecar's own limit of open files is reached."""

    reason = "out_of_sockets"
    message = "the sidecar has no more sockets; raise its limit of open files"
    retry_after = 1


class UpstreamClosed(UpstreamError):
    """The predictor closed the connection before it answered; worth one more try."""

    reason = "closed"
    message = "the predictor closed the connection before answering"
    remedy = Remedy.RESEND_ONCE
    is_overload = True


class UpstreamTimeout(UpstreamError):
    """The predictor was still busy when the last deadline in the batch passed."""

    reason = "predictor_timeout"
    message = "the predictor did not answer in time"


class LateConnect(UpstreamTimeout):
    """The same, and there was no connection to it yet."""

    is_overload = True


_HARMLESS = frozenset({"retry-after", "retry-after-ms", "location", "allow"})
"""Headers of a refusal that say what to do and quote no body."""


class UpstreamStatus(UpstreamError):
    """The predictor refused: its own status, body and the headers that explain them reach the caller unchanged.

    `batching.retried_statuses` tells its remedy.
    """

    reason = "predictor_status"

    def __init__(self, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(f"the predictor answered {status}")
        self.status = status
        self.body = body
        self.headers = headers

    @property
    def harmless_headers(self) -> tuple[tuple[str, str], ...]:
        """Those of its headers that say what to do, and nothing of its body."""
        return tuple(header for header in self.headers if header[0].lower() in _HARMLESS)

    def for_several(self) -> CarpoolError:
        """The same status in our own words: the predictor's may quote what another caller sent."""
        return self._in_our_words("a call with this request and others in it")

    def for_equals(self) -> CarpoolError:
        """As `for_several`: its words may name the other caller's request id."""
        return self._in_our_words("an equal request that was sent at the same time")

    def _in_our_words(self, to: str, code: int | None = None) -> BatchStatus:
        return BatchStatus(self.status, to, self.harmless_headers, code)


class BatchStatus(UpstreamError):
    """The predictor refused a batch of several requests, for a reason that concerns them alike or nobody can tell.

    `headers` are the predictor's that say what to do; `code` is its gRPC status code, if it told one.
    """

    reason = "predictor_status"

    def __init__(
        self, status: int, to: str, headers: tuple[tuple[str, str], ...] = (), code: int | None = None
    ) -> None:
        super().__init__(
            f"the predictor answered {status} to {to}; its words are kept back, as they may quote another caller's data"
        )
        self.status = status
        self.headers = headers
        self.code = code


class UpstreamRpcStatus(UpstreamStatus):
    """The same, told by gRPC: `code` is its status code, `details` its words and `metadata` its trailing metadata.

    `status` and `body` say it in HTTP's and the v2 protocol's words; `is_doubtful` if its words leave it in doubt.
    """

    def __init__(
        self, code: int, details: str, status: int, body: bytes, metadata: tuple[tuple[str, str | bytes], ...] = ()
    ) -> None:
        super().__init__(status, body, (("Content-Type", "application/json"),))
        self.code = code
        self.details = details
        self.metadata = metadata

    def _in_our_words(self, to: str, code: int | None = None) -> BatchStatus:
        return super()._in_our_words(to, self.code)


# --- statuses ---------------------------------------------------------------------------------------------------

STATUSES: Mapping[type[CarpoolError], int] = {
    # the caller's side
    BadRequest: 400,
    ModelNotFound: 404,
    HeadTooLate: 408,
    BodyTooLate: 408,
    PayloadTooLarge: 413,
    UnsupportedEncoding: 415,
    # load and life cycle
    Overloaded: 429,
    Draining: 503,
    NotIsolated: 503,
    DeadlineExceeded: 504,
    # the predictor's side; `UpstreamStatus` and `BatchStatus` have the predictor's own
    UpstreamUnreachable: 502,
    UpstreamClosed: 502,
    UpstreamBroken: 502,
    OutOfSockets: 503,
    Abandoned: 503,
    UpstreamTimeout: 504,
    # a bug
    CarpoolError: 500,
}
"""The HTTP status of each kind of failure; a kind that is not here has its base's."""

CLOSING = (HeadTooLate, BodyTooLate, PayloadTooLarge, MalformedBody, Draining)
"""After these the caller's connection is not used again: the rest of its request may still come, or it should go."""


def status_of(error: CarpoolError | type[CarpoolError]) -> int:
    """The HTTP status that a caller is given for a failure, or for failures of a kind."""
    if isinstance(error, (UpstreamStatus, BatchStatus)):
        return error.status
    kind = error if isinstance(error, type) else type(error)
    return next(STATUSES[each] for each in kind.__mro__ if each in STATUSES)


# --- what has to travel alone -----------------------------------------------------------------------------------


class NotBatched(enum.StrEnum):
    """Why a request is passed on unbatched; metrics count by it. `meaning` is for people."""

    meaning: str

    def __new__(cls, label: str, meaning: str) -> NotBatched:
        made = str.__new__(cls, label)
        made._value_ = label
        made.meaning = meaning
        return made

    NO_BATCH_DIMENSION = (
        "no_batch_dimension",
        "The model has none: Triton's `max_batch_size` is 0, or the shapes in the metadata do not begin with -1.",
    )
    UNKNOWN_MODEL = (
        "unknown_model",
        "The predictor does not know the model (yet). Or it says nothing about a batch dimension, and `--unknown-"
        "models` is `pass`.",
    )
    OUTPUTS = (
        "outputs",
        "An answer showed that the outputs do not have the rows of the batch. This lasts for a minute.",
    )
    SEQUENCE = (
        "sequence",
        "The model is stateful, or the request is part of a sequence (`sequence_id`, `correlation_id`, …).",
    )
    DECOUPLED = "decoupled", "The model gives any number of answers to a request."
    SHARED_MEMORY = "shared_memory", "Inputs or outputs are in shared memory."
    SHAPE = (
        "shape",
        "The inputs differ in their first dimension, or it is missing or 0, or shape and data do not go together.",
    )
    DATATYPE = "datatype", "The datatype is unknown, or JSON cannot carry it."
    MEMBERS = (
        "members",
        "Something has no place in a batch, such as two inputs of one name, or there is too much: 1000 inputs, outputs "
        "or members, 64 KiB beside the data, 256 forms, 100,000 strings, 262,144 integers in `contents` over gRPC.",
    )
    COLUMNAR = "columnar", "v1: `inputs` is an object of columns. `--lists tfserving-columns` batches those."
    NO_ROWS = (
        "no_rows",
        "No rule of `--lists` finds rows in the body: no JSON, no list or an empty one, or a single value.",
    )
    STREAMING = "streaming", "A request to a path of `--lists` asks for a stream of answers."
    ONE_QUERY = (
        "one_query",
        "A path of `--lists` at which one query goes with many texts, such as `/rerank`, and no rule for them.",
    )
    TOP = (
        "top",
        "How many results are wanted (`top_n`) is no whole number from 1 on: the predictor says what that means.",
    )
    DEPENDENT_ROWS = (
        "dependent_rows",
        "A member such as `late_chunking` (the rule's `alone_if`) says that a row's answer depends on the other rows.",
    )
    OTHER_PATH = (
        "other_path",
        "A `POST` to a path at which nothing is batched, such as OpenAI's chat and completions.",
    )
    MEDIA_TYPE = (
        "media_type",
        "The body is not JSON: its `Content-Type` says so, or neither the type nor the content looks like it.",
    )
    CLOUD_EVENT = (
        "cloud_event",
        "The request has a `ce-id` header: it is a CloudEvent, and a batch would lose its envelope.",
    )


class Unbatchable(Exception):
    """A verdict, not a failure: the request is valid, but only the predictor can tell its rows. Forward it as it is.

    `reason` says why.
    """

    def __init__(self, reason: NotBatched) -> None:
        super().__init__(reason)
        self.reason = reason
