"""What runs in a model's process: JSON in, JSON out, and the model between.

`Requests` is called with one request: the body of a predict request, or the texts of an embeddings request. `Rows` is
called with instances and texts from any number of requests, which the server has taken out of their bodies, and makes
one call of the model of them.
"""

from __future__ import annotations

import abc
import enum
import functools
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from carpool.program import logs
from carpool.workers import errors as worker_errors
from carpool.workers import messages
from carpool_predictor import calls, embeddings, errors, model, model_loading, stages, v1, vectors

log = logging.getLogger("carpool.predictor.worker")

DEVICE = "CARPOOL_PREDICTOR_DEVICE"
"""The variable that tells a model the device of its own process."""

_STATUS = 2  # bytes at the end of an answer on its way to the server
_TOKENS = 8  # bytes at the end of an embedding on its way there, in a batch
# Things with a length, but without rows.
_ROWLESS = (str, bytes, dict, set, frozenset)

Body = bytes | bytearray
Predict = Callable[[v1.Request], bytes]
Embed = Callable[[Body, bool], list[embeddings.Row]]


class Asked(enum.Enum):
    """What a request is for. Its last byte tells: before it stands a predict body, or the list of what to embed.

    Of the rows of requests only texts to embed are marked, in front, where no JSON value begins so.
    """

    PREDICTIONS = b"p"
    EMBEDDINGS = b"e"
    EMBEDDINGS_IN_BASE64 = b"b"


_MARKS = {asked.value: asked for asked in (Asked.EMBEDDINGS, Asked.EMBEDDINGS_IN_BASE64)}


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
    """Answers requests one by one. A `model.StagedModel` has several under way at the same time.

    The last byte of a request says what it asks. The answer is for `reply_of`.
    """

    def __init__(self, device: str, setup: Setup) -> None:
        served = _loaded(device, setup)
        name = setup.spec.name
        staged = isinstance(served, model.StagedModel)
        made = _Staged(name, served) if isinstance(served, model.StagedModel) else _Plain(name, served)
        self.steps = (made.prepare, made.compute, made.finish)
        self._is_staged = staged

    def __call__(self, request: Body) -> list[Body]:
        """Answer one."""
        prepare, compute, finish = self.steps
        return finish(compute(prepare(request)))

    def serve(self, channel: messages.Channel, answer: calls.Answer) -> None:
        """Answer all, until the worker's socket ends."""
        prepare, compute, finish = self.steps
        served = calls.Calls(channel, answer)
        if self._is_staged:
            # The first two share a thread: more than two only wait for each other, as each needs the interpreter.
            stages.serve_in_stages(served, (lambda body: compute(prepare(body)), finish))
        stages.serve_in_steps(served, prepare, compute, finish)


def _sent(reply: Reply, length: int, started: float) -> list[Body]:
    """A reply on its way to the server."""
    if log.isEnabledFor(logging.DEBUG):
        milliseconds = round((time.perf_counter() - started) * 1e3, 3)
        facts = logs.facts(status=reply.status, request_bytes=length, milliseconds=milliseconds)
        log.debug("answered a call", extra=facts)
    return [reply.body, reply.status.to_bytes(_STATUS)]


class _Request:
    """A request between the steps: what the model has made of it so far, or the answer once it failed."""

    __slots__ = ("asked", "count", "length", "made", "reply", "started")

    def __init__(self, request: Body) -> None:
        self.started = time.perf_counter()
        self.length = len(request) - 1
        self.asked = Asked(bytes(request[-1:]))
        self.count = 0
        self.made: Any = None
        self.reply: Reply | None = None

    def fail(self, error: Exception) -> None:
        """It is answered with a refusal; nothing else is done for it."""
        refusal = _refusal(error)
        is_v1 = self.asked is Asked.PREDICTIONS
        body = v1.render_error(str(refusal)) if is_v1 else embeddings.render_error(refusal)
        self.reply = Reply(refusal.status, body)


