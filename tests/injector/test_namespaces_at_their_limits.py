"""Namespaces when the watch has not told all, or reading one takes too long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from carpool_injector.api import calls
from carpool_injector.core import model
from carpool_injector.objects import review
from carpool_injector.webhook import cluster, metrics

Told = dict[str, model.Namespace] | calls.Change


class Source:
    """Watches that end by themselves, one list of changes each; reads that last."""

    def __init__(self, *watches: list[Told], delay: float = 0.0) -> None:
        self.watches = [*watches]
        self.delay = delay

    async def watch_namespaces(self) -> AsyncIterator[Told]:
        for change in self.watches.pop(0) if self.watches else []:
            yield change

    async def read_namespace(self, name: str) -> model.Namespace:
        await asyncio.sleep(self.delay)
        return model.Namespace(name)


async def followed(source: Source, seconds: float) -> cluster.Namespaces:
    subject = cluster.Namespaces(source, metrics.Metrics())
    task = asyncio.create_task(subject.follow())
    await asyncio.sleep(seconds)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return subject


@pytest.mark.looptime
async def test_a_cluster_without_namespaces_is_known_once_that_was_told() -> None:
    assert (await followed(Source([{}]), 0.1)).missing() == ""


@pytest.mark.looptime
async def test_some_namespaces_are_not_all_of_them() -> None:
    assert (await followed(Source([("models", model.Namespace("models"))]), 0.1)).missing() != ""


@pytest.mark.looptime
async def test_a_namespace_that_changed_after_all_were_told_is_kept() -> None:
    subject = await followed(Source([{}, ("models", model.Namespace("models", {"a": "b"}))]), 0.1)
    assert (await subject.get("models")).labels == {"a": "b"}


@pytest.mark.looptime
async def test_who_waits_for_a_turn_to_read_gives_up_in_the_same_time() -> None:
    subject = cluster.Namespaces(Source(delay=1.5), metrics.Metrics(), read_timeout=2.0)
    began = asyncio.get_running_loop().time()
    asked = [subject.get(f"n{number}") for number in range(17)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each).__name__ for each in found] == ["Namespace"] * 16 + ["Unanswerable"]
    assert asyncio.get_running_loop().time() - began == pytest.approx(2.0, abs=0.1)


async def test_what_is_said_of_a_namespace_that_cannot_be_read_is_short() -> None:
    class Broken(Source):
        async def read_namespace(self, name: str) -> model.Namespace:
            raise OSError("x" * 10_000)

    with pytest.raises(review.Unanswerable) as caught:
        await cluster.Namespaces(Broken(), metrics.Metrics()).get("models")
    assert len(str(caught.value)) < 400
