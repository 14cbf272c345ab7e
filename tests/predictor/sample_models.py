"""Models as users write them, one for each situation; worker processes import them by name."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import stat
import threading
import time
from collections.abc import Sequence
from typing import Any

from carpool_predictor import model


class Plain:
    """Loads and warms up without doing anything."""

    def load(self) -> None: ...

    def warm_up(self) -> None: ...


class Doubling(Plain):
    def predict(self, instances: list[Any]) -> list[Any]:
        return [value * 2 for value in instances]


class Raising(Plain):
    """Raises what the first instance asks for."""

    def predict(self, instances: list[Any]) -> list[Any]:
        if instances[0] == "invalid":
            raise model.InvalidInstances("instance 0 is not a picture")
        raise RuntimeError("the weights caught fire")


class Returning(Plain):
    """Returns a value of the kind that the first instance asks for."""

    def predict(self, instances: list[Any]) -> Any:
        class Array:
            def tolist(self) -> list[float]:
                return [0.5, 1.5]

        kinds = {"too few": instances[1:], "a string": "xx", "nothing": None, "array": [Array()], "object": [object()]}
        return kinds[instances[0]]


class Environment(Plain):
    """Looks variables up."""

    def predict(self, instances: list[Any]) -> list[Any]:
        return [os.environ.get(name) for name in instances]


class Mortal(Plain):
    """Dies at once when an instance says so; `READ` is the path of a pipe to read until its end first."""

    def predict(self, instances: list[Any]) -> list[Any]:
        for instance in instances:
            if isinstance(instance, str) and instance.startswith("READ "):
                pathlib.Path(instance.removeprefix("READ ")).read_bytes()
            if instance == "die":
                os._exit(3)
        return instances


class WaitingWarmUp(Plain):
    """Is warm once somebody has opened and closed the named pipe of the environment."""

    def warm_up(self) -> None:
        pathlib.Path(os.environ["SAMPLE_PIPE"]).read_bytes()

    def predict(self, instances: list[Any]) -> list[Any]:
        return instances


class WarmAndMortal(WaitingWarmUp):
    """Warms up as its parent does, and may be told to die."""

    predict = Mortal.predict


class LoadingAtSecondTry(Plain):
    """Fails to load unless the marker file of the environment exists, which the first try writes."""

    def load(self) -> None:
        marker = pathlib.Path(os.environ["SAMPLE_MARKER"])
        if not marker.exists():
            marker.touch()
            raise OSError("the weights are not mounted yet")

    def predict(self, instances: list[Any]) -> list[Any]:
        return instances


class HoldingPipe(Plain):
    """Keeps the named pipe of the environment open for writing for as long as its process lives."""

    def load(self) -> None:
        self.pipe = pathlib.Path(os.environ["SAMPLE_PIPE"]).open("wb")  # noqa: SIM115

    def predict(self, instances: list[Any]) -> list[Any]:
        return instances


class Incomplete:
    """Has no predict."""

    def load(self) -> None: ...

    def warm_up(self) -> None: ...


class Lingering(Plain):
    """Ends its side of the socket when an instance says so, and lives on for a while."""

    def predict(self, instances: list[Any]) -> list[Any]:
        if instances == ["hang up"]:
            for descriptor in range(3, 64):
                with contextlib.suppress(OSError):
                    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                        os.close(descriptor)
            time.sleep(30)
        return instances


class Counting(Plain):
    """Tells with each instance how many there were in the call."""

    def predict(self, instances: list[Any]) -> list[Any]:
        return [[instance, len(instances)] for instance in instances]


class Choosy(Plain):
    """Raises if an instance is odd."""

    def predict(self, instances: list[Any]) -> list[Any]:
        if "odd" in instances:
            raise RuntimeError("it is odd")
        return instances


class Meeting(Plain):
    """Predicts the device of its process, once another process has the other end of a named pipe open."""

    def predict(self, instances: list[str]) -> list[Any]:
        word, path = instances[0].split()
        if word == "READ":
            pathlib.Path(path).read_bytes()
        else:
            pathlib.Path(path).write_bytes(b"")
        return [os.environ["CARPOOL_PREDICTOR_DEVICE"]]


class Measuring(Plain):
    """Embeds a text as its length and the number of inputs in the call, with a token a word; token ids likewise."""

    def embed(self, inputs: list[model.Input]) -> model.Embeddings:
        if "invalid" in inputs:
            raise model.InvalidInstances("input 0 is not a text")
        if "broken" in inputs:
            raise RuntimeError("the weights caught fire")
        tokens = [len(each.split()) if isinstance(each, str) else len(each) for each in inputs]
        return model.Embeddings([[len(each) + 0.5, float(len(inputs))] for each in inputs], tokens)

    def predict(self, instances: list[Any]) -> list[Any]:
        return [[instance, len(instances)] for instance in instances]


class Miscounting(Measuring):
    """Loses the last embedding, or its count of tokens if the text says so."""

    def embed(self, inputs: list[model.Input]) -> model.Embeddings:
        found = super().embed(inputs)
        if inputs[0] == "tokens":
            return model.Embeddings(found.vectors, found.tokens[1:])
        return model.Embeddings(found.vectors[1:], found.tokens)


class Staged(Plain):
    """Predicts texts as themselves in stages; a text may name a stage, and what is to happen there.

    "compute raise" raises, "finish memory" is out of memory, "prepare lost" loses the device. It has room for two
    batches at a time.
    """

    def __init__(self) -> None:
        self.room = threading.Semaphore(2)

    def prepare(self, rows: Sequence[model.Row]) -> list[model.Row]:
        self._do("prepare", rows)
        assert self.room.acquire(timeout=10), "somebody did not give back what was prepared"
        return list(rows)

    def compute(self, prepared: list[model.Row]) -> list[model.Row]:
        try:
            self._do("compute", prepared)
        except Exception:
            self.room.release()
            raise
        return prepared

    def finish(self, computed: list[model.Row]) -> Sequence[model.Row]:
        self.room.release()
        self._do("finish", computed)
        return computed[1:] if b'"too few"' in map(bytes, computed) else computed

    def predict_rows(self, rows: Sequence[model.Row]) -> Sequence[model.Row]:
        return self.finish(self.compute(self.prepare(rows)))

    def _do(self, stage: str, rows: Sequence[model.Row]) -> None:
        for row in rows:
            words = json.loads(bytes(row)).split()
            if words[:1] == [stage]:
                raise {
                    "raise": RuntimeError("the weights caught fire"),
                    "invalid": model.InvalidInstances("instance 0 is no picture"),
                    "memory": model.OutOfMemory("CUDA out of memory: 9 instances in one call need more; send fewer"),
                    "lost": model.DeviceLost("cuda:0 failed"),
                }[words[1]]


class StagedMeasuring(Staged):
    """Embeds as well: each text as its length."""

    def embed(self, inputs: list[model.Input]) -> model.Embeddings:
        return self.finish_embeddings(self.compute(self.prepare_inputs(inputs)))

    def prepare_inputs(self, inputs: list[model.Input]) -> list[model.Row]:
        return self.prepare([json.dumps(each).encode() for each in inputs])

    def finish_embeddings(self, computed: list[model.Row]) -> model.Embeddings:
        rows = self.finish(computed)
        return model.Embeddings([[float(len(row) - 2)] for row in map(bytes, rows)], [1] * len(rows))


class Hungry(Plain):
    """Is out of memory, in torch's way, for more than two instances, or for one that says so."""

    def predict(self, instances: list[Any]) -> list[Any]:
        class OutOfMemoryError(RuntimeError): ...

        if len(instances) > 2 or "hungry" in instances:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return instances


class Hopeless(Plain):
    """Cannot be loaded here."""

    def load(self) -> None:
        raise model.Unusable("--device cuda:9: of CUDA's GPUs 1 are visible")

    def predict(self, instances: list[Any]) -> list[Any]:
        return instances
