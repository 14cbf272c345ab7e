"""Every way a request can fail, with the status the caller sees and the label the metrics count it under.

One file, so that the failure rules can be read at a glance. Each class is a decision somebody makes: the caller
(fix the request), the operator (fix the predictor), or nobody (try again later). Errors of client libraries are
translated into these in `carpool_sidecar.upstream` and never travel further.
"""

from __future__ import annotations


class CarpoolError(Exception):
    """Base of all failures that become an answer.

    `status` is the HTTP status, `reason` a short label from a closed set (metrics), `retry_after` whole seconds
    for a `Retry-After` header or None, and `str(error)` the text that goes into `{"error": …}`.
    """

    status = 500
    reason = "internal"
    message = "the sidecar failed to handle this request"
    retry_after: int | None = None
    close = False  # the connection must not be used again

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.message)

    def for_several(self) -> CarpoolError:
        """What each member of a batch is told if this happened to all of it."""
        return self

    def for_equals(self) -> CarpoolError:
        """What a caller is told if this happened to an equal request of another."""
        return self.for_several()


def bare(error: CarpoolError) -> CarpoolError:
    """The error without its traceback and causes, to be kept.

    A kept traceback keeps the frames it went through, with request bodies in them; and a frame that keeps the error
    as well makes a cycle that lives until the garbage collector comes round.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


# --- the caller's side -----------------------------------------------------------------------------------------


class BadRequest(CarpoolError):
    """The request can never succeed as it is; it was not forwarded."""

    status = 400
    reason = "bad_request"
    message = "the request is malformed"


class NoInstances(BadRequest):
    """A JSON object without anything to predict. KServe words this case apart, so it is a class apart."""

    message = 'the body has no instances: send {"instances": [...]} with at least one element'


class HeadTooLate(CarpoolError):
    """The caller stopped in the middle of a request's head."""

    status = 408
    reason = "head_timeout"
    message = "the head of the request did not arrive in time"
    close = True


class BodyTooLate(CarpoolError):
    """The caller stopped sending its body."""

    status = 408
    reason = "body_timeout"
    message = "the request body did not arrive in time"
    close = True


class PayloadTooLarge(CarpoolError):
    """The body, as sent or once decoded, or its number of instances is over a limit."""

    status = 413
    reason = "too_large"
    message = "the request is larger than the limit"
    close = True


class UnsupportedEncoding(CarpoolError):
    """A Content-Encoding this sidecar cannot undo (RFC 9110, 15.5.16)."""

    status = 415
    reason = "unsupported_encoding"
    message = "unsupported Content-Encoding; allowed: gzip, deflate, identity"


# --- load and life cycle ----------------------------------------------------------------------------------------


