"""`carpool.arrays`: which items share a batch, what a batch and its shares are like, and what is refused."""

from __future__ import annotations

import collections
import tracemalloc
from collections.abc import Callable
from typing import Any, NamedTuple

import array_api_strict
import numpy as np
import pytest

from carpool.functions import errors, merging
from carpool.functions.arrays import arrays
from tests.functions import array_makers


class Pair(NamedTuple):
    ids: Any
    mask: Any


def tokens(*sentences: list[int], dtype: Any = np.int64) -> dict[str, Any]:
    """Sentences of equal length as a tokenizer gives them."""
    ids = np.array(sentences, dtype)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


PAD = {"input_ids": 9, "attention_mask": 0}


def go_together(merge: arrays, *items: Any) -> bool:
    for item in items:
        merge.rows(item)
    return len({merge.key(item) for item in items}) == 1


# --- who shares a batch -----------------------------------------------------------------------------------------


def test_items_with_any_numbers_of_rows_share_a_batch() -> None:
    assert go_together(arrays(), np.ones((1, 3)), np.ones((5, 3)))


def test_the_order_of_names_makes_no_difference() -> None:
    one = {"a": np.zeros((1, 2)), "b": np.ones(1)}
    other = {"b": np.ones(2), "a": np.zeros((2, 2))}
    assert go_together(arrays(), one, other)
    joined = arrays().join([one, other])
    assert list(joined) == ["a", "b"]
    assert joined["b"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "other",
    [
        np.ones((1, 3), np.float64),
        np.ones((1, 3), ">f4"),
        np.ones((1, 4), np.float32),
        np.ones((1, 3, 1), np.float32),
        np.ma.masked_array(np.ones((1, 3), np.float32)),
        array_api_strict.ones((1, 3), dtype=array_api_strict.float32),
        [np.ones((1, 3), np.float32)],
        (np.ones((1, 3), np.float32),),
        {"x": np.ones((1, 3), np.float32)},
    ],
    ids=["dtype", "byte order", "size", "axes", "type", "library", "list", "tuple", "dict"],
)
def test_nothing_is_converted_to_make_items_alike(other: Any) -> None:
    assert not go_together(arrays(), np.ones((1, 3), np.float32), other)


def test_arrays_on_two_devices_do_not_share_a_batch() -> None:
    one, two = (
        array_api_strict.ones((1, 2), device=array_api_strict.Device(name)) for name in ("CPU_DEVICE", "device1")
    )
    assert not go_together(arrays(), one, two)
    assert arrays().join([two, two]).device == two.device
    padded = arrays(pad=0).join([two, array_api_strict.ones((1, 3), device=two.device)])
    assert (padded.device, padded.shape) == (two.device, (2, 3))


def test_names_that_one_item_lacks_keep_it_from_the_others() -> None:
    assert not go_together(arrays(), {"a": np.ones(1), "b": np.ones(1)}, {"a": np.ones(1)})
    assert not go_together(arrays(), {"a": np.ones(1), "b": np.ones(1)}, {"a": np.ones(1), "b": None})


def test_only_arrays_that_pad_names_may_differ_in_size() -> None:
    merge = arrays(pad={"text": 0})
    item = {"text": np.ones((1, 3)), "image": np.ones((1, 8, 8))}
    assert go_together(merge, item, {"text": np.ones((1, 5)), "image": np.ones((1, 8, 8))})
    assert not go_together(merge, item, {"text": np.ones((1, 3)), "image": np.ones((1, 8, 9))})
    assert not go_together(merge, item, {"text": np.ones((1, 3, 1)), "image": np.ones((1, 8, 8))})


# --- the batch --------------------------------------------------------------------------------------------------


