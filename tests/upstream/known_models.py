"""A predictor that tells of its models, and a codec that is only kept: what a registry deals with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.batching import model_registry
from carpool_sidecar.protocols import interface as codecs
from carpool_sidecar.protocols import models

NAME = models.ModelName("m")
BATCHED = models.ModelInfo(max_batch_size=8)
STATEFUL = models.ModelInfo(max_batch_size=8, is_stateful=True)


class Codec:
    """Takes part in nothing but being kept."""

    def __init__(self, model: model_registry.Model) -> None:
        self.model = model
        self.info = model.info

    max_batch_size = 1

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> codecs.Payload:
        raise AssertionError("nobody sends anything here")

    def merge(self, target: str, parts: Sequence[messages.Part]) -> codecs.UpstreamRequest:
        raise AssertionError("nobody sends anything here")


class Teller:
    """Tells `told[name]`, or raises it, `delay` seconds after it was asked; `asked` has every question's name."""

    def __init__(self) -> None:
        self.told: dict[Hashable, models.ModelInfo | Exception] = {NAME: BATCHED}
        self.delay = 0.0
        self.asked: list[models.ModelName] = []

    async def ask(self, name: models.ModelName) -> models.ModelInfo:
        self.asked.append(name)
        await asyncio.sleep(self.delay)
        told = self.told.get(name, errors.UpstreamStatus(404, b""))
        if isinstance(told, Exception):
            raise told
        return told


Make = Callable[..., model_registry.ModelRegistry]


async def turn() -> None:
    """Let questions be asked that take no time."""
    for _ in range(5):
        await asyncio.sleep(0)
