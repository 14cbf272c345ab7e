"""Models as users write them, one for each situation; worker processes import them by name."""

from __future__ import annotations

import contextlib
import os
import pathlib
import stat
import time
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
