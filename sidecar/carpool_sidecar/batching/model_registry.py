"""What the predictor tells of its models: asked when a model is first used, remembered, and asked again later.

Callers choose the names of models, so there is a limit to what is remembered, and names that the predictor does not
know never push out those that it knows.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Protocol

from carpool.program import logs
from carpool_sidecar import caches, errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import interface as codecs
from carpool_sidecar.protocols import models

log = logging.getLogger("carpool.sidecar.batching")

MOST_NAMES = 1000
"""How many models that the predictor knows are remembered."""

_MOST_UNKNOWN = 512 * 1024  # bytes that count for names that it does not know, which callers make up
_LONGEST_UNKNOWN = 1024  # one that is longer is asked about each time

FRESH_SECONDS = 60.0
"""Answers are asked for again after this time: reloading a model can change all that was told of it."""

AVOID_SECONDS = 60.0
"""For so long requests of a model are not batched whose outputs did not have the batch's rows."""

_SETTLED_SECONDS = 0.05  # a model in use is looked at again after this time, unless something changes before

_FIRST_PAUSE = 1.0  # seconds until a question that failed is asked again; each failure doubles it


class InformedCodec(codecs.Codec, Protocol):
    """A codec for one model; `info` is what is known of that model."""

    info: models.ModelInfo


