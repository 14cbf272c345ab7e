"""Inference with tritonclient's clients, alone: the same from the sidecar as from Triton itself."""

from __future__ import annotations

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from e2e.triton import clients

ROWS = np.array([[0.1, -2.5, 3e38], [7, np.nan, np.inf]], np.float32)
A = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
B = np.array([[10, 20, 30], [40, 50, 60]], np.float32)

# A tensor of each datatype with the ends of its range; tritonclient knows no BF16 in numpy.
TENSORS = {
    "bool": np.array([[True, False]]),
    **{
        kind: np.array([[np.iinfo(kind).min, np.iinfo(kind).max]], kind)
        for kind in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
    },
    "fp16": np.array([[0.5, -65504]], np.float16),
    "fp32": np.array([[0.1, 1e-45]], np.float32),
    "fp64": np.array([[0.1, 5e-324]], np.float64),
    "bytes": np.array([[b"", b"\x00\xff\xfe", "é".encode()]], np.object_),
    "matrix": np.arange(12, dtype=np.float32).reshape(2, 2, 3),
}


async def test_rows_come_back(client: clients.Client) -> None:
    answer = await client.infer("identity", {"rows": ROWS})
    np.testing.assert_array_equal(answer.as_numpy("rows_out"), ROWS)


@pytest.mark.parametrize("name", TENSORS)
async def test_every_datatype_comes_back_to_the_last_bit(client: clients.Client, name: str) -> None:
    answer = await client.infer("anything", {name: TENSORS[name]})
    output = answer.as_numpy(f"{name}_out")
    np.testing.assert_array_equal(output, TENSORS[name])
    assert output.dtype == TENSORS[name].dtype


async def test_several_inputs_of_several_datatypes(client: clients.Client) -> None:
    tensors = {name: TENSORS[name] for name in ("bool", "int64", "bytes")}
    answer = await client.infer("anything", tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(answer.as_numpy(f"{name}_out"), tensor)


async def test_two_inputs_two_outputs(client: clients.Client) -> None:
    answer = await client.infer("add_sub", {"a": A, "b": B})
    np.testing.assert_array_equal(answer.as_numpy("sum"), A + B)
    np.testing.assert_array_equal(answer.as_numpy("difference"), A - B)


async def test_inputs_in_another_order_are_found_by_their_names(client: clients.Client) -> None:
    answer = await client.infer("add_sub", {"b": B, "a": A})
    np.testing.assert_array_equal(answer.as_numpy("difference"), A - B)


async def test_only_what_was_asked_for_comes_back(client: clients.Client) -> None:
    answer = await client.infer("add_sub", {"a": A, "b": B}, outputs=[client.output("difference")])
    assert answer.as_numpy("sum") is None
    np.testing.assert_array_equal(answer.as_numpy("difference"), A - B)


async def test_the_requests_id_comes_back(client: clients.Client) -> None:
    answer = await client.infer("identity", {"rows": ROWS}, request_id="é-17")
    response = answer.get_response()
    assert (response["id"] if client.is_http else response.id) == "é-17"


async def test_classes_instead_of_numbers(client: clients.Client) -> None:
    scores = np.array([[1, 5, 3], [9, 8, 7]], np.float32)
    answer = await client.infer("identity", {"rows": scores}, outputs=[client.output("rows_out", class_count=2)])
    expected = [[b"5.000000:1", b"3.000000:2"], [b"9.000000:0", b"8.000000:1"]]
    assert answer.as_numpy("rows_out").tolist() == expected


@pytest.mark.parametrize("version", ["1", "2"])
async def test_a_version_is_the_one_that_answers(client: clients.Client, version: str) -> None:
    answer = await client.infer("versioned", {"rows": A}, model_version=version)
    response = answer.get_response()
    assert (response["model_version"] if client.is_http else response.model_version) == version


async def test_parameters_reach_the_model(client: clients.Client) -> None:
    answer = await client.infer("scaled", {"rows": A}, parameters={"factor": 3})
    np.testing.assert_array_equal(answer.as_numpy("rows_out"), A * 3)


async def test_strings(client: clients.Client) -> None:
    text = np.array([[b"spam"], [b"\xff\x00e"], [b""]], np.object_)
    answer = await client.infer("strings", {"text": text})
    assert answer.as_numpy("upper").tolist() == [[b"SPAM"], [b"\xff\x00E"], [b""]]
    assert answer.as_numpy("length").tolist() == [[4], [3], [0]]


@pytest.mark.parametrize(
    ("model", "tensors", "words"),
    [
        ("nobody", {"rows": A}, "Request for unknown model: 'nobody' is not found"),
        ("identity", {"other": A}, "unexpected inference input 'other' for model 'identity'"),
        ("identity", {"rows": A.astype(np.int32)}, "data-type is 'INT32', but model 'identity' expects 'FP32'"),
        ("identity", {"rows": A[0]}, "unexpected shape for input 'rows' for model 'identity'"),
        ("add_sub", {"a": A}, "expected 2 inputs but got 1 inputs for model 'add_sub'"),
        ("add_sub", {"a": A, "b": B[:1]}, "batch size does not match other inputs for 'add_sub'"),
        ("marked", {"rows": np.array([[400]], np.float32)}, "a row is refused"),
        ("marked", {"rows": np.array([[666]], np.float32)}, "a row is marked"),
    ],
)
async def test_what_triton_refuses_is_refused_in_its_words(
    client: clients.Client, model: str, tensors: dict[str, np.ndarray], words: str
) -> None:
    with pytest.raises(InferenceServerException, match=words):
        await client.infer(model, tensors)


@pytest.mark.parametrize("kind", ["http", "http.aio"])
@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
async def test_json_and_binary_in_and_out(kind: str, target: clients.Target, binary_in: bool, binary_out: bool) -> None:
    async with clients.connected(kind, target) as client:
        inputs = [client.input("a", A, binary_data=binary_in), client.input("b", B, binary_data=True)]
        outputs = [client.output("sum", binary_data=binary_out), client.output("difference", binary_data=False)]
        answer = await client("infer", "add_sub", inputs, outputs=outputs)
        np.testing.assert_array_equal(answer.as_numpy("sum"), A + B)
        np.testing.assert_array_equal(answer.as_numpy("difference"), A - B)


@pytest.mark.parametrize("name", [name for name in TENSORS if name not in ("fp16", "bytes")])
async def test_every_datatype_in_json(target: clients.Target, name: str) -> None:
    async with clients.connected("http", target) as client:
        answer = await client(
            "infer",
            "anything",
            [client.input(name, TENSORS[name], binary_data=False)],
            outputs=[client.output(f"{name}_out", binary_data=False)],
        )
        np.testing.assert_array_equal(answer.as_numpy(f"{name}_out"), TENSORS[name])


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_compressed_requests_and_answers(target: clients.Target, algorithm: str) -> None:
    async with clients.connected("http", target) as client:
        rows = np.zeros((4, 1000), np.float32)
        answer = await client.infer(
            "identity", {"rows": rows},
            request_compression_algorithm=algorithm, response_compression_algorithm=algorithm,
        )  # fmt: skip
        np.testing.assert_array_equal(answer.as_numpy("rows_out"), rows)
