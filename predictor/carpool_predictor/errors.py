"""Every way the predictor refuses a request, with the status that the caller sees."""

from __future__ import annotations


class Refusal(Exception):
    """Base of all failures that become an answer: `str(error)` is the text of its `{"error": …}`.

    `retry_after` is whole seconds for a `Retry-After` header, or None; after `close` the connection ends. `code` is for
    programs, in the formats that have one.
    """

    status = 500
    message = "the predictor failed to handle this request"
    retry_after: int | None = None
    close = False
    code: str | None = None

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.message)


class BadRequest(Refusal):
    """The request can never succeed as it is."""

    status = 400
    message = "the request is malformed"


class UnreadableBody(BadRequest):
    """The body is not what its framing or its Content-Encoding says, so nothing after it can be trusted either."""

    close = True


class NotFound(Refusal):
    """No such path, or no such model."""

    status = 404
    message = "no such path; see GET /v1/models"


class UnknownModel(NotFound):
    """The body names a model that is not served."""

    code = "model_not_found"


class MethodNotAllowed(Refusal):
    """The path exists, for another method (RFC 9110, 15.5.6: the answer names the allowed ones)."""

    status = 405

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"method {method} is not allowed here; allowed: {allowed}")
        self.allowed = allowed


class BodyTooLate(Refusal):
    """The caller stopped sending its body."""

    status = 408
    message = "the request body did not arrive in time"
    close = True


class PayloadTooLarge(Refusal):
    """The body, as sent or decompressed, is over the limit."""

    status = 413
    message = "the request body is over the limit"
    close = True


class ModelFailed(Refusal):
    """The model raised, or broke its promise of one prediction for each instance."""

    status = 500
    message = "the model failed"


class OutOfMemory(ModelFailed, MemoryError):
    """The batch takes more memory than the device has. Fewer instances may be predicted."""

    message = "not enough memory for so many instances in one call"


class NotReady(Refusal):
    """The model is still loading or warming up, or its worker is down."""

    status = 503
    message = "the model is not ready; try again later"
    retry_after = 1


class NotIsolated(Refusal):
    """The model failed for a whole batch, and whose instances are at fault was not found out."""

    status = 503
    message = "the model failed for a batch with this request and others in it; send it again"
    retry_after = 1


class WorkerDied(Refusal):
    """The model's worker process ended while it held the request. Whether it was predicted is unknown."""

    status = 503
    message = "the model's worker process died while it held this request; it is being restarted"
    retry_after = 1


class TooMuchWaiting(Refusal):
    """As many calls or bytes as allowed wait for this model already."""

    status = 503
    message = "too many calls or bytes wait for this model; try again later"
    retry_after = 1
