"""What always holds for arrays that are joined and split, with any of the libraries."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.functions import merging
from carpool.functions.arrays import arrays
from tests.functions import array_makers

each_library = pytest.mark.parametrize("maker", array_makers.MAKERS.values(), ids=array_makers.MAKERS)


class Pair(NamedTuple):
    left: Any
    right: Any


class Encoding(collections.UserDict[str, Any]):
    """A mapping that is no dict, as tokenizers give."""


class Spec(NamedTuple):
    """An array of a structure: its dtype, and its sizes but for the rows."""

    dtype: str
    sizes: tuple[int, ...]


specs = st.builds(Spec, st.sampled_from(array_makers.DTYPES), st.lists(st.integers(0, 3), max_size=2).map(tuple))
names = st.sampled_from(["input_ids", "mask", "pixels"])
structures = st.recursive(
    specs,
    lambda inner: st.one_of(
        st.dictionaries(names, inner, min_size=1),
        st.dictionaries(names, inner, min_size=1).map(Encoding),
        st.lists(inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=4,
)
row_counts = st.lists(st.integers(1, 4), min_size=1, max_size=5)
seeds = st.integers(0, 2**32 - 1)


def random_array(spec: Spec, rows: int, axis: int, random: np.random.Generator) -> Any:
    shape = list(spec.sizes)
    place = axis if axis >= 0 else len(shape) + 1 + axis
    shape.insert(place, rows)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    # Any bits at all, NaNs of every kind among them.
    return np.frombuffer(random.bytes(dtype.itemsize * int(np.prod(shape))), dtype).reshape(shape)


def built(structure: Any, make: Any) -> Any:
    """A structure with something made of each of its arrays."""
    if isinstance(structure, Spec) or not isinstance(structure, dict | collections.UserDict | list | tuple):
        return make(structure)
    if isinstance(structure, dict | collections.UserDict):
        return type(structure)({name: built(member, make) for name, member in structure.items()})
    members = [built(member, make) for member in structure]
    return Pair(*members) if isinstance(structure, Pair) else type(structure)(members)


def flat(structure: Any) -> list[tuple[Any, Any]]:
    """The arrays of a structure, each with the types and places on the way to it."""
    found: list[tuple[Any, Any]] = []

    def collect(value: Any, way: tuple[Any, ...]) -> None:
        if isinstance(value, dict | collections.UserDict):
            for name in sorted(value):
                collect(value[name], (*way, type(value), name))
        elif isinstance(value, list | tuple):
            for place, member in enumerate(value):
                collect(member, (*way, type(value), place))
        else:
            found.append((way, value))

    collect(structure, ())
    return found


def same(one: Any, other: Any, maker: array_makers.Maker) -> bool:
    mine, yours = flat(one), flat(other)
    return [way for way, _ in mine] == [way for way, _ in yours] and all(
        type(left) is type(right)
        and getattr(left, "device", None) == getattr(right, "device", None)
        and array_makers.equal_bits(maker.plain(left), maker.plain(right))
        for (_, left), (_, right) in zip(mine, yours, strict=True)
    )


@each_library
@given(structure=structures, counts=row_counts, axis=st.sampled_from([0, -1]), seed=seeds)
def test_each_item_comes_back_bit_for_bit_from_a_batch(
    maker: array_makers.Maker, structure: Any, counts: list[int], axis: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    merge = arrays(axis=axis)
    items = [built(structure, lambda spec, n=n: maker.made(random_array(spec, n, axis, random))) for n in counts]
    taken = [merging.taken(merge, item) for item in items]
    assert [rows for rows, _, _ in taken] == counts
    assert len({key for _, key, _ in taken}) == 1
    assert all(same(kept, item, maker) for (_, _, kept), item in zip(taken, items, strict=True))
    shares = merging.split(merge, merge.join(items), counts, items)
    assert all(same(share, item, maker) for share, item in zip(shares, items, strict=True))


@each_library
@given(structure=structures, counts=row_counts, axis=st.sampled_from([0, -1]), seed=seeds)
def test_an_item_that_is_cut_comes_back_bit_for_bit_from_its_parts(
    maker: array_makers.Maker, structure: Any, counts: list[int], axis: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    merge = arrays(axis=axis)
    item = built(structure, lambda spec: maker.made(random_array(spec, sum(counts), axis, random)))
    parts = merge.split(item, counts)
    assert [merge.rows(part) for part in parts] == counts
    assert same(merging.rejoin(merge, parts), item, maker)


@each_library
@given(
    dtypes=st.dictionaries(names, st.sampled_from(array_makers.DTYPES), min_size=1),
    wide=st.booleans(),
    sizes=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5),
    axis=st.sampled_from([0, 1, -1]),
    side=st.sampled_from(["right", "left"]),
    number=st.sampled_from([0, 1, True]),
    seed=seeds,
)
def test_padded_items_are_cut_back_bit_for_bit_and_lie_among_nothing_but_padding(
    maker: array_makers.Maker,
    dtypes: dict[str, str],
    wide: bool,
    sizes: list[tuple[int, int, int]],
    axis: int,
    side: Any,
    number: Any,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    merge = arrays(axis=axis, pad=dict.fromkeys(dtypes, number), side=side, cut={name: name for name in dtypes})
    counts = [rows for rows, _, _ in sizes]
    items = [
        {
            name: maker.made(random_array(Spec(dtype, (length, width) if wide else (length,)), rows, axis, random))
            for name, dtype in dtypes.items()
        }
        for rows, length, width in sizes
    ]
    taken = [merging.taken(merge, item) for item in items]
    assert [rows for rows, _, _ in taken] == counts
    assert len({key for _, key, _ in taken}) == 1
    assert all(same(kept, item, maker) for (_, _, kept), item in zip(taken, items, strict=True))
    batch = merge.join(items)
    shares = merging.split(merge, batch, counts, items)
    assert all(same(share, item, maker) for share, item in zip(shares, items, strict=True))
    for name in dtypes:
        ones = [np.ones_like(maker.plain(item[name]), dtype=bool) for item in items]
        inside = arrays(axis=axis, pad=False, side=side).join(ones)
        assert np.all(maker.plain(batch[name])[~inside] == number)
