"""What a model must offer to be served. Write a class with these three methods, and name it by import path:

    # words.py
    from carpool_predictor import model

    class WordCount:
        def load(self) -> None:
            self.separator = " "

        def warm_up(self) -> None:
            self.predict(["one two"])

        def predict(self, instances: list) -> list:
            if not all(isinstance(text, str) for text in instances):
                raise model.InvalidInstances("every instance must be a JSON string")
            return [len(text.split(self.separator)) for text in instances]

    $ carpool-predictor --models words=words:WordCount

A class that has `embed` as well (see `Embedder`) also answers `POST /v1/embeddings`, OpenAI's endpoint.

The class is called without arguments, in a worker process of its own and always from the same thread; take options
from environment variables. `CARPOOL_PREDICTOR_DEVICE` is the one of `--device` that is for this process. Whatever the
process prints goes to the server's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

Row = msgspec.Raw | bytes
"""One instance or prediction as JSON text in UTF-8. `memoryview(row)` gives its bytes, `b",".join(rows)` joins."""


Input = str | list[int]
"""What is embedded: a text, or the ids of its tokens in the model's own vocabulary, which are never none at all."""


class InvalidInstances(ValueError):
    """Raised by a model for instances it can never predict, or inputs it can never embed.

    The caller gets 400 with this message. Anything else that a model raises is a 500 with the exception's message, and
    a traceback in the log.
    """


class OutOfMemory(Exception):
    """Raised by a model for a batch that takes more memory than there is; a smaller one may be predicted.

    The caller gets 500 with this message, which a sidecar reads: it must have the words `out of memory` after `CUDA`,
    `GPU` or `device`. A `MemoryError` and torch's `OutOfMemoryError` need not be caught for this.
    """


class Unusable(Exception):
    """Raised by `load` or `warm_up` for what no restart can repair. `str(error)` is for the operator."""


class DeviceLost(Exception):
    """Raised by a model whose device can compute nothing more in this process: the worker is started again."""


@runtime_checkable
class Loadable(Protocol):
    """The life of a model before its first call. Both methods run once, in this order, in the worker process."""

    def load(self) -> None:
        """Read weights. If it raises, the worker is started again, with growing pauses."""

    def warm_up(self) -> None:
        """Make the first call as fast as the later ones. The model is ready once this returns."""


@runtime_checkable
class Model(Loadable, Protocol):
    """A model that works on decoded instances."""

    def predict(self, instances: list[Any]) -> list[Any]:
        """Predict a batch: one prediction for each instance, in the same order.

        Instances are what JSON gives: None, bool, int, float, str, list or dict. Predictions may be the same, or
        anything with a `tolist()` (NumPy arrays, tensors). NaN and infinities have no JSON form and become null.
        Raises `InvalidInstances` for instances that no model of this kind could predict.
        """
        ...


@runtime_checkable
class RawModel(Loadable, Protocol):
    """A model that works on JSON text, for those that need no decoding or do it better themselves.

    A class that offers `predict_rows` is never asked to `predict`.
    """

    def predict_rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Like `Model.predict`, each row being one JSON value as it was written, without space around it."""
        ...


@runtime_checkable
class StagedModel(RawModel, Protocol):
    """A `RawModel` that predicts in three stages, so that a batch is read or written while the device has another one.

    `prepare` and `compute` are called for one batch after the other, and `finish` in the same order in another thread.
    `predict_rows` does all of them for one batch. What a stage raises fails its own batch alone, and no later
    stage hears of that. Batches of a server that batches by itself (`--max-batch-size`) go one by one.
    """

    def prepare(self, rows: Sequence[Row]) -> Any:
        """Read the instances and lay them ready. Raises as `Model.predict` does."""
        ...

    def compute(self, prepared: Any) -> Any:
        """Start the computing. It may return before the device is done, and is then called with the next batch."""
        ...

    def finish(self, computed: Any) -> Sequence[Row]:
        """Wait for the device, and write the predictions."""
        ...


class Embeddings(NamedTuple):
    """What a model made of inputs. `tokens` is how many it read for each, special ones and all.

    `vectors` is a list of numbers for each input, or anything whose `tolist()` gives such lists. Best is a matrix of
    NumPy's in float32: it is written without a list of Python's numbers.
    """

    vectors: Any
    tokens: Sequence[int]


@runtime_checkable
class Embedder(Loadable, Protocol):
    """What a `Model` or a `RawModel` offers besides, if it makes embeddings of texts."""

    def embed(self, inputs: list[Input]) -> Embeddings:
        """Embed a batch: one vector for each input, in the same order.

        Raises `InvalidInstances` for inputs that it could never embed.
        """
        ...


@runtime_checkable
class StagedEmbedder(Embedder, Protocol):
    """What a `StagedModel` offers besides, if it makes embeddings: its own first and last stage, around `compute`."""

    def prepare_inputs(self, inputs: list[Input]) -> Any:
        """Read the inputs and lay them ready. Raises as `embed` does."""
        ...

    def finish_embeddings(self, computed: Any) -> Embeddings:
        """Wait for the device."""
        ...
