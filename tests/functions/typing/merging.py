"""What checkers make of functions of merged items: one's own `Merge`, and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_type

import numpy
import numpy.typing

import carpool

Floats = numpy.typing.NDArray[numpy.float32]


@dataclass
class Text:
    lines: list[str]


class Lines:
    """A merge of one's own: texts are joined, and numbers of lines come back."""

    def rows(self, item: Text) -> int:
        return len(item.lines)

    def join(self, items: Sequence[Text]) -> Text:
        return Text([line for item in items for line in item.lines])

    def split(self, output: Text, counts: Sequence[int]) -> list[Text]:
        lines = iter(output.lines)
        return [Text([next(lines) for _ in range(count)]) for count in counts]


def count(text: Text, limit: int) -> Text:
    return Text(text.lines[:limit])


def total(batch: Floats, *, axis: int = 1) -> Floats:
    return numpy.asarray(batch.sum(axis=axis))


made = carpool.batched(count, merge=Lines())
made_of_arrays = carpool.batched(total, merge=carpool.arrays(), max_batch_size=4)
merge: carpool.Merge[Text, Text, Text, Text] = Lines()


@carpool.batched(merge=Lines())
def upper(text: Text, *, strip: bool = False) -> Text:
    return Text([line.upper() for line in text.lines])


@carpool.batched(merge=carpool.arrays(), max_batch_size=64)
def normalize(batch: Floats) -> Floats:
    return batch


@carpool.batched(merge=carpool.arrays(axis=0, pad={"input_ids": 0, "attention_mask": 0}, side="left"))
async def forward(inputs: dict[str, Floats], *, hidden: bool = False) -> dict[str, Floats]:
    return inputs


class Model:
    @carpool.batched(merge=carpool.arrays(pad=0))
    def forward(self, batch: Floats) -> tuple[Floats, Floats]:
        return batch, batch


async def of_merges() -> None:
    assert_type(upper(Text(["a"])), carpool.Future[Text])
    assert_type(await upper(Text(["a"]), strip=True), Text)
    assert_type(await upper.map([Text(["a"])]), list[Text])
    assert_type(await made(Text(["a"]), 3), Text)


async def of_arrays(batch: Floats) -> None:
    assert_type(normalize(batch), carpool.Future[Floats])
    assert_type(await normalize.map([batch]), list[Floats])
    assert_type(await made_of_arrays(batch, axis=0), Floats)
    assert_type(await forward({"input_ids": batch}, hidden=True), dict[str, Floats])
    assert_type(await Model().forward(batch), tuple[Floats, Floats])
    assert_type(await Model().forward.map([batch]), list[tuple[Floats, Floats]])


async def of_arrays_as_of_all_others(batch: Floats) -> None:
    assert_type(await normalize.using(timeout=1.0)(batch), Floats)
    assert_type(normalize.stats(), carpool.Stats)
    assert_type(await normalize.warm_up(batch), list[Any])
    assert_type(normalize.close(timeout=1.0), carpool.Future[None])
    normalize.configure(max_batch_size=8)
    async with normalize as function:
        assert_type(await function(batch), Floats)
    assert_type(await Model().forward.using(priority=1)(batch), tuple[Floats, Floats])
    assert_type(await Model().forward.warm_up(batch), list[Any])


def of_a_function_without_types(function: Any, batch: Floats) -> None:
    carpool.batched(merge=carpool.arrays())(function)(batch, axis=1)