def test_a_batch_is_never_a_callers_own_array() -> None:
    for merge in (arrays(), arrays(pad=0)):
        item = {"x": np.arange(6).reshape(2, 3)}
        batch = merge.join([item])
        batch["x"][:] = -1
        assert item["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_each_array_is_copied_once_and_nothing_more() -> None:
    mebibyte = 1024 * 1024
    for merge, lengths in (
        (arrays(), [64] * 16),
        (arrays(pad=0), range(49, 65)),
        (arrays(pad=0, side="left"), [64, 32]),
    ):
        items = [np.ones((16, length, 1024)) for length in lengths]  # of at least 4 MiB
        rows = [len(item) for item in items]
        merge.join(items[:1])
        tracemalloc.start()
        try:
            batch = merge.join(items)
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            shares = merge.split(batch, rows)
            _, with_shares = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert batch.shape == (sum(rows), 64, 1024)
        # Threads of other tests may allocate meanwhile.
        assert batch.nbytes <= most < batch.nbytes + 2 * mebibyte
        assert with_shares < batch.nbytes + 2 * mebibyte
        assert len(shares) == len(items)


def test_padding_goes_right_or_left_as_said_for_all_or_by_name() -> None:
    items = [tokens([1, 2]), tokens([3, 4, 5], [6, 7, 8])]
    batch = arrays(pad=PAD, side={"input_ids": "left"}).join(items)
    assert batch["input_ids"].tolist() == [[9, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]


def test_numbers_that_are_equal_and_not_the_same_are_padded_with_as_they_are() -> None:
    long, short = ({"a": np.ones((1, size)), "b": np.ones((1, size))} for size in (2, 1))
    batch = arrays(pad={"a": 0.0, "b": -0.0}).join([long, short])
    assert [bool(np.signbit(batch[name][1, 1])) for name in "ab"] == [False, True]


def test_images_are_padded_along_both_axes() -> None:
    batch = arrays(pad=-1.0).join([np.ones((1, 3, 2, 1)), np.ones((1, 3, 1, 2))])
    assert batch[:, 0].tolist() == [[[1, -1], [1, -1]], [[1, 1], [-1, -1]]]


def test_rows_may_lie_along_another_axis() -> None:
    merge = arrays(axis=1, pad=0, cut=True)
    items = [np.ones((2, 1, 3)), np.ones((4, 2, 3))]
    assert [merge.rows(item) for item in items] == [1, 2]
    batch = merge.join(items)
    assert batch.shape == (4, 3, 3)
    assert [share.shape for share in merge.split_for(batch, [1, 2], items)] == [(2, 1, 3), (4, 2, 3)]


def test_a_name_is_the_innermost_key_or_else_the_outermost_position() -> None:
    def item(size: int) -> Any:
        array = np.ones((1, size))
        return ({"a": [array, array]}, Pair(array, array), [array])

    batch = arrays(pad={"a": 1, "ids": 2, "mask": 3, 2: 4}).join([item(1), item(2)])
    assert [array[0, 1] for array in (*batch[0]["a"], *batch[1], *batch[2])] == [1, 1, 2, 3, 4]


def test_what_is_none_stays_none() -> None:
    merge = arrays()
    items = [(np.ones(1), None), (np.ones(2), None)]
    assert go_together(merge, *items)
    batch = merge.join(items)
    assert batch[1] is None
    assert [share[1] for share in merge.split(batch, [1, 2])] == [None, None]


class Encoding(collections.UserDict[str, Any]):
    """A mapping that is no dict, as tokenizers give."""


def test_mappings_and_named_tuples_keep_their_types() -> None:
    for made in (Encoding(a=np.ones(1)), collections.OrderedDict(a=np.ones(1)), Pair(np.ones(1), np.ones(1))):
        batch = arrays().join([made, made])
        assert type(batch) is type(made)
        assert type(arrays().split(batch, [2])[0]) is type(made)


# --- numpy's own ------------------------------------------------------------------------------------------------


def test_dtypes_are_kept_to_their_byte_order_and_gaps() -> None:
    gaps = np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [0, 16], "itemsize": 32})
    for dtype in (np.dtype(">i4"), gaps, np.dtype("M8[ms]"), np.dtype("U3"), np.dtype(object)):
        joined = arrays().join([np.zeros(1, dtype), np.zeros(2, dtype)])
        assert (joined.dtype, joined.dtype.itemsize, joined.shape) == (dtype, dtype.itemsize, (3,))


def test_masked_arrays_keep_their_masks() -> None:
    items = [np.ma.masked_array([[1, 2]], [[0, 1]]), np.ma.masked_array([[3, 4, 5]], [[1, 0, 0]])]
    merge = arrays(pad=7, cut=True)
    batch = merge.join(items)
    assert batch.mask.tolist() == [[False, True, False], [True, False, False]]
    assert batch.data.tolist() == [[1, 2, 7], [3, 4, 5]]
    shares = merge.split_for(batch, [1, 1], items)
    assert [share.mask.tolist() for share in shares] == [[[False, True]], [[True, False, False]]]
    assert arrays().join([items[0], items[0]]).mask.tolist() == [[False, True]] * 2


def test_arrays_mapped_from_a_file_are_joined_in_memory(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "rows", np.int64, "w+", shape=(2, 2))
    joined = arrays().join([mapped, mapped])
    joined[:] = 1
    assert not mapped.any()


# --- the shares -------------------------------------------------------------------------------------------------