class _Steps(abc.ABC):
    """Answers requests in three steps. What fails in one passes the later ones as it is."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abc.abstractmethod
    def read(self, request: _Request, body: Body) -> Any:
        """What the model computes with."""

    @abc.abstractmethod
    def computed(self, request: _Request) -> Any:
        """What it computes."""

    @abc.abstractmethod
    def written(self, request: _Request) -> bytes:
        """The answer's body."""

    def prepare(self, body: Body) -> _Request:
        """The first step."""
        request = _Request(body)
        try:
            request.made = self.read(request, _without_end(body, 1))
        except Exception as error:
            request.fail(error)
        return request

    def compute(self, request: _Request) -> _Request:
        """The second."""
        if request.reply is None:
            try:
                request.made = self.computed(request)
            except Exception as error:
                request.fail(error)
        return request

    def finish(self, request: _Request) -> list[Body]:
        """The last."""
        if request.reply is None:
            try:
                request.reply = Reply(200, self.written(request))
            except Exception as error:
                request.fail(error)
        assert request.reply is not None  # noqa: S101 # for the type checker
        return _sent(request.reply, request.length, request.started)


class _Plain(_Steps):
    """Of a model that makes everything of a batch in one call."""

    def __init__(self, name: str, served: model_loading.AnyModel) -> None:
        super().__init__(name)
        self._predict = predictor_of(served)
        self._embed = embedder_of(name, served)

    def read(self, request: _Request, body: Body) -> Any:
        return v1.parse(body) if request.asked is Asked.PREDICTIONS else body

    def computed(self, request: _Request) -> Any:
        if request.asked is Asked.PREDICTIONS:
            return self._predict(request.made)
        return self._embed(request.made, request.asked is Asked.EMBEDDINGS_IN_BASE64)

    def written(self, request: _Request) -> bytes:
        if request.asked is Asked.PREDICTIONS:
            return v1.render_predictions(request.made)
        return embeddings.render(self.name, request.made)


class _Staged(_Steps):
    """Of a model in stages."""

    def __init__(self, name: str, served: model.StagedModel) -> None:
        super().__init__(name)
        self._served = served

    def read(self, request: _Request, body: Body) -> Any:
        if request.asked is Asked.PREDICTIONS:
            rows = v1.parse(body).rows
            request.count = len(rows)
            return self._served.prepare(rows)
        if not isinstance(self._served, model.StagedEmbedder):
            raise errors.BadRequest(f"model {self.name} makes no embeddings")
        inputs = embeddings.decode(body)
        request.count = len(inputs)
        return self._served.prepare_inputs(inputs)

    def computed(self, request: _Request) -> Any:
        return self._served.compute(request.made)

    def written(self, request: _Request) -> bytes:
        if request.asked is Asked.PREDICTIONS:
            rows = self._served.finish(request.made)
            _check_count(request.count, rows)
            return v1.render_predictions(b",".join(rows))
        embedder = cast(model.StagedEmbedder, self._served)
        found = embedder.finish_embeddings(request.made)
        is_base64 = request.asked is Asked.EMBEDDINGS_IN_BASE64
        return embeddings.render(self.name, embedded(found, request.count, is_base64))


def reply_of(returned: Body) -> Reply:
    """What `Requests` answered."""
    return Reply(int.from_bytes(returned[-_STATUS:]), _without_end(returned, _STATUS))


def _without_end(data: Body, count: int) -> Body:
    if isinstance(data, bytes):
        return data[:-count]
    del data[-count:]  # of a large one, which is not copied so
    return data