class Model:
    """A model by what the predictor told last; it stays the same object while it is remembered.

    `failure` is why the latest question was not answered, and None if it was. Before the first answer `is_known` is
    False and `info` is empty.
    """

    # State: info, is_known and failure by the latest answers; failures since then; due: when to ask again;
    # settled_until: until when nothing has to be looked at; _asked: when the predictor last answered; _avoided_until;
    # route, set once.
    def __init__(
        self,
        name: models.ModelName,
        make_codec: Callable[[Model], InformedCodec],
        batches_unknown: bool,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.info = models.ModelInfo()
        self.is_known = False
        self.failure: errors.CarpoolError | None = None
        self.failures = 0
        self.due = 0.0
        self.settled_until = self._asked = -math.inf
        self._avoided_until = -math.inf
        self._batches_unknown = batches_unknown
        self._clock = clock
        self.codec = make_codec(self)
        self.route: calls.Route | None = None
        """The way of its requests, once somebody has made it (`routes.Models.route`)."""

    @property
    def objection(self) -> errors.NotBatched | None:
        """Why its requests must not be batched now; None if they may be batched."""
        if self._clock() < self._avoided_until:
            return errors.NotBatched.OUTPUTS
        return self.info.objection(self._batches_unknown) if self.is_known else errors.NotBatched.UNKNOWN_MODEL

    def avoid(self) -> None:
        """An answer showed that the outputs do not have the batch's rows: batch no requests for `AVOID_SECONDS`.

        The model may have been reloaded, so it is asked about again when it is next used.
        """
        now = self._clock()
        self._avoided_until = now + AVOID_SECONDS
        self.settled_until = -math.inf
        self.due = min(self.due, now)

    def reconsider(self) -> None:
        """The predictor rejected a batch: ask about the model again when it is next used, at most once a second."""
        soonest = self._asked + _FIRST_PAUSE
        self.due = min(self.due, max(self._clock(), soonest))
        self.settled_until = min(self.settled_until, self.due)

    def learn(self, info: models.ModelInfo) -> None:
        """The predictor answered."""
        self.info = self.codec.info = info
        self.settled_until = -math.inf
        self.is_known = True
        self.failure, self.failures = None, 0
        self._asked = self._clock()
        self.due = self._asked + FRESH_SECONDS

    def miss(self, failure: errors.CarpoolError, longest_pause: float) -> None:
        """The predictor did not answer: what was known before still counts."""
        self.failure = errors.bare(failure)
        self.due = self._clock() + min(longest_pause, _FIRST_PAUSE * 2 ** min(self.failures, 30))
        self.failures += 1


class Waiting:
    """A callback that waits to be told of a model."""

    # State: the callback until it is called or taken back.
    def __init__(self, callback: Callable[[Model], None]) -> None:
        self._callback: Callable[[Model], None] | None = callback

    def cancel(self) -> None:
        """Release the callback, which is never called after this."""
        self._callback = None

    def tell(self, model: Model) -> None:
        """Call back, once."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(model)


class ModelRegistry:
    """The models of one predictor.

    `ask` asks the predictor about a model and limits its own time; what it raises counts as no answer. `make_codec`
    makes a model's codec, once for each `Model`. `batches_unknown` says whether requests are batched if the predictor
    does not tell whether their model has a batch dimension. `clock` returns seconds and never goes back. A question
    that failed is asked again, when the model is used, after a pause of 1 second that doubles up to `longest_pause`.
    """

    # State: models that the predictor told of, and names that it does not know, least recently used first; the
    # questions that are out.
    def __init__(
        self,
        ask: Callable[[models.ModelName], Awaitable[models.ModelInfo]],
        make_codec: Callable[[Model], InformedCodec],
        batches_unknown: bool,
        clock: Callable[[], float],
        longest_pause: float = 30.0,
        on_bug: Callable[[], None] = lambda: None,
    ) -> None:
        self._ask = ask
        self._make = functools.partial(Model, make_codec=make_codec, batches_unknown=batches_unknown, clock=clock)
        self._clock = clock
        self._on_bug = on_bug
        self._longest_pause = longest_pause
        self._known: collections.OrderedDict[models.ModelName, Model] = collections.OrderedDict()
        self._unknown: caches.Cache[models.ModelName, Model] = caches.Cache(
            "unknown_models", _MOST_UNKNOWN, _LONGEST_UNKNOWN
        )
        self._asking: dict[models.ModelName, asyncio.Task[Model]] = {}

    def get(self, name: models.ModelName) -> Model | None:
        """The model, or None while no question about it was answered, well or badly.

        To be called within a running event loop: what is due is asked again in the background.
        """
        model = self._known.get(name)
        if model is not None:
            self._known.move_to_end(name)
        else:
            model = self._unknown.get(name)
        if model is not None and self._clock() >= model.due:
            self._question(name, model)
        return model

    def objection(self, model: Model) -> errors.NotBatched | None:
        """`model.objection`, for use once `model.settled_until` is over; asks about the model again if that is due."""
        self.get(model.name)
        found = model.objection
        if found is None:
            model.settled_until = self._clock() + _SETTLED_SECONDS
        return found

    async def ask(self, name: models.ModelName) -> Model:
        """`get`, or ask the predictor. Raises only the caller's own cancellation, which disturbs nobody else.

        Never answered: `objection` is unknown_model.
        """
        model = self.get(name)
        if model is None:
            question = self._question(name)
            await asyncio.wait([question])
            model = self._outcome(name, question)
        return model

    def when_known(self, name: models.ModelName, callback: Callable[[Model], None]) -> Waiting:
        """`ask` for callers that cannot await: calls back once, from the event loop, after this has returned."""
        waiting = Waiting(callback)
        model = self.get(name)
        if model is not None:
            asyncio.get_running_loop().call_soon(waiting.tell, model)
        else:
            question = self._question(name)
            question.add_done_callback(lambda done: waiting.tell(self._outcome(name, done)))
        return waiting

    async def close(self) -> None:
        """Break off the questions that are out; callers that wait get a model of which nothing is known."""
        questions = list(self._asking.values())
        for question in questions:
            question.cancel()
        await asyncio.gather(*questions, return_exceptions=True)

    def _question(self, name: models.ModelName, model: Model | None = None) -> asyncio.Task[Model]:
        """The question about a model that is out, or else a new one."""
        question = self._asking.get(name)
        if question is None:
            inquiry = self._inquire(model or self._make(name))
            question = asyncio.get_running_loop().create_task(inquiry, name="ask about a model")
            self._asking[name] = question
            question.add_done_callback(lambda _: self._asking.pop(name))
        return question

    async def _inquire(self, model: Model) -> Model:
        try:
            if len(self._asking) > MOST_NAMES:
                raise errors.TooManyModels
            model.learn(await self._ask(model.name))
        except errors.CarpoolError as error:
            self._miss(model, error)
        except Exception:
            self._on_bug()
            log.exception("a model could not be asked about", extra=logs.facts(model=model.name.name))
            self._miss(model, errors.CarpoolError())
        self._keep(model)
        return model

    def _miss(self, model: Model, error: errors.CarpoolError) -> None:
        model.miss(error, self._longest_pause)
        facts = logs.facts(model=model.name.name, version=model.name.version, error=str(error))
        log.debug("the predictor does not tell of a model", extra=facts)

    def _keep(self, model: Model) -> None:
        self._unknown.drop(model.name)
        if not model.is_known:
            self._unknown.put(model.name, model, caches.text_size(model.name))
            return
        self._known[model.name] = model
        if len(self._known) > MOST_NAMES:
            self._known.popitem(last=False)

    def _outcome(self, name: models.ModelName, question: asyncio.Task[Model]) -> Model:
        if not question.cancelled():
            return question.result()
        model: Model = self._make(name)
        model.miss(errors.Draining(), self._longest_pause)
        return model
