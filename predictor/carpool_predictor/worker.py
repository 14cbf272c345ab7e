"""The process of a model: `python -m carpool_predictor.worker FD SPEC`, started by `served_model` only.

It reads calls from a socket it inherits, one after the other, does all the JSON work and answers in the same order.
The end of that socket is its only order to stop, so it never outlives its server; signals meant for the server (a
service manager may signal a whole group) are ignored, so that accepted calls are still answered.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from carpool.program import logs
from carpool.workers import frames
from carpool_predictor import errors, model, model_loading, v1

log = logging.getLogger("carpool.predictor.worker")

EXIT_UNUSABLE = 2

_HEAD, _TAIL = b'{"predictions":[', b"]}"

# Things with a length, but without rows.
_ROWLESS = (str, bytes, dict, set, frozenset)

Body = Sequence[frames.Buffer]
Predict = Callable[[v1.Request], bytes]


class Setup(msgspec.Struct, frozen=True):
    """All a worker is told at its start; travels as JSON on its command line."""

    spec: model_loading.Spec
    options: model_loading.Options
    log_format: logs.Format = "auto"
    log_level: logs.Level = "info"


def main(arguments: Sequence[str]) -> int:
    """Serve one model until the server closes the socket. Returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    setup = msgspec.json.decode(arguments[1], type=Setup)
    logs.set_up(setup.log_format, setup.log_level)
    with socket.socket(fileno=int(arguments[0])) as sock:
        sock.set_inheritable(False)
        try:
            return _run(sock, setup)
        except (BrokenPipeError, ConnectionResetError):
            return 0  # the server is gone


def _run(sock: socket.socket, setup: Setup) -> int:
    try:
        served = model_loading.create(setup.spec, setup.options)
    except model_loading.Unusable as error:
        frames.send(sock, frames.UNUSABLE, [str(error).encode()])
        return EXIT_UNUSABLE
    try:
        served.load()
        served.warm_up()
    except Exception:
        log.exception("the model failed to load or warm up", extra=logs.facts(model=setup.spec.name))
        return 1
    frames.send(sock, frames.READY, [])
    _serve(sock, predictor_of(served))
    return 0


def _serve(sock: socket.socket, predict: Predict) -> None:
    while (frame := frames.receive(sock)) is not None:
        started = time.perf_counter()
        status, body = answer(predict, frame[1])
        if log.isEnabledFor(logging.DEBUG):
            milliseconds = round((time.perf_counter() - started) * 1e3, 3)
            facts = logs.facts(status=status, request_bytes=len(frame[1]), milliseconds=milliseconds)
            log.debug("answered a call", extra=facts)
        frames.send(sock, status, body)


def answer(predict: Predict, request: bytes) -> tuple[int, Body]:
    """Answer one predict request: its HTTP status, and the response body in pieces."""
    try:
        return 200, (_HEAD, predict(v1.parse(request)), _TAIL)
    except model.InvalidInstances as error:
        return 400, [v1.render_error(str(error))]
    except errors.Refusal as error:
        return error.status, [v1.render_error(str(error))]
    except Exception as error:
        log.exception("the model raised an exception")
        return errors.ModelFailed.status, [v1.render_error(str(error) or type(error).__name__)]


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


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
