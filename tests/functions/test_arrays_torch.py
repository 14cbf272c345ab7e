"""Arrays of torch. Skipped where it is not installed; what holds for all libraries is tried with it as well."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest

from carpool.functions import merging
from carpool.functions.arrays import arrays

torch: Any = pytest.importorskip("torch", reason="torch is missing: install the predictor's extra 'minilm' to test it")

PAD = {"input_ids": 0, "attention_mask": 0}


def tokens(rows: int, length: int) -> dict[str, Any]:
    return {
        "input_ids": torch.arange(1, rows * length + 1).reshape(rows, length),
        "attention_mask": torch.ones(rows, length, dtype=torch.int64),
    }


class Encoder(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """Hidden states and their mean over the tokens that are there: padding must not change them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 8)

    def forward(self, input_ids: Any, attention_mask: Any) -> dict[str, Any]:
        hidden = self.embedding(input_ids)
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return {"last_hidden_state": hidden, "pooled": (hidden * weights).sum(1) / weights.sum(1)}


def test_a_model_gives_padded_items_in_another_thread_what_it_gives_each_alone() -> None:
    torch.manual_seed(1)
    encoder = Encoder().eval()
    merge = arrays(pad=PAD, cut="last_hidden_state")
    items = [tokens(1, 3), tokens(2, 7), tokens(1, 1)]
    counts = [merging.rows(merge, item) for item in items]
    assert len({merge.key(item) for item in items}) == 1

    def run() -> Any:
        with torch.inference_mode():
            return encoder(**merge.join(items))

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        output = thread.submit(run).result()
    for share, item in zip(merging.split(merge, output, counts, items), items, strict=True):
        with torch.inference_mode():
            alone = encoder(**item)
        assert torch.equal(share["last_hidden_state"], alone["last_hidden_state"])
        assert torch.allclose(share["pooled"], alone["pooled"])


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("bfloat16", 0.1),
        ("bfloat16", -1e38),
        ("float8_e4m3fn", 0.5),
        ("float16", float("-inf")),
        ("bool", True),
        ("int16", -1),
    ],
)
def test_dtypes_that_only_torch_has_are_kept_and_padded(name: str, number: Any) -> None:
    dtype = getattr(torch, name)
    merge = arrays(pad=number, cut=True)
    items = [torch.zeros(1, 2, dtype=dtype), torch.zeros(2, 3, dtype=dtype)]
    assert [merge.rows(item) for item in items] == [1, 2]
    batch = merge.join(items)
    assert batch.dtype == dtype
    assert batch[0, 2].to(torch.float64).item() == torch.tensor(number, dtype=dtype).to(torch.float64).item()
    assert [tuple(share.shape) for share in merge.split_for(batch, [1, 2], items)] == [(1, 2), (2, 3)]


@pytest.mark.parametrize(("name", "number"), [("uint8", -1), ("float16", 1e9), ("bfloat16", 1j), ("int64", 0.5)])
def test_padding_that_the_dtype_cannot_hold_is_refused(name: str, number: Any) -> None:
    with pytest.raises(ValueError, match=rf"dtype torch.{name}, which cannot hold pad="):
        arrays(pad=number).rows(torch.zeros(1, 2, dtype=getattr(torch, name)))


def test_a_tensor_that_takes_part_in_learning_is_refused() -> None:
    for tensor in (torch.nn.Parameter(torch.ones(1, 2)), torch.ones(1, 2, requires_grad=True) * 2):
        with pytest.raises(ValueError, match=r"item\['x'\] requires grad.*detach\(\) it"):
            arrays().rows({"x": tensor})
        assert arrays().rows({"x": tensor.detach()}) == 1


def test_a_tensor_that_is_not_dense_is_refused() -> None:
    for tensor, told in (
        (torch.ones(2, 2).to_sparse(), "is torch.sparse_coo; only dense tensors can be joined"),
        (torch.nested.as_nested_tensor([torch.ones(2), torch.ones(2)], layout=torch.jagged), "is nested"),
    ):
        with pytest.raises(ValueError, match=told):
            arrays().rows(tensor)


def test_tensors_on_two_devices_do_not_share_a_batch() -> None:
    merge = arrays(pad=0)
    here, elsewhere = torch.ones(1, 2), torch.ones(1, 2, device="meta")
    assert merge.key(here) != merge.key(elsewhere)
    assert merge.join([elsewhere, torch.ones(1, 3, device="meta")]).device.type == "meta"


def test_a_batch_of_one_is_not_the_callers_own_tensor() -> None:
    item = torch.ones(1, 2)
    arrays().join([item]).zero_()
    assert item.tolist() == [[1, 1]]


def test_tensors_made_in_inference_mode_are_joined_outside_of_it() -> None:
    with torch.inference_mode():
        items = [torch.ones(1, 2), torch.ones(1, 3)]
    for merge in (arrays(pad=0, cut=True), arrays(pad=0, side="left", cut=True)):
        assert [merge.rows(item) for item in items] == [1, 1]
        batch = merge.join(items)
        assert [share.shape[1] for share in merge.split_for(batch, [1, 1], items)] == [2, 3]


def test_what_torch_returns_under_names_keeps_its_type() -> None:
    output = torch.ones(3, 2).max(dim=1)
    one, two = arrays().split(output, [1, 2])
    assert type(one) is type(two) is type(output)
    assert two.values.tolist() == [1, 1]
