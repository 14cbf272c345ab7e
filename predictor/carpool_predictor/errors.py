"""Every way the predictor refuses a request, on top of the shared ones in `carpool.errors`.

Each class has a status, a default message and, where trying again helps, a `Retry-After` in whole seconds.
"""

from __future__ import annotations

from carpool import errors


class NotFound(errors.CarpoolError):
    """No such path, or no such model."""

    status = 404
    reason = "not_found"
    message = "no such path; see GET /v1/models"


class MethodNotAllowed(errors.CarpoolError):
    """The path exists, for another method (RFC 9110, 15.5.6: the answer names the allowed ones)."""

    status = 405
    reason = "method"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"method {method} is not allowed here; allowed: {allowed}")
        self.allowed = allowed


class UnreadableBody(errors.BadRequest):
    """The body is not what its framing or its Content-Encoding says, so nothing after it can be trusted either."""

    close = True


class ModelFailed(errors.CarpoolError):
    """The model raised, or broke its promise of one prediction for each instance."""

    status = 500
    reason = "model"
    message = "the model failed"


class NotReady(errors.CarpoolError):
    """The model is still loading or warming up, or its worker is down."""

    status = 503
    reason = "not_ready"
    message = "the model is not ready; try again later"
    retry_after = 1


class WorkerDied(errors.CarpoolError):
    """The model's worker process ended while it held the request. Whether it was predicted is unknown."""

    status = 503
    reason = "worker_died"
    message = "the model's worker process died while it held this request; it is being restarted"
    retry_after = 1


class TooMuchWaiting(errors.CarpoolError):
    """As many calls or bytes as allowed wait for this model already."""

    status = 503
    reason = "too_much_waiting"
    message = "too many calls or bytes wait for this model; try again later"
    retry_after = 1


class Unusable(Exception):
    """A model that no restart can repair: it cannot be imported or is no model. `str(error)` is for the operator."""
