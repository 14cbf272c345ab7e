"""What the fake v2 server keeps of its calls, and how its models answer them, whichever protocol a call came by."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import NamedTuple

from tests.fakes import v2_models


class Received(NamedTuple):
    """One call as it came: `path` is HTTP's or gRPC's, `headers` have names in lower case."""

    path: str
    headers: Mapping[str, str | bytes]
    body: bytes


class Calls:
    """All state that calls change, and what tests set to make the models wait."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.questions: list[v2_models.Question] = []  # those that a model answered
        self.seconds = 0.0  # that each inference takes
        self.most_rows = math.inf  # what an inference has memory for, whatever the models say
        self.too_many = ("OOM when allocating tensor", 500, "RESOURCE_EXHAUSTED")  # what it says to more
        self.gate = asyncio.Event()  # clear it, and inferences wait until it is set
        self.gate.set()
        self.busy = 0  # inferences at work now
        self._changed = asyncio.Condition()

    @property
    def batches(self) -> list[int]:
        """Rows of each call that a model answered."""
        return [question.rows for question in self.questions]

    async def infer(self, question: v2_models.Question) -> list[v2_models.Tensor]:
        """The answer of a model. Raises `v2_models.Refused`."""
        answer = v2_models.find(question.model, question.version).answer(question)
        if question.rows > self.most_rows:
            raise v2_models.Refused(*self.too_many)
        self.questions.append(question)
        await self._count(+1)
        try:
            await self.gate.wait()
            await asyncio.sleep(self.seconds)
        finally:
            await self._count(-1)
        return answer

    async def at_work(self, inferences: int) -> None:
        """Return once so many are at work at the same time."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.busy >= inferences)

    async def _count(self, change: int) -> None:
        async with self._changed:
            self.busy += change
            self._changed.notify_all()