def test_outputs_may_be_arrays_and_lists_of_anything_among_each_other() -> None:
    output = {
        "logits": np.arange(6).reshape(3, 2),
        "labels": ["a", "b", "c"],
        "scores": [[0.5], [0.25], [0.125]],
        "states": (np.zeros((3, 1)), np.ones((3, 1))),
        "details": [{"a": 1}, {"a": 2}, {"a": 3}],
        "cache": None,
        "attentions": (),
    }
    one, two = arrays().split(output, [1, 2])
    assert two["logits"].tolist() == [[2, 3], [4, 5]]
    assert (one["labels"], two["labels"]) == (["a"], ["b", "c"])
    assert two["scores"] == [[0.25], [0.125]]
    assert two["details"] == [{"a": 2}, {"a": 3}]
    assert [state.shape for state in two["states"]] == [(2, 1), (2, 1)]
    assert (one["cache"], one["attentions"]) == (None, ())


def test_a_list_of_plain_rows_is_sliced() -> None:
    assert arrays().split(["a", "b", "c"], [2, 1]) == [["a", "b"], ["c"]]
    assert arrays().split(("a", "b", "c"), [2, 1]) == [("a", "b"), ("c",)]
    assert arrays().split(range(3), [2, 1]) == [range(2), range(2, 3)]
    assert arrays().split([np.float32(1), np.float32(2)], [1, 1]) == [[1], [2]]


def test_outputs_that_cut_names_are_as_long_as_their_items() -> None:
    merge = arrays(pad=PAD, cut="hidden")
    items = [tokens([1, 2]), tokens([3, 4, 5, 6], [7, 8, 9, 9])]
    # As many features as the padded batch is long: nothing is told by size.
    output = {"hidden": np.arange(48).reshape(3, 4, 4), "pooled": np.zeros((3, 4))}
    one, two = merging.split(merge, output, [1, 2], items)
    assert (one["hidden"].shape, one["pooled"].shape) == ((1, 2, 4), (1, 4))
    assert (two["hidden"].shape, two["pooled"].shape) == ((2, 4, 4), (2, 4))
    assert one["hidden"].tolist() == output["hidden"][:1, :2].tolist()


def test_outputs_are_cut_on_the_side_that_was_padded() -> None:
    merge = arrays(pad=0, side="left", cut=True)
    items = [np.array([[1, 2]]), np.array([[3, 4, 5]])]
    assert [share.tolist() for share in merge.split_for(merge.join(items), [1, 1], items)] == [[[1, 2]], [[3, 4, 5]]]


def test_an_output_may_follow_one_of_several_inputs() -> None:
    def item(source: int, target: int) -> dict[str, Any]:
        return {"source": np.ones((1, source)), "target": np.ones((1, target)), "bias": np.ones((1, 1))}

    merge = arrays(pad={"source": 0, "target": 0}, cut={"logits": "target", "encoded": "source"})
    items = [item(5, 2), item(3, 4)]
    assert go_together(merge, *items)
    output = {"logits": np.zeros((2, 4, 7)), "encoded": np.zeros((2, 5, 7))}
    shares = merge.split_for(output, [1, 1], items)
    assert [share["logits"].shape for share in shares] == [(1, 2, 7), (1, 4, 7)]
    assert [share["encoded"].shape for share in shares] == [(1, 5, 7), (1, 3, 7)]


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (np.ones((2, 4)), r"output of shape \(2, 4\), with 2 rows along axis 0, for a batch of 3 rows$"),
        ({"a": np.ones((3, 1)), "b": np.ones((4, 1))}, r"output\['b'\] of shape \(4, 1\), with 4 rows"),
        (["a", "b"], r"output with 2 members, for a batch of 3 rows"),
        ({"labels": ["a"]}, r"output\['labels'\] with 1 members, for a batch of 3 rows"),
        ([np.ones(5)] * 3, r"output\[0\] of shape \(5,\).*; to return one array for each row, stack them"),
        ([], "output with 0 members"),
    ],
)
def test_an_output_with_other_rows_than_its_batch_is_a_wrong_length(output: Any, told: str) -> None:
    with pytest.raises(errors.WrongLength, match=told):
        arrays().split(output, [1, 2])


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (None, "returned None"),
        (1.5, "returned a float"),
        ("abc", "returned a str"),
        ({1, 2, 3}, "returned a set"),
        ({}, "returned an empty dict"),
        (np.array(1.5), r"output of shape \(\), which has no axis 0 for rows"),
        ({"a": np.ones(3), "b": object()}, r"output\['b'\], which is an object"),
        (collections.deque([1, 2, 3]), "returned a deque"),
        (collections.defaultdict(int, a=np.ones(3)), "defaultdict cannot be made of its members alone"),
    ],
)
def test_an_output_without_rows_is_a_wrong_result(output: Any, told: str) -> None:
    with pytest.raises(errors.WrongResult, match=told) as caught:
        arrays().split(output, [1, 2])
    assert not isinstance(caught.value, errors.WrongLength)


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (["a", "b"], "a list, and nothing that cut names: 'hidden'"),
        ({"pooled": np.ones((2, 3))}, r"a dict of 'pooled': an? ndarray of shape \(2, 3\), and nothing that cut names"),
        ({"hidden": np.ones((2, 2, 4))}, r"output\['hidden'\] of shape \(2, 2, 4\).*should have the padded batch's 3"),
        ({"hidden": np.ones(2)}, r"output\['hidden'\] of shape \(2,\).*should have the padded batch's 3 along axis 1"),
    ],
)
def test_an_output_that_does_not_follow_the_padding_as_cut_says_is_a_wrong_result(output: Any, told: str) -> None:
    merge = arrays(pad=PAD, cut=["hidden"])
    with pytest.raises(errors.WrongResult, match=told):
        merge.split_for(output, [1, 1], [tokens([1, 2]), tokens([1, 2, 3])])


