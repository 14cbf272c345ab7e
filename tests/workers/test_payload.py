"""What travels between processes: arrays beside the pickle, exceptions with their tracebacks, tensors on the CPU."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from carpool.workers import errors, payload

from . import models


def sent(value: Any) -> Any:
    """What arrives."""
    there = payload.dump(value)
    return payload.load(payload.Payload([*there.pieces], [bytearray(buffer) for buffer in there.buffers]))


def pickled_size(value: Any) -> int:
    return sum(map(len, payload.dump(value).pieces))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(1_000_000, dtype=np.float32),
        np.arange(1_000_000, dtype=np.int16).reshape(1000, 1000),
        np.asfortranarray(np.arange(1_000_000.0).reshape(1000, 1000)),
    ],
)
def test_the_bytes_of_an_array_are_no_part_of_the_pickle(array: np.ndarray[Any, Any]) -> None:
    items = [array, {"pixels": array}]
    assert pickled_size(items) < 1000
    assert payload.dump(array).buffers[0].obj is not None  # type: ignore[union-attr] # the array's own memory
    assert np.shares_memory(np.frombuffer(payload.dump(array).buffers[0], np.uint8), array)
    for arrived in (sent(items)[0], sent(items)[1]["pixels"]):
        assert arrived.dtype == array.dtype
        assert np.array_equal(arrived, array)
        assert arrived.flags.writeable


def test_small_arrays_travel_in_the_pickle_and_arrive_writable() -> None:
    array = np.arange(10)
    assert payload.dump([array]).buffers == []
    arrived = sent([array])[0]
    assert arrived.tolist() == list(range(10))
    assert arrived.flags.writeable


def test_large_bytes_are_passed_on_as_they_are() -> None:
    text = b"x" * 1_000_000
    assert any(piece is text for piece in payload.dump([text]).pieces)
    assert sent([text]) == [text]


def test_an_exception_brings_its_traceback_as_cause() -> None:
    try:
        raise ValueError("a bad value")
    except ValueError as error:
        arrived = sent(error)
    assert type(arrived) is ValueError
    assert arrived.args == ("a bad value",)
    assert "raise ValueError" in str(arrived.__cause__)


@pytest.mark.parametrize("error", [models.Odd(1, 2), models.Stubborn("mule")])
def test_an_exception_that_cannot_be_pickled_arrives_as_its_words(error: Exception) -> None:
    arrived = sent([error])[0]
    assert type(arrived) is errors.RemoteError
    assert str(arrived).endswith(f"{type(error).__name__}: {error}")


def test_an_exception_whose_words_fail_still_arrives() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "Silent" in str(sent(Silent()))


def test_what_cannot_be_pickled_raises() -> None:
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        payload.dump(lambda: None)


# --- torch, where it is installed -------------------------------------------------------------------------------


def test_the_bytes_of_a_tensor_are_no_part_of_the_pickle() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(1_000_000, dtype=torch.float32).reshape(1000, 1000)
    assert pickled_size([tensor]) < 1000
    assert torch.equal(sent([tensor])[0], tensor)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "bool", "int64", "complex64", "uint8"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (2, 5)])
def test_tensors_of_every_type_and_shape_arrive_as_they_were(kind: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(shape, dtype=getattr(torch, kind))
    arrived = sent(tensor)
    assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(arrived, tensor)


def test_a_view_of_a_tensor_brings_no_more_than_its_own_bytes() -> None:
    torch = pytest.importorskip("torch")
    view = torch.arange(1_000_000).reshape(1000, 1000)[:, :10]
    (buffer,) = payload.dump(view).buffers
    assert len(buffer) == 80_000
    assert torch.equal(sent(view), view)


def test_gradients_stay_behind() -> None:
    torch = pytest.importorskip("torch")
    weights = torch.nn.Parameter(torch.ones(3))
    assert sent(weights * 2).requires_grad is False
    assert sent(weights).tolist() == [1.0, 1.0, 1.0]
