"""Objects with a batched method, for the systems that decorate methods: `make(adapter)` gives a maker of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def make(adapter: str) -> Callable[[], Any] | None:
    """What makes an object whose `acall(item)` is batched; None if the system has nothing of that kind."""
    maker = MAKERS.get(adapter)
    return maker() if maker else None


def _carpool_def() -> type:
    import carpool

    class Thing:
        @carpool.batched
        def acall(self, items: list[Any]) -> list[Any]:
            return items

    return Thing


def _carpool_async() -> type:
    import carpool

    class Thing:
        @carpool.batched
        async def acall(self, items: list[Any]) -> list[Any]:
            return items

    return Thing


def _batched_sync() -> type:
    import batched

    class Thing:
        @batched.dynamically
        def method(self, items: list[Any]) -> list[Any]:
            return items

        @property
        def acall(self) -> Any:
            return self.method.acall

    return Thing


def _batched_aio_def() -> type:
    import batched

    class Thing:
        @batched.aio.dynamically
        def acall(self, items: list[Any]) -> list[Any]:
            return items

    return Thing


def _batched_aio_async() -> type:
    import batched

    class Thing:
        @batched.aio.dynamically
        async def acall(self, items: list[Any]) -> list[Any]:
            return items

    return Thing


def _async_batcher() -> type:
    """The batcher is the object: its method is `process_batch`."""
    from async_batcher.batcher import AsyncBatcher

    class Thing(AsyncBatcher):  # type: ignore[misc, type-arg]
        async def process_batch(self, batch: list[Any]) -> list[Any]:
            return batch

        acall = AsyncBatcher.process

    return Thing


def _ray_serve() -> type:
    from ray import serve

    class Thing:
        @serve.batch
        async def acall(self, items: list[Any]) -> list[Any]:
            return items

    return Thing


MAKERS: dict[str, Callable[[], type]] = {
    "carpool_def": _carpool_def,
    "carpool_async": _carpool_async,
    "batched_sync": _batched_sync,
    "batched_aio_def": _batched_aio_def,
    "batched_aio_async": _batched_aio_async,
    "async_batcher_def": _async_batcher,
    "async_batcher_async": _async_batcher,
    "ray_serve": _ray_serve,
}
