"""What checkers make of batched methods: `self` is bound, inheritance and class methods work."""

from __future__ import annotations

from typing import assert_type

import carpool


class Model:
    __slots__ = ("__weakref__", "factor")

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @carpool.batched
    def scale(self, numbers: list[int], *, offset: float = 0.0) -> list[float]:
        return [self.factor * number + offset for number in numbers]

    @carpool.batched(max_batch_size=4)
    async def scale_async(self, numbers: list[int], offset: float = 0.0) -> list[float]:
        return [self.factor * number + offset for number in numbers]

    @classmethod
    @carpool.batched
    def of_class(cls, numbers: list[int]) -> list[str]:
        return [cls.__name__ for _ in numbers]

    @staticmethod
    @carpool.batched
    def of_none(numbers: list[int]) -> list[bytes]:
        return [bytes(number) for number in numbers]


class Child(Model):
    @carpool.batched
    def more(self, texts: list[str]) -> list[int]:
        return self.scale_all(len(texts))

    def scale_all(self, count: int) -> list[int]:
        return [int(number) for number in self.scale.map(range(count)).result()]


async def of_instances() -> None:
    model = Model(2.0)
    assert_type(model.scale(1), carpool.Future[float])
    assert_type(model.scale(1, offset=1.0).result(), float)
    assert_type(await model.scale.map([1, 2], offset=1.0), list[float])
    assert_type(await model.scale.using(timeout=1.0)(1), float)
    assert_type(await model.scale_async(1, 2.0), float)
    assert_type(await model.scale_async.map([1], offset=2.0), list[float])
    assert_type(model.scale.stats(), carpool.Stats)
    assert_type(model.scale.close(), carpool.Future[None])


async def of_children() -> None:
    child = Child(2.0)
    assert_type(await child.scale(1), float)
    assert_type(await child.more("a"), int)


async def of_classes() -> None:
    assert_type(await Model.of_class(1), str)
    assert_type(await Model(1.0).of_class(1), str)


async def of_the_class_itself() -> None:
    model = Model(2.0)
    assert_type(await Model.scale(model, 1), float)
    assert_type(await Model.scale(model, 1, offset=2.0), float)