class Overloaded(CarpoolError):
    """The queue is full. `retry_after` is the predicted time to drain it, in whole seconds.

    Its subclasses say what else there is too much of; each is counted under a reason of its own.
    """

    status = 429
    reason = "queue_full"
    message = "the queue is full; try again later"

    def __init__(self, message: str | None = None, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class MemoryFull(Overloaded):
    """The bytes that may be held are held already."""

    reason = "memory_full"
    message = "the memory for request bodies is full; try again later"


class WouldBeLate(Overloaded):
    """It cannot be answered within the service objective or its own deadline, as long as the predictor is this slow."""

    reason = "would_be_late"
    message = "it could not be answered within its deadline"


class TooManyModels(Overloaded):
    """Questions about so many models are under way that no more are asked."""

    reason = "too_many_models"
    message = "too many models are being asked about; try again later"


class TooManySuspects(Overloaded):
    """Requests like this one were rejected by the predictor lately, and as many as may wait to travel alone do."""

    reason = "too_many_suspects"
    message = (
        "requests like this one were rejected by the predictor lately, and too many of them wait already; "
        "mend the request, or try again later"
    )


class Draining(CarpoolError):
    """The sidecar is shutting down and takes no new work."""

    status = 503
    reason = "draining"
    message = "the sidecar is shutting down; send the request to another replica"
    retry_after = 1
    close = True


class NotIsolated(CarpoolError):
    """The predictor rejected a whole batch, and the budget for finding out whose fault it was is spent.

    Its words may speak of another caller's data, so they are not passed on.
    """

    status = 503
    reason = "not_isolated"
    message = "the predictor rejected a batch with this request and others in it; send it again"
    retry_after = 1


class DeadlineExceeded(CarpoolError):
    """The request's own deadline, or the sidecar's timeout, passed before an answer came."""

    status = 504
    reason = "deadline"
    message = "no answer within the request's deadline"


# --- what has to travel alone -----------------------------------------------------------------------------------

UNBATCHABLE = (
    "cloud_event", "columnar", "datatype", "decoupled", "media_type", "members", "no_batch_dimension", "outputs",
    "sequence", "shape", "shared_memory", "unknown_model",
)  # fmt: skip
"""Why a predict request is passed on unbatched: a closed set, as metrics count by it."""


class Unbatchable(Exception):
    """A verdict, not a failure: the request is valid, but only the predictor can tell its rows. Forward it as it is.

    `reason` is one of `UNBATCHABLE`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# --- the predictor's side ---------------------------------------------------------------------------------------


class UpstreamError(CarpoolError):
    """Base of everything that went wrong with the predictor."""


class UpstreamUnreachable(UpstreamError):
    """No connection to the predictor could be made."""

    status = 502
    reason = "unreachable"
    message = "the predictor cannot be reached"


class OutOfSockets(UpstreamError):
    """The sidecar's own limit of open files is reached."""

    status = 503
    reason = "out_of_sockets"
    message = "the sidecar has no more sockets; raise its limit of open files"
    retry_after = 1


class UpstreamClosed(UpstreamError):
    """The predictor closed the connection before it answered; worth one more try."""

    status = 502
    reason = "closed"
    message = "the predictor closed the connection before answering"


class UpstreamBroken(UpstreamError):
    """The predictor answered, but not with a usable predict response."""

    status = 502
    reason = "broken_answer"
    message = "the predictor's answer is not a valid predict response"


class NotMergeable(UpstreamBroken):
    """A member of a batch does not go with the others after all; alone, the predictor will tell what it thinks of it.

    `member` is its place in the batch, if that is known: it travels alone then, and the others together.
    """

    reason = "not_mergeable"
    message = "the request does not go with others in one call"
    member: int | None = None


class Uneven(UpstreamBroken):
    """The outputs do not have the rows of the batch: nobody's fault, but nobody's share can be told.

    Its members are sent again one by one, which is no isolation of a culprit and costs none of its budget.
    """

    reason = "uneven_answer"
    message = "the predictor's outputs do not have the rows of the batch"


class UpstreamTimeout(UpstreamError):
    """The predictor was still busy when the last deadline in the batch passed."""

    status = 504
    reason = "predictor_timeout"
    message = "the predictor did not answer in time"


class Abandoned(UpstreamError):
    """The call was broken off because all who waited for it had left."""

    status = 503
    reason = "abandoned"
    message = "the call to the predictor was broken off"


_HARMLESS = frozenset({"retry-after", "location", "allow"})
"""Headers of a refusal that say what to do and quote no body."""


class UpstreamStatus(UpstreamError):
    """The predictor refused: its own status, body and the headers that explain them reach the caller unchanged."""

    reason = "predictor_status"

    is_doubtful = False
    """Whether a single member's request may be the reason although the status does not say so."""

    def __init__(self, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(f"the predictor answered {status}")
        self.status = status
        self.body = body
        self.headers = headers

    def for_several(self) -> CarpoolError:
        """The same status in our own words: the predictor's may quote what another caller sent."""
        return self._in_our_words("a call with this request and others in it")

    def for_equals(self) -> CarpoolError:
        """As `for_several`: its words may name the other caller's request id."""
        return self._in_our_words("an equal request that was sent at the same time")

    def _in_our_words(self, to: str, code: int | None = None) -> BatchStatus:
        headers = tuple(header for header in self.headers if header[0].lower() in _HARMLESS)
        return BatchStatus(self.status, to, headers, code)


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

    `status` and `body` say it in HTTP's and the v2 protocol's words.
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


def reasons(kind: type[CarpoolError] = CarpoolError) -> list[str]:
    """The words by which errors of a kind are counted, each once."""
    found = {kind.reason}.union(*(reasons(each) for each in kind.__subclasses__()))
    return sorted(found)
