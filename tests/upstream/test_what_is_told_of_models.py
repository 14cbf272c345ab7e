"""What is read from a predictor's words about its models, and what is not believed."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from carpool_sidecar import errors
from carpool_sidecar.protocols import models
from carpool_sidecar.upstream import model_questions

METADATA = {
    "name": "m",
    "versions": ["1"],
    "platform": "python",
    "inputs": [{"name": "a", "datatype": "FP32", "shape": [-1, 3]}, {"name": "b", "datatype": "BYTES", "shape": [-1]}],
    "outputs": [{"name": "y", "datatype": "INT64", "shape": [-1, -1]}],
}
CONFIG: dict[str, Any] = {
    "name": "m",
    "max_batch_size": 8,
    "input": [
        {"name": "a", "data_type": "TYPE_FP32", "dims": [3], "is_shape_tensor": False, "optional": False},
        {"name": "b", "data_type": "TYPE_STRING", "dims": ["1"], "reshape": {"shape": []}, "optional": True},
    ],
    "output": [{"name": "y", "data_type": "TYPE_INT64", "dims": [-1]}],
    "instance_group": [{"name": "m_0", "count": 1}],
}


def read(metadata: Any = METADATA, config: Any = None) -> models.ModelInfo:
    written = None if config is None else json.dumps(config).encode()
    return model_questions.model_info(json.dumps(metadata).encode(), written)


def test_metadata_alone_tells_of_tensors_but_not_of_batches() -> None:
    assert read() == models.ModelInfo(
        (models.TensorSpec("a", "FP32", (-1, 3)), models.TensorSpec("b", "BYTES", (-1,))),
        (models.TensorSpec("y", "INT64", (-1, -1)),),
    )


def test_a_configuration_tells_of_the_largest_batch_and_of_inputs_that_may_be_left_out() -> None:
    info = read(config=CONFIG)
    assert (info.max_batch_size, info.is_stateful, info.is_decoupled) == (8, False, False)
    assert [spec.is_optional for spec in info.inputs] == [False, True]
    assert [spec.shape for spec in info.inputs] == [(-1, 3), (-1,)]
    assert info.objection() is None


@pytest.mark.parametrize(
    ("more", "objection"),
    [
        ({"max_batch_size": 0}, "no_batch_dimension"),
        ({"max_batch_size": "16"}, None),
        ({"sequence_batching": {}}, "sequence"),
        ({"sequence_batching": {"max_sequence_idle_microseconds": "1000"}}, "sequence"),
        ({"sequence_batching": None}, None),
        ({"model_transaction_policy": {"decoupled": True}}, "decoupled"),
        ({"model_transaction_policy": {"decoupled": False}}, None),
        ({"model_transaction_policy": None}, None),
        ({"input": [{"name": "a", "is_shape_tensor": True}]}, "no_batch_dimension"),
        ({"input": None}, None),
    ],
)
def test_a_configuration_tells_what_keeps_requests_from_being_batched(more: Any, objection: str | None) -> None:
    assert read(config=CONFIG | more).objection() == objection


def test_what_a_configuration_does_not_set_is_as_in_protocol_buffers() -> None:
    assert read(config={}).max_batch_size == 0


@pytest.mark.parametrize("metadata", [{}, {"inputs": [], "outputs": []}, {"inputs": None, "name": "m"}])
def test_a_server_may_tell_of_no_tensors(metadata: Any) -> None:
    assert read(metadata) == models.ModelInfo()


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        None,
        "m",
        {"inputs": {}},
        {"inputs": [1]},
        {"inputs": [{"name": "a", "datatype": "FP32"}]},
        {"inputs": [{"name": "a", "datatype": "FP32", "shape": ["x"]}]},
        {"inputs": [{"name": "a", "datatype": "FP32", "shape": [-2]}]},
        {"inputs": [{"name": "a", "datatype": "FP32", "shape": [2**63]}]},
        {"inputs": [{"name": "a", "datatype": "FP32", "shape": [1.5]}]},
        {"inputs": [{"name": 1, "datatype": "FP32", "shape": [1]}]},
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1]}] * 2},
    ],
)
def test_metadata_that_is_none_is_a_broken_answer(metadata: Any) -> None:
    with pytest.raises(errors.UpstreamBroken):
        read(metadata)


@pytest.mark.parametrize(
    "config", [[], {"max_batch_size": -1}, {"max_batch_size": "many"}, {"input": {}}, {"sequence_batching": 1}]
)
def test_a_configuration_that_is_none_is_a_broken_answer(config: Any) -> None:
    with pytest.raises(errors.UpstreamBroken):
        read(config=config)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from([*METADATA, *CONFIG]), inner),
)


@given(metadata=st.binary() | _JSON.map(lambda value: json.dumps(value).encode()), config=st.none() | st.binary())
def test_garbage_never_does_more_than_break_the_answer(metadata: bytes, config: bytes | None) -> None:
    try:
        info = model_questions.model_info(metadata, config)
    except errors.UpstreamBroken:
        return
    assert isinstance(info, models.ModelInfo)


def test_nesting_without_end_is_a_broken_answer() -> None:
    with pytest.raises(errors.UpstreamBroken):
        model_questions.model_info(b'{"inputs":[],"x":' + b"[" * 100_000)


def test_an_index_lists_models_that_are_ready_each_once() -> None:
    index = [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "a", "version": "2", "state": "READY"},
        {"name": "b", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "c"},
    ]
    assert model_questions.indexed_models(json.dumps(index).encode()) == ["a", "c"]


@pytest.mark.parametrize("read_list", [model_questions.indexed_models, model_questions.listed_models])
@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"models":[1]}', b"\xff"])
def test_a_list_of_models_that_is_none_is_a_broken_answer(read_list: Any, body: bytes) -> None:
    with pytest.raises(errors.UpstreamBroken):
        read_list(body)