def test_results_of_parts_are_put_together_with_lists_and_without_padding() -> None:
    merge = arrays(pad=0)
    parts = [{"x": np.ones((1, 2)), "labels": ["a"]}, {"x": np.zeros((2, 2)), "labels": ["b", "c"]}]
    together = merging.rejoin(merge, parts)
    assert together["x"].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert together["labels"] == ["a", "b", "c"]
    with pytest.raises(errors.WrongResult, match=r"shape \(1, 2\), and an? ndarray of shape \(1, 3\).*named by cut"):
        merge.rejoin([np.ones((1, 2)), np.ones((1, 3))])


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "error", "told"),
    [
        (3, TypeError, "item is an int; an item may be arrays of numpy, torch"),
        ("text", TypeError, "item is a str"),
        ([1, 2], TypeError, "item is a list without arrays"),
        ([], TypeError, "item is a list without arrays"),
        ({}, TypeError, "item is a dict without arrays"),
        ({"a": None}, TypeError, "item is a dict without arrays"),
        ({"a": np.ones(1), "b": {"c": "x"}}, TypeError, r"item\['b'\]\['c'\] is a str"),
        ([np.ones(1), 5], TypeError, r"item\[1\] is an int"),
        (None, TypeError, "item is None"),
        (np.ndarray, TypeError, "item is a type"),
        (np.array(5), ValueError, r"item has shape \(\), which has no axis 0 for rows"),
        (np.zeros((0, 3)), ValueError, r"at least one row along axis 0: item has shape \(0, 3\)"),
        (
            {"a": np.ones((2, 3)), "b": [np.ones(3)]},
            ValueError,
            r"same number of rows along axis 0: item\['a'\] has shape \(2, 3\), item\['b'\]\[0\] has shape \(3,\)",
        ),
        (collections.defaultdict(int, a=np.ones(1)), TypeError, "defaultdict cannot be made of its members alone"),
    ],
)
def test_an_item_that_cannot_be_merged_is_refused_with_its_place_and_shape(
    item: Any, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        arrays().rows(item)


class Forgetful(collections.UserDict[str, Any]):
    """A mapping that makes something else of its members."""

    def __init__(self, members: Any = None) -> None:
        super().__init__()


def test_a_mapping_that_does_not_keep_its_members_is_refused() -> None:
    item = Forgetful()
    item["a"] = np.ones(1)
    with pytest.raises(TypeError, match="Forgetful cannot be made of its members alone"):
        arrays().rows(item)


def test_an_array_of_which_not_all_sizes_are_known_is_refused() -> None:
    lazy = array_makers.Immutable(np.ones((1, 2)))
    lazy.shape = (1, None)
    with pytest.raises(ValueError, match=r"item\['a'\] has shape \(1, None\), of which not all is known"):
        arrays().rows({"a": lazy})


def test_numbers_that_numpy_knows_from_another_package_can_be_padded() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype, number in (
        (ml_dtypes.bfloat16, 0.1),
        (ml_dtypes.float8_e4m3fn, 0.3),
        (ml_dtypes.bfloat16, float("nan")),
    ):
        items = [np.zeros((1, 2), dtype), np.zeros((1, 1), dtype)]
        merge = arrays(pad=number)
        assert go_together(merge, *items)
        batch = merge.join(items)
        assert batch.dtype == dtype
        np.testing.assert_equal(batch[1, 1], dtype(number))
    for dtype, number in ((ml_dtypes.int4, 8), (ml_dtypes.bfloat16, 1e300), (ml_dtypes.bfloat16, 1j)):
        with pytest.raises(ValueError, match="cannot hold pad="):
            arrays(pad=number).rows(np.zeros((1, 2), dtype))


def test_an_axis_that_an_array_does_not_have_is_refused() -> None:
    for axis in (2, -3):
        with pytest.raises(ValueError, match=rf"item has shape \(1, 2\), which has no axis {axis} for rows"):
            arrays(axis=axis).rows(np.ones((1, 2)))


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (-1, np.uint8),
        (256, np.uint8),
        (0.5, np.int64),
        (float("nan"), np.int32),
        (2, np.bool_),
        (-1e9, np.float16),
        (1j, np.float64),
        (10**400, np.float64),
        (0, "U3"),
        (0, "M8[s]"),
        (0, [("a", np.int8)]),
    ],
)
def test_padding_that_the_dtype_cannot_hold_is_refused(number: Any, dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"item has shape \(1, 2\) and dtype .*, which cannot hold pad="):
        arrays(pad=number).rows(np.zeros((1, 2), dtype))


