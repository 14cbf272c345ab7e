"""Batched functions of arrays: many callers, each with any number of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import carpool
from carpool.functions.arrays import arrays
from tests import examples

PAD = {"input_ids": 0, "attention_mask": 0}


def tokens(rows: int, length: int) -> dict[str, Any]:
    ids = np.arange(1, rows * length + 1).reshape(rows, length)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def encode(batch: dict[str, Any]) -> dict[str, Any]:
    ids = batch["input_ids"]
    return {"hidden": np.stack([ids, -ids], 2), "sums": (ids * batch["attention_mask"]).sum(1)}


async def test_ragged_items_of_any_size_share_batches_and_get_what_they_would_get_alone() -> None:
    shapes = []

    def function(batch: dict[str, Any]) -> dict[str, Any]:
        shapes.append(batch["input_ids"].shape)
        return encode(batch)

    items = [tokens(1, 3), tokens(2, 5), tokens(20, 2), tokens(3, 4)]
    merge = arrays(pad=PAD, cut="hidden")
    async with carpool.batched(function, max_batch_size=8, merge=merge) as encoded:
        results = await asyncio.gather(*map(encoded, items))
    assert max(rows for rows, _ in shapes) == 8
    for result, item in zip(results, items, strict=True):
        alone = encode(item)
        assert list(result) == list(alone)
        assert all(np.array_equal(result[name], alone[name]) for name in alone)


def test_an_item_that_cannot_be_merged_fails_its_caller_before_it_is_queued() -> None:
    with carpool.batched(encode, merge=arrays(pad=PAD)) as encoded:
        odd = {"input_ids": np.ones((1, 2)), "attention_mask": np.ones((2, 2))}
        for call in (lambda: encoded(odd), lambda: encoded.map([tokens(1, 2), odd])):
            with pytest.raises(ValueError, match=r"item\['attention_mask'\] has shape \(2, 2\)"):
                call()
        assert not any(encoded.stats().batches.values())


def test_arrays_of_different_dtypes_never_share_a_batch() -> None:
    dtypes = []

    def double(batch: Any) -> Any:
        dtypes.append(batch.dtype)
        return 2 * batch

    with carpool.batched(double, max_latency=60, merge=arrays()) as doubled:
        futures = [doubled(np.ones((1, 2), dtype)) for dtype in (np.float32, np.float64, np.float32)]
    assert [future.result().dtype for future in futures] == [np.float32, np.float64, np.float32]
    assert sorted(map(str, dtypes)) == ["float32", "float64"]


def test_a_function_that_writes_to_its_batch_changes_no_item() -> None:
    def normalize(batch: Any) -> Any:
        batch /= 2
        return batch

    with carpool.batched(normalize, merge=arrays()) as normalized:
        item = np.ones((1, 2))
        assert normalized(item).result(timeout=10).tolist() == [[0.5, 0.5]]
    assert item.tolist() == [[1, 1]]


def test_an_item_whose_caller_changes_it_while_it_waits_harms_nobody() -> None:
    with carpool.batched(encode, max_latency=60, merge=arrays(pad=PAD)) as encoded:
        items = [tokens(1, 2), tokens(2, 2), tokens(1, 3)]
        futures = [encoded(item) for item in items]
        items[0].clear()
        items[1].update(tokens(3, 1))
    assert [future.result()["sums"].tolist() for future in futures] == [[3], [3, 7], [6]]


def test_a_wrong_number_of_rows_is_told_with_shapes_to_all_callers() -> None:
    with carpool.batched(lambda batch: batch[:-1], merge=arrays()) as shortened:
        for future in [shortened(np.ones((2, 3))), shortened(np.ones((2, 3)))]:
            with pytest.raises(carpool.WrongLength, match=r"output of shape \(\d, 3\), with \d rows along axis 0"):
                future.result(timeout=10)


def test_an_item_that_makes_the_function_raise_fails_alone() -> None:
    def root(batch: Any) -> Any:
        if (batch < 0).any():
            raise ValueError("negative")
        return np.sqrt(batch)

    with carpool.batched(root, max_latency=60, merge=arrays()) as rooted:
        good, bad, larger = [rooted(item) for item in (np.ones((1, 1)), -np.ones((2, 1)), np.ones((3, 1)))]
    assert good.result().tolist() == [[1]]
    assert larger.result().tolist() == [[1]] * 3
    with pytest.raises(ValueError, match="negative"):
        bad.result()


def test_results_of_one_item_that_do_not_go_together_are_a_wrong_result() -> None:
    widths: Iterator[int] = iter(range(1, 10))

    def odd(batch: Any) -> Any:
        return np.ones((len(batch), next(widths)))

    with (
        carpool.batched(odd, max_batch_size=4, merge=arrays(pad=0)) as widened,
        pytest.raises(carpool.WrongResult, match="cannot be joined, for parts of an item that is larger than a batch"),
    ):
        widened(np.ones((6, 1))).result(timeout=10)


@examples.examples(30)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4), st.booleans()), min_size=1, max_size=8),
    culprit=st.none() | st.integers(0, 7),
    max_batch_size=st.integers(1, 6),
    side=st.sampled_from(["right", "left"]),
)
def test_each_caller_gets_what_it_would_get_alone(
    sizes: list[tuple[int, int, bool]], culprit: int | None, max_batch_size: int, side: Any
) -> None:
    def function(batch: dict[str, Any]) -> dict[str, Any]:
        if (batch["input_ids"] < 0).any():
            raise ValueError("negative")
        assert len(batch["input_ids"]) <= max_batch_size
        return {**encode(batch), "lengths": batch["attention_mask"].sum(1).tolist()}

    merge = arrays(pad=PAD, side=side, cut=["hidden"])
    items = [tokens(rows, length) for rows, length, _ in sizes]
    for item, (_, _, is_narrow) in zip(items, sizes, strict=True):
        if is_narrow:
            item["input_ids"] = item["input_ids"].astype(np.int32)
    if culprit is not None and culprit < len(items):
        items[culprit]["input_ids"][-1:] = -1
    with carpool.batched(function, max_batch_size=max_batch_size, max_latency=60, merge=merge) as encoded:
        futures = [encoded(item) for item in items]
    for place, (future, item) in enumerate(zip(futures, items, strict=True)):
        if (item["input_ids"] < 0).any():
            with pytest.raises((ValueError, carpool.NotIsolated)):
                future.result()
        elif culprit is None or not isinstance(future.exception(), carpool.NotIsolated):
            alone, result = encode(item), future.result()
            assert result["lengths"] == item["attention_mask"].sum(1).tolist()
            for name in alone:
                np.testing.assert_array_equal(result[name], alone[name], strict=True, err_msg=f"item {place}")


class Letters:
    """Texts of letters, some of which cannot be cut."""

    def rows(self, item: str) -> int:
        return len(item)

    def join(self, items: Sequence[str]) -> str:
        return "".join(items)

    def split(self, output: str, counts: Sequence[int]) -> list[str]:
        if "-" in output:
            raise ValueError("a dash cannot be cut")
        letters = iter(output)
        return ["".join(next(letters) for _ in range(count)) for count in counts]


def test_an_item_that_cannot_be_cut_fails_alone() -> None:
    with carpool.batched(str.upper, max_batch_size=4, max_latency=60, merge=Letters()) as upper:
        futures = [upper(item) for item in ("ab", "c-defghij", "klmnopq", "r")]
    assert [futures[place].result() for place in (0, 2, 3)] == ["AB", "KLMNOPQ", "R"]
    with pytest.raises(ValueError, match="a dash cannot be cut"):
        futures[1].result()
