"""What runs in a model's process: JSON in, JSON out, and the model between.

`Requests` is called with the body of one predict request. `Rows` is called with instances from
any number of requests, which the server has taken out of their bodies, and makes one call of the model of them.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from carpool.program import logs
from carpool.workers import errors as worker_errors
from carpool_predictor import errors, model, model_loading, v1

log = logging.getLogger("carpool.predictor.worker")

DEVICE = "CARPOOL_PREDICTOR_DEVICE"
"""The variable that tells a model the device of its own process."""

_STATUS = 2  # bytes at the end of an answer on its way to the server
# Things with a length, but without rows.
_ROWLESS = (str, bytes, dict, set, frozenset)

Body = bytes | bytearray
Predict = Callable[[v1.Request], bytes]


class Setup(msgspec.Struct, frozen=True):
    """All that the process of a model is told at its start."""

    spec: model_loading.Spec
    options: model_loading.Options
    log_format: logs.Format = "auto"
    log_level: logs.Level = "info"


class Reply(NamedTuple):
    """The answer to one predict request: its HTTP status, and the response body."""

    status: int
    body: Body


class Requests:
    """Answers requests one by one."""

    def __init__(self, device: str, setup: Setup) -> None:
        self._predict = predictor_of(_loaded(device, setup))

    def __call__(self, body: Body) -> list[Body]:
        """The answer, for `reply_of`."""
        started = time.perf_counter()
        reply = answer(self._predict, body)
        if log.isEnabledFor(logging.DEBUG):
            milliseconds = round((time.perf_counter() - started) * 1e3, 3)
            facts = logs.facts(status=reply.status, request_bytes=len(body), milliseconds=milliseconds)
            log.debug("answered a call", extra=facts)
        return [reply.body, reply.status.to_bytes(_STATUS)]


def reply_of(returned: Body) -> Reply:
    """What `Requests` answered."""
    status = int.from_bytes(returned[-_STATUS:])
    if isinstance(returned, bytes):
        return Reply(status, returned[:-_STATUS])
    del returned[-_STATUS:]  # of a large one, which is not copied so
    return Reply(status, returned)


class Rows:
    """Predicts instances of several requests with one call of the model."""

    def __init__(self, device: str, setup: Setup) -> None:
        self._predict = predictor_of(_loaded(device, setup))

    def __call__(self, rows: Sequence[bytes]) -> list[bytes]:
        """One prediction for each. Raises `errors.Refusal`."""
        started = time.perf_counter()
        text = b"[" + b",".join(rows) + b"]"
        try:
            predictions = self._predict(v1.Request(msgspec.Raw(text), [msgspec.Raw(row) for row in rows]))
        except Exception as error:
            raise _refusal(error) from None
        if log.isEnabledFor(logging.DEBUG):
            milliseconds = round((time.perf_counter() - started) * 1e3, 3)
            log.debug("predicted a batch", extra=logs.facts(rows=len(rows), milliseconds=milliseconds))
        return v1.rows_of(b"[" + predictions + b"]")


def answer(predict: Predict, request: Body) -> Reply:
    """Answer one predict request."""
    try:
        return Reply(200, v1.render_predictions(predict(v1.parse(request))))
    except Exception as error:
        refusal = _refusal(error)
        return Reply(refusal.status, v1.render_error(str(refusal)))


def _refusal(error: Exception) -> errors.Refusal:
    """What the caller is told of what was raised."""
    if isinstance(error, model.InvalidInstances):
        return errors.BadRequest(str(error))
    if isinstance(error, errors.Refusal):
        return error
    log.error("the model raised an exception", exc_info=error)
    return errors.ModelFailed(str(error) or type(error).__name__)


def _loaded(device: str, setup: Setup) -> model_loading.AnyModel:
    """The model, ready to predict. Raises `worker_errors.Unusable`, and what it raises itself."""
    logs.set_up(setup.log_format, setup.log_level)
    os.environ[DEVICE] = device
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())  # where people keep their own models
    try:
        made = model_loading.create(setup.spec, device, setup.options)
    except model_loading.Unusable as error:
        raise worker_errors.Unusable(str(error)) from None
    try:
        made.load()
        made.warm_up()
    except Exception:
        log.exception("the model failed to load or warm up", extra=logs.facts(model=setup.spec.name))
        raise
    return made


def predictor_of(served: model_loading.AnyModel) -> Predict:
    """A function from a parsed request to its predictions, as JSON joined by commas."""
    return _raw(served) if isinstance(served, model.RawModel) else _decoded(served)


def _raw(served: model.RawModel) -> Predict:
    def predict(request: v1.Request) -> bytes:
        rows = served.predict_rows(request.rows)
        _check_count(len(request.rows), rows)
        return b",".join(rows)

    return predict


def _decoded(served: model.Model) -> Predict:
    def predict(request: v1.Request) -> bytes:
        try:
            instances = msgspec.json.decode(request.text)
        except msgspec.DecodeError as error:  # valid JSON, but beyond what Python's numbers or strings hold
            raise errors.BadRequest(str(error)) from None
        predictions = served.predict(instances)
        _check_count(len(request.rows), predictions)
        return msgspec.json.encode(predictions, enc_hook=_plain)[1:-1]

    return predict


def _check_count(wanted: int, predictions: object) -> None:
    got = len(predictions) if hasattr(predictions, "__len__") and not isinstance(predictions, _ROWLESS) else None
    if got is None:
        kind = type(predictions).__name__
        raise errors.ModelFailed(f"the model must return a list of predictions, not {kind}")
    if got != wanted:
        raise errors.ModelFailed(f"the model returned {got} predictions for {wanted} instances")


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a prediction of type {type(value).__name__} has no JSON form")