@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (-1, np.int8),
        (0.1, np.float32),
        (float("-inf"), np.float16),
        (float("nan"), np.float64),
        (True, np.bool_),
        (1.0, np.int64),
        (np.int64(3), np.int8),
        (np.bool_(True), np.bool_),
        (2, np.complex64),
        (0, object),
    ],
)
def test_padding_that_the_dtype_can_hold_is_taken(number: Any, dtype: Any) -> None:
    merge = arrays(pad=number)
    items = [np.zeros((1, 2), dtype), np.zeros((1, 1), dtype)]
    assert go_together(merge, *items)
    np.testing.assert_equal(merge.join(items)[1, 1], np.array(number, dtype)[()])


def test_an_item_without_any_array_that_pad_names_is_refused() -> None:
    merge = arrays(pad={"input_ids": 0, "mask": 0})
    assert merge.rows({"input_ids": np.ones((1, 2))}) == 1
    for item in ({"inputs": np.ones((1, 2))}, np.ones((1, 2))):
        with pytest.raises(
            ValueError, match=r"pad names 'input_ids', 'mask', none of which is there: item.* has shape"
        ):
            merge.rows(item)


def test_an_item_of_which_an_output_cannot_be_cut_is_refused() -> None:
    item = {"source": np.ones((1, 5)), "target": np.ones((1, 2))}
    with pytest.raises(
        ValueError, match=r"differ along axis 1, so cut must say which .*item\['source'\] has shape \(1, 5\)"
    ):
        arrays(pad=0, cut="logits").rows(item)
    with pytest.raises(ValueError, match=r"cut names 'prompt', which is not there: item\['source'\]"):
        arrays(pad=0, cut={"logits": "prompt"}).rows(item)


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda: arrays("0"), TypeError, "axis must be a whole number, not '0'"),  # type: ignore[arg-type]
        (lambda: arrays(True), TypeError, "axis must be a whole number, not True"),
        (lambda: arrays(pad="0"), TypeError, "pad must be a number, or a dict of such by the names of arrays, not '0'"),
        (lambda: arrays(pad={"a": None}), TypeError, r"pad\['a'\] must be a number, not None"),
        (lambda: arrays(pad={}), ValueError, r"pad must name at least one array, not \{\}"),
        (lambda: arrays(pad=0, side="up"), ValueError, "side must be 'right' or 'left', or a dict of .*, not 'up'"),
        (lambda: arrays(pad=0, side={"a": 1}), ValueError, r"side\['a'\] must be 'right' or 'left', not 1"),
        (
            lambda: arrays(pad={"a": 0}, side={"b": "left"}),
            ValueError,
            "side names 'b', which pad does not; it names 'a'",
        ),
        (lambda: arrays(side="left"), ValueError, "side='left' says where padding goes, and pad is not given"),
        (lambda: arrays(cut=True), ValueError, "cut=True names .*, and pad is not given"),
        (lambda: arrays(pad=0, cut=3), TypeError, "cut must be True or False, names of outputs, .*, not 3"),
        (lambda: arrays(pad={"a": 0}, cut={"y": "b"}), ValueError, "cut names 'b', which pad does not; it names 'a'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(
    make: Callable[[], arrays], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        make()


def test_options_can_be_read() -> None:
    assert repr(arrays(pad={"a": 0})) == "carpool.arrays(axis=0, pad={'a': 0}, side='right', cut=False)"
