"""What checkers make of batched generators: a call gives a stream, a map a list of streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator
from typing import assert_type

import carpool
from carpool import END, Stream


@carpool.batched
def words(prompts: list[str], *, limit: int = 3) -> Iterator[list[str]]:
    for _ in range(limit):
        yield [prompt.upper() for prompt in prompts]


@carpool.batched(max_batch_size=4)
def as_generator(prompts: list[str]) -> Generator[list[int], None, None]:
    yield [len(prompt) for prompt in prompts]


@carpool.batched
def as_iterable(prompts: list[str]) -> Iterable[list[int]]:
    yield [len(prompt) for prompt in prompts]


@carpool.batched
async def words_async(prompts: list[str], *, limit: int = 3) -> AsyncIterator[list[str]]:
    for _ in range(limit):
        yield [prompt.upper() for prompt in prompts]


@carpool.batched(max_batch_size=4)
async def as_async_generator(prompts: list[str]) -> AsyncGenerator[list[int], None]:
    yield [len(prompt) for prompt in prompts]


@carpool.batched
def that_end_early(prompts: list[str]) -> Iterator[list[str | carpool.End]]:
    yield [END if prompt == "" else prompt for prompt in prompts]


class Model:
    @carpool.batched
    def words(self, prompts: list[str]) -> Iterator[list[str]]:
        yield prompts

    @carpool.batched
    async def words_async(self, prompts: list[str]) -> AsyncIterator[list[str]]:
        yield prompts


async def of_generators() -> None:
    assert_type(words("a"), Stream[str])
    assert_type(words("a", limit=4), Stream[str])
    assert_type(as_generator("a"), Stream[int])
    assert_type(as_iterable("a"), Stream[int])
    assert_type(words_async("a", limit=4), Stream[str])
    assert_type(as_async_generator("a"), Stream[int])
    assert_type(words.map(["a"]), list[Stream[str]])
    assert_type(words_async.map(["a"], limit=2), list[Stream[str]])
    assert_type(words.using(timeout=1.0)("a"), Stream[str])
    for word in words("a"):
        assert_type(word, str)
    async for word in words_async("a"):
        assert_type(word, str)
    assert_type(that_end_early("a"), Stream[str])


async def of_methods() -> None:
    model = Model()
    assert_type(model.words("a"), Stream[str])
    assert_type(model.words.map(["a"]), list[Stream[str]])
    async for word in model.words_async("a"):
        assert_type(word, str)
