"""What checkers make of batched functions: items, results and the other parameters are those of the function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, assert_type

import carpool

Vector = list[float]


@carpool.batched
def embed(texts: list[str], *, normalize: bool = True) -> list[Vector]:
    return [[float(len(text))] if normalize else [] for text in texts]


@carpool.batched(
    max_batch_size=8, max_latency=0.005, timeout=1.0, isolate=(ValueError,), cache=carpool.LRU[Any, Any](100, 60.0)
)
def with_options(texts: list[str], language: str, *, limit: int = 3) -> list[int]:
    return [limit for _ in texts]


@carpool.batched
async def embed_async(texts: list[str], *, normalize: bool = True) -> list[Vector]:
    return [[0.0] for _ in texts]


@carpool.batched(max_in_flight=2)
async def with_options_async(texts: list[str], language: str, *, limit: int = 3) -> list[int]:
    return [limit for _ in texts]


@carpool.batched
def of_a_sequence(numbers: Sequence[int]) -> Sequence[str]:
    return [str(number) for number in numbers]


@carpool.batched
def to_a_tuple(numbers: list[int]) -> tuple[str, ...]:
    return tuple(str(number) for number in numbers)


@carpool.batched
def with_failures(numbers: list[int]) -> list[str | ValueError]:
    return [ValueError(number) if number < 0 else str(number) for number in numbers]


@carpool.batched
def nothing(numbers: list[int]) -> list[None]:
    return [None for _ in numbers]


def plain(numbers: list[int]) -> list[bytes]:
    return [bytes(number) for number in numbers]


async def plain_async(numbers: list[int]) -> list[bytes]:
    return [bytes(number) for number in numbers]


made = carpool.batched(plain, max_batch_size=4)
made_async = carpool.batched(plain_async, name="made")


def of_functions() -> None:
    assert_type(embed("a"), carpool.Future[list[float]])
    assert_type(embed("a").result(), list[float])
    assert_type(embed("a", normalize=False).result(timeout=1), list[float])
    assert_type(embed.map(["a", "b"]), carpool.Future[list[list[float]]])
    assert_type(embed.map(["a", "b"], normalize=False).result(), list[list[float]])
    assert_type(embed.map(text for text in "ab").result(), list[list[float]])
    assert_type(with_options("a", "en"), carpool.Future[int])
    assert_type(with_options("a", language="en", limit=4), carpool.Future[int])
    assert_type(with_options.map(["a"], "en", limit=4), carpool.Future[list[int]])
    assert_type(of_a_sequence(1), carpool.Future[str])
    assert_type(to_a_tuple(1), carpool.Future[str])
    assert_type(nothing(1), carpool.Future[None])
    assert_type(made(1), carpool.Future[bytes])
    assert_type(made.map([1]), carpool.Future[list[bytes]])


async def of_async_functions() -> None:
    assert_type(embed_async("a"), carpool.Future[list[float]])
    assert_type(await embed_async("a"), list[float])
    assert_type(await embed_async.map(["a"], normalize=False), list[list[float]])
    assert_type(await with_options_async("a", "en"), int)
    assert_type(await made_async(1), bytes)
    assert_type(await embed("a"), list[float])
    assert_type(made_async(1).result(1.0), bytes)


async def of_views() -> None:
    patient = embed.using(timeout=3.0, priority=1)
    assert_type(patient("a", normalize=False), carpool.Future[list[float]])
    assert_type(await patient.map(["a"]), list[list[float]])
    assert_type(embed.using(timeout=None).using(priority=2)("a").result(), list[float])
    both = embed.using(timeout=1.0, return_exceptions=True)
    assert_type(await both.map(["a"], normalize=False), list[list[float] | BaseException])
    assert_type(await both("a"), list[float])
    assert_type(await embed.using(return_exceptions=False).map(["a"]), list[list[float]])


async def of_the_rest() -> None:
    embed.configure(max_batch_size=4, max_latency=None, slo=None, timeout=1.0)
    assert_type(embed.stats(), carpool.Stats)
    assert_type(embed.__name__, str)
    assert_type(embed.__wrapped__(["a"]), Any)
    assert_type(embed.close(), carpool.Future[None])
    assert_type(embed.close(timeout=1.0).result(), None)
    with carpool.batched(plain) as function:
        assert_type(function(1).result(), bytes)
    async with carpool.batched(plain_async, max_batch_size=3) as async_function:
        assert_type(await async_function(1), bytes)
    with carpool.inline():
        assert_type(embed("a").result(), list[float])
    future = embed("a")
    assert_type(future.cancel(), bool)
    assert_type(future.exception(), BaseException | None)


async def of_errors() -> None:
    try:
        await embed("a")
    except carpool.Overloaded as error:
        assert_type(error.retry_after, int | None)
    except TimeoutError as error:
        assert_type(error, TimeoutError)
    except (carpool.Closed, carpool.BatchFailed) as error:
        assert_type(error, carpool.Closed | carpool.BatchFailed)


Item = TypeVar("Item")


def twice(function: carpool.Batched[..., Item, str], item: Item) -> carpool.Future[list[str]]:
    """Batched functions can be named in annotations."""
    return function.map([item, item])


def of_annotations() -> None:
    assert_type(twice(of_a_sequence, 1).result(), list[str])
    mode: Literal["a", "b"] = "a"
    anything: Any = embed(mode)
    assert_type(anything, Any)