class Rows:
    """Predicts instances, and embeds texts, of several requests with one call of the model for each kind."""

    def __init__(self, device: str, setup: Setup) -> None:
        served = _loaded(device, setup)
        self._predict = predictor_of(served)
        self._embed = embedder_of(setup.spec.name, served)

    def __call__(self, rows: Sequence[bytes]) -> list[bytes]:
        """One prediction for each, or what `embedding_of` reads. Raises `errors.Refusal`."""
        started = time.perf_counter()
        places: dict[Asked, list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault(_MARKS.get(row[:1], Asked.PREDICTIONS), []).append(place)
        answers = list(rows)
        try:
            for asked, its_places in places.items():
                some = [rows[place] for place in its_places]
                for place, found in zip(its_places, self._answer(asked, some), strict=True):
                    answers[place] = found
        except Exception as error:
            raise _refusal(error) from None
        if log.isEnabledFor(logging.DEBUG):
            milliseconds = round((time.perf_counter() - started) * 1e3, 3)
            log.debug("predicted a batch", extra=logs.facts(rows=len(rows), milliseconds=milliseconds))
        return answers

    def _answer(self, asked: Asked, rows: list[bytes]) -> list[bytes]:
        if asked is Asked.PREDICTIONS:
            text = b"[" + b",".join(rows) + b"]"
            return v1.rows_of(
                b"[" + self._predict(v1.Request(msgspec.Raw(text), [msgspec.Raw(row) for row in rows])) + b"]"
            )
        found = self._embed(b"[" + b",".join([row[1:] for row in rows]) + b"]", asked is Asked.EMBEDDINGS_IN_BASE64)
        return [row.text + row.tokens.to_bytes(_TOKENS) for row in found]


def row_to_embed(text: bytes, asked: Asked) -> bytes:
    """What `Rows` is given for an input, which is JSON."""
    return asked.value + text


def embedding_of(returned: bytes) -> embeddings.Row:
    """What `Rows` answered for an input."""
    return embeddings.Row(returned[:-_TOKENS], int.from_bytes(returned[-_TOKENS:]))


def _refusal(error: Exception) -> errors.Refusal:
    """What the caller is told of what was raised. Raises `worker_errors.EndWorker` where it can be told nothing."""
    if isinstance(error, model.InvalidInstances):
        return errors.BadRequest(str(error))
    if isinstance(error, errors.Refusal):
        return error
    if isinstance(error, model.DeviceLost):
        log.critical("the device is lost, and this process with it", exc_info=error)
        raise worker_errors.EndWorker
    if _is_memory(error):
        return errors.OutOfMemory(str(error) or type(error).__name__)
    log.error("the model raised an exception", exc_info=error)
    return errors.ModelFailed(str(error) or type(error).__name__)


def _is_memory(error: Exception) -> bool:
    is_torch = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    return is_torch or isinstance(error, model.OutOfMemory | MemoryError)


def _loaded(device: str, setup: Setup) -> model_loading.AnyModel:
    """The model, ready to predict. Raises `worker_errors.Unusable`, and what it raises itself."""
    logs.set_up(setup.log_format, setup.log_level)
    os.environ[DEVICE] = device
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())  # where people keep their own models
    try:
        made = model_loading.create(setup.spec, device, setup.options)
        made.load()
        made.warm_up()
    except model.Unusable as error:
        raise worker_errors.Unusable(str(error)) from None
    except Exception:
        log.exception("the model failed to load or warm up", extra=logs.facts(model=setup.spec.name))
        raise
    # What a library like torch has made stays to the end; looking through it again would take 0.1 s now and then.
    gc.collect()
    gc.freeze()
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


def embedder_of(name: str, served: model_loading.AnyModel) -> Embed:
    """A function from a JSON list of inputs, and whether base64 is wanted, to embeddings."""
    if not isinstance(served, model.Embedder):
        return functools.partial(_refuse_to_embed, name)

    def embed(inputs: Body, is_base64: bool) -> list[embeddings.Row]:
        decoded = embeddings.decode(inputs)
        return embedded(served.embed(decoded), len(decoded), is_base64)

    return embed


def embedded(found: model.Embeddings, wanted: int, is_base64: bool) -> list[embeddings.Row]:
    """Embeddings as they are answered. Raises `errors.ModelFailed` if there are not as many as wanted."""
    _check_count(wanted, found.vectors)
    _check_count(wanted, found.tokens)
    written = vectors.texts_in_base64(found.vectors) if is_base64 else vectors.texts(found.vectors)
    return [embeddings.Row(text, count) for text, count in zip(written, found.tokens, strict=True)]


def _refuse_to_embed(name: str, inputs: Body, is_base64: bool) -> list[embeddings.Row]:
    raise errors.BadRequest(f"model {name} makes no embeddings")


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
