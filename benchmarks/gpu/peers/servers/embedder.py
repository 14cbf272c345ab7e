"""The model that every server here serves: the predictor's own class, on the device and in the precision it is told.

`PEER_PREDICTOR` has the predictor's flags (`--models=minilm --device=cuda …`), so that each peer runs exactly the model
that Carpool's predictor would run for them, warm-up included. A model is called from one thread, as the predictor
promises its models: that which made the `Embedder`, or for servers that call from others, one of its own.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from carpool.program import settings
from carpool_predictor import config, model, model_loading, worker

MAX_BATCH = int(os.environ.get("PEER_MAX_BATCH", "32"))
WAIT_MS = float(os.environ.get("PEER_WAIT_MS", "5"))
FRONTS = int(os.environ.get("PEER_FRONTS", "1"))  # processes in front of the model, where a server has a choice
HOST = "127.0.0.1"
PORT = int(os.environ.get("PEER_PORT", "8000"))
# Longer than the measuring program waits: whoever is overloaded is to be slow, and not to refuse.
PATIENCE_SECONDS = 60

Vectors = NDArray[np.float32]
Result = TypeVar("Result")


class Embedder:
    """The model, loaded and warm once this returns. Raises what loading raises.

    With `own_thread` it may be called from any thread; else only from this one, which saves the way to another.
    """

    def __init__(self, own_thread: bool = False) -> None:
        self._thread = futures.ThreadPoolExecutor(1, "embedder") if own_thread else None
        self._model: Any = self._in_thread(_loaded)

    def answers(self, sentences: Sequence[str]) -> list[bytes]:
        """For each sentence the body of its answer, `{"predictions": [[…]]}`."""
        return self._in_thread(lambda: [b'{"predictions":[%b]}' % text for text in self._texts(sentences)])

    def vectors(self, sentences: Sequence[str]) -> Vectors:
        """The embeddings, [sentences, 384]."""
        return self._in_thread(lambda: self._vectors(sentences))

    def _in_thread(self, work: Callable[[], Result]) -> Result:
        return work() if self._thread is None else self._thread.submit(work).result()

    def _texts(self, sentences: Sequence[str]) -> Sequence[Any]:
        if isinstance(self._model, model.RawModel):
            return self._model.predict_rows([msgspec.json.encode(sentence) for sentence in sentences])
        return [msgspec.json.encode(each, enc_hook=_plain) for each in self._model.predict(list(sentences))]

    def _vectors(self, sentences: Sequence[str]) -> Vectors:
        if isinstance(self._model, model.RawModel):
            return np.array([msgspec.json.decode(text) for text in self._texts(sentences)], np.float32)
        return np.array([_plain(each) for each in self._model.predict(list(sentences))], np.float32)


def _loaded() -> model_loading.AnyModel:
    chosen = settings.load(config.Settings, shlex.split(os.environ["PEER_PREDICTOR"]))
    (spec,), (device,) = chosen.specs(), chosen.device
    os.environ[worker.DEVICE] = device
    made = model_loading.create(spec, device, chosen.options())
    made.load()
    made.warm_up()
    return made


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
