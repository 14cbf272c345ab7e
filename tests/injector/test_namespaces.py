"""What is known of namespaces, and what happens where nothing is known."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from carpool_injector.api import calls
from carpool_injector.core import model
from carpool_injector.objects import review
from carpool_injector.webhook import cluster, metrics
from tests.injector import reviews

Told = dict[str, model.Namespace] | calls.Change


def listed(**labels: dict[str, str]) -> Told:
    return {name: model.Namespace(name, each) for name, each in labels.items()}


class Source:
    """A watch that the test feeds, and direct reads that the test answers."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[Told | None] = asyncio.Queue()
        self.stored: dict[str, model.Namespace] = {}
        self.delay = 0.0
        self.reads = 0
        self.at_once = 0
        self.most_at_once = 0

    async def watch_namespaces(self) -> AsyncIterator[Told]:
        while (change := await self.changes.get()) is not None:
            yield change

    async def read_namespace(self, name: str) -> model.Namespace:
        self.reads += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.delay)
            return self.stored[name]
        finally:
            self.at_once -= 1

    async def tell(self, *changes: Told | None) -> None:
        """Feeds the watch, and waits until all was taken."""
        for change in changes:
            self.changes.put_nowait(change)
        await reviews.until(self.changes.empty)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def following(source: Source) -> AsyncIterator[cluster.Namespaces]:
    subject = cluster.Namespaces(source, metrics.Metrics(), read_timeout=2.0)
    task = asyncio.create_task(subject.follow())
    try:
        yield subject
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_what_the_watch_told_is_answered_without_a_read() -> None:
    source = Source()
    async with following(source) as subject:
        assert "not known yet" in subject.missing()
        await source.tell(listed(models={"team": "a"}))
        assert subject.missing() == ""
        assert (await subject.get("models")).labels == {"team": "a"}
        changed = model.Namespace("models", {"team": "b"}, {"note": "x"})
        await source.tell(("models", changed))
        assert await subject.get("models") == changed
        assert source.reads == 0


async def test_a_namespace_that_the_watch_has_not_told_of_is_read_directly() -> None:
    source = Source()
    source.stored["new"] = model.Namespace("new", {"carpool.dev/inject": "true"})
    subject = cluster.Namespaces(source, metrics.Metrics())
    assert await subject.get("new") == source.stored["new"]


async def test_that_there_is_no_such_namespace_is_not_remembered() -> None:
    source = Source()
    async with following(source) as subject:
        await source.tell(listed())
        with pytest.raises(review.Unanswerable, match="namespace 'new' could not be read: KeyError"):
            await subject.get("new")
        source.stored["new"] = model.Namespace("new")
        assert (await subject.get("new")).name == "new"


async def test_a_deleted_namespace_is_forgotten() -> None:
    source = Source()
    async with following(source) as subject:
        await source.tell(listed(models={}), ("models", None))
        with pytest.raises(review.Unanswerable):
            await subject.get("models")


async def test_what_is_not_in_a_new_list_is_forgotten_too() -> None:
    source = Source()
    async with following(source) as subject:
        await source.tell(listed(models={}, other={}), ("new", model.Namespace("new")), listed(other={}))
        assert [*subject.known()] == ["other"]


@pytest.mark.looptime
async def test_a_read_that_takes_too_long_is_given_up() -> None:
    source = Source()
    source.delay = 100.0
    subject = cluster.Namespaces(source, metrics.Metrics(), read_timeout=2.0)
    start = asyncio.get_running_loop().time()
    with pytest.raises(review.Unanswerable, match="no answer within 2 s"):
        await subject.get("models")
    assert asyncio.get_running_loop().time() - start == pytest.approx(2.0, abs=0.1)


@pytest.mark.looptime
async def test_reads_at_once_are_bounded_however_many_reviews_ask() -> None:
    source = Source()
    source.delay = 0.1
    source.stored = {f"n{number}": model.Namespace(f"n{number}") for number in range(100)}
    subject = cluster.Namespaces(source, metrics.Metrics(), read_timeout=2.0)
    found = await asyncio.gather(*(subject.get(name) for name in source.stored))
    assert [each.name for each in found] == list(source.stored)
    assert source.most_at_once == 16
