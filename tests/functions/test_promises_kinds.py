"""What is decorated says itself what it is, and a batched function that belongs to an object goes where that goes."""

from __future__ import annotations

import abc
import asyncio
import copy
import functools
import pickle
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

import carpool
from tests.functions.ways import PATIENCE, double, outcome


class Embedder:
    """A callable object with an attribute that worker processes have as well."""

    def __init__(self, factor: int = 2) -> None:
        self.factor, self.workers = factor, 4

    def __call__(self, items: list[int]) -> list[int]:
        return [self.factor * item for item in items]


class Model:
    """An object that batches a method of its own."""

    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.predict = carpool.batched(self.predict_all)

    def predict_all(self, items: list[int]) -> list[int]:
        return [self.factor * item for item in items]

    @carpool.batched
    def method(self, items: list[int]) -> list[int]:
        return [self.factor * item for item in items]


batched_double = carpool.batched(double)


@carpool.batched
def named(items: list[int]) -> list[int]:
    return items


@pytest.mark.parametrize(
    "function",
    [
        Embedder(),
        Embedder().__call__,
        functools.partial(lambda factor, items: [factor * item for item in items], 2),
        mock.Mock(side_effect=double),
        mock.AsyncMock(side_effect=double),
    ],
    ids=["callable", "bound method", "partial", "mock", "mock of a coroutine function"],
)
def test_what_can_be_called_is_asked_by_calling_it(function: Any) -> None:
    assert outcome(carpool.batched(function)(3)) == 6


def test_a_function_that_runs_the_coroutine_function_it_wraps_is_a_plain_function() -> None:
    async def load(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return double(items)

    @functools.wraps(load)
    def run(items: list[int]) -> list[int]:
        return asyncio.run(load(items))

    assert outcome(carpool.batched(run)(3)) == 6


def test_a_function_that_lists_what_a_generator_yields_is_a_plain_function() -> None:
    def steps(items: list[int]) -> Iterator[int]:
        yield from double(items)

    @functools.wraps(steps)
    def as_list(items: list[int]) -> list[int]:
        return list(steps(items))

    function: Any = carpool.batched(as_list)
    assert isinstance(function, carpool.Batched)
    assert outcome(function(3)) == 6


def test_a_plain_function_that_returns_a_coroutine_is_told_what_to_decorate() -> None:
    async def load(items: list[int]) -> list[int]:
        return items

    @functools.wraps(load)
    def passes_on(items: list[int]) -> Any:
        return load(items)

    assert "decorate the coroutine function itself" in str(outcome(carpool.batched(passes_on)(3)))


def test_an_abstract_method_stays_abstract() -> None:
    class Base(abc.ABC):
        @carpool.batched
        @abc.abstractmethod
        def predict(self, items: list[int]) -> list[int]: ...

    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]


def test_a_copy_of_an_object_has_batched_methods_of_its_own() -> None:
    model = Model(2)
    twin = copy.deepcopy(model)
    twin.factor = 10
    assert [outcome(each.predict(1)) for each in (model, twin)] == [2, 10]
    assert outcome(copy.deepcopy({"f": twin.method.using(timeout=PATIENCE)})["f"](1)) == 10


def test_a_copy_of_what_belongs_to_no_object_is_the_same_function() -> None:
    local = carpool.batched(lambda items: items)
    assert copy.deepcopy(named) is copy.copy(named) is named
    assert copy.deepcopy({"f": local})["f"] is local


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (named, 3),
        (named.using(timeout=PATIENCE, priority=1), 3),
        (batched_double, 6),
        (carpool.batched(Embedder(3)), 9),
        (Model(3).method, 9),
        (Model(3).method.using(timeout=PATIENCE), 9),
    ],
    ids=["named", "view", "another name", "callable", "method", "view of a method"],
)
def test_what_can_be_pickled_plain_can_be_pickled_batched(function: Any, expected: int) -> None:
    found = pickle.loads(pickle.dumps(function))
    assert outcome(found(3)) == expected
    assert (found._timeout, found._priority) == (function._timeout, function._priority)
    assert pickle.loads(pickle.dumps(named)) is named


def test_methods_of_one_object_are_equal_as_pythons_own_are() -> None:
    model, other = Model(1), Model(1)
    assert model.method == model.method
    assert len({model.method, model.method, other.method, model.method.using(timeout=1)}) == 3
