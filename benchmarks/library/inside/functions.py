"""The functions that are batched, each as `def` and as `async def`. The well-behaved answer each item with itself."""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import Callable
from typing import Any

Function = Callable[[list[Any]], Any]

SLOW = 0.05
"""Seconds that a function with a fault takes for a batch, so that callers meet in one and can leave it."""

watchers: list[Callable[[list[Any]], None]] = []
"""Called by functions with a fault, in their own thread or task, with the items that they got."""


class Spoilt(ValueError):
    """What a function raises for an item that it cannot take."""


SENTENCES = pathlib.Path(__file__).parents[2] / "sentences.txt"


def make(fixed: float, per_item: float, fault: str = "") -> tuple[Function, Function]:
    """`def` and `async def` that take `fixed` seconds and `per_item` for each item; with 0 and 0 they just return.

    With a fault, a name in `FAULTS`, they take SLOW and then misbehave; "minilm" is no fault but a model.
    """
    if fault == "minilm":
        return _minilm()
    if fault:
        return _slow(FAULTS[fault], lambda items: SLOW)
    if fixed or per_item:
        work, async_work = _slow(list, lambda items: fixed + per_item * len(items))
        return work, _serial(async_work)
    return _echo, _async_echo


def _slow(end: Function, seconds: Callable[[list[Any]], float]) -> tuple[Function, Function]:
    def work(items: list[Any]) -> Any:
        time.sleep(seconds(items))
        return end(items)

    async def async_work(items: list[Any]) -> Any:
        await asyncio.sleep(seconds(items))
        return end(items)

    return work, async_work


def _serial(async_work: Function) -> Function:
    """One batch after another, as a device works, however many are begun."""
    device = asyncio.Lock()

    async def one_at_a_time(items: list[Any]) -> Any:
        async with device:
            return await async_work(items)

    return one_at_a_time


def _echo(items: list[Any]) -> list[Any]:
    return items


async def _async_echo(items: list[Any]) -> list[Any]:
    return items


def _minilm() -> tuple[Function, Function]:
    """Embeds the sentence that an item numbers, on one thread, and answers with the item."""
    from carpool_predictor.models import minilm

    model = minilm.MiniLM("cpu", 1)
    model.load()
    model.warm_up()
    sentences = SENTENCES.read_text().splitlines()

    def work(items: list[Any]) -> list[Any]:
        model.predict([sentences[item % len(sentences)] for item in items])
        return list(items)

    async def async_work(items: list[Any]) -> list[Any]:
        return await asyncio.to_thread(work, items)

    return work, async_work


def nothing(items: list[Any]) -> list[Any]:
    """No fault: just slow."""
    for watch in watchers:
        watch(list(items))
    return list(items)


def exits(items: list[Any]) -> list[Any]:
    """SystemExit for a batch with item 0."""
    if 0 in items:
        raise SystemExit(3)
    return list(items)


def raises(items: list[Any]) -> list[Any]:
    """An exception for every batch."""
    raise Spoilt("no")


def dislikes(items: list[Any]) -> list[Any]:
    """An exception for a batch with item 3."""
    if 3 in items:
        raise Spoilt("no")
    return list(items)


def shortens(items: list[Any]) -> list[Any]:
    """One result too few."""
    return list(items)[:-1]


FAULTS: dict[str, Function] = {each.__name__: each for each in (nothing, exits, raises, dislikes, shortens)}
