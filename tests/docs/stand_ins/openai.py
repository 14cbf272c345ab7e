"""A stand-in for OpenAI's client, which needs a key and a network: the same call, made-up embeddings."""

from __future__ import annotations

import dataclasses


class BadRequestError(Exception):
    """As the client raises it for an input that the API does not take."""


@dataclasses.dataclass
class _Embedding:
    embedding: list[float]


@dataclasses.dataclass
class _Answer:
    data: list[_Embedding]


class AsyncOpenAI:
    """Counts the `requests` made."""

    def __init__(self) -> None:
        self.requests = 0
        self.embeddings = self

    async def create(self, *, model: str, input: list[str]) -> _Answer:  # noqa: A002 # the client's own name
        self.requests += 1
        if any(not text for text in input):
            raise BadRequestError("an input is empty")
        return _Answer([_Embedding([float(len(text)), float(len(model))]) for text in input])
