"""Which models can make embeddings, and what callers are told of the others."""

from __future__ import annotations

from typing import Any

import pytest

from carpool_sidecar.protocols import models
from tests.protocols.tensors_from_embeddings.embedder import HIDDEN, TEXT, TOKENS, VECTORS, Embedder, floats
from tests.protocols.tensors_from_embeddings.test_requests import asked, refusal

MASK = ("mask", "INT64", (-1, -1))


@pytest.mark.parametrize(
    ("inputs", "what", "reason"),
    [
        ([TOKENS], "a", "the model takes no texts: that needs exactly one BYTES input"),
        ([TEXT, ("more", "BYTES", (-1, 1))], "a", "its inputs: text (BYTES [-1,1]), more (BYTES [-1,1])"),
        ([("text", "BYTES", (-1, 2))], "a", "exactly one BYTES input of shape [-1] or [-1,1]"),
        ([("text", "BYTES", (-1, 1, 1))], "a", "exactly one BYTES input of shape [-1] or [-1,1]"),
        ([TEXT], [1], "the model takes no token ids: that needs exactly one integer input of shape [-1,-1]"),
        ([TOKENS, MASK], [1], "its inputs: ids (INT64 [-1,-1]), mask (INT64 [-1,-1])"),
        ([("ids", "INT64", (-1,))], [1], "exactly one integer input"),
        ([("ids", "FP32", (-1, -1))], [1], "exactly one integer input"),
        ([TEXT, ("scale", "FP32", (-1, 1))], "a", "takes no texts alone: it needs other inputs as well: scale (FP32"),
    ],
)
def test_a_model_without_the_one_input_is_told_to_those_who_need_it(inputs: Any, what: Any, reason: str) -> None:
    told = refusal(asked(what), Embedder(*inputs))
    assert told["param"] == "input"
    assert reason in told["message"]


def test_an_input_that_may_be_left_out_is() -> None:
    embedder = Embedder(TEXT, ("scale", "FP32", (-1, 1), True))
    assert embedder.embed("abc") == [[3, 97]]


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ([VECTORS, ("half", "FP16", (-1, 2))], "vectors (FP32 [-1,2]), half (FP16 [-1,2]); --embeddings-output must"),
        ([HIDDEN], "its outputs: hidden (FP32 [-1,-1,2])"),
        ([("labels", "INT64", (-1, 2))], "the model has no embeddings: that needs an output of FP16, BF16, FP32, FP64"),
        ([("label", "FP32", (-1,))], "the model has no embeddings"),
    ],
)
def test_a_model_whose_outputs_leave_it_open_is_told_with_its_outputs(outputs: Any, reason: str) -> None:
    told = refusal(asked("a"), Embedder(TEXT, outputs=outputs))
    assert told["param"] == "model"
    assert reason in told["message"]


def test_the_output_of_two_dimensions_is_taken_among_others() -> None:
    embedder = Embedder(TEXT, outputs=[HIDDEN, VECTORS, ("label", "INT64", (-1, 1))])
    assert embedder.embed("abc") == [[3, 97]]
    assert embedder.transport.asked == [("vectors",)]


@pytest.mark.parametrize(("name", "found"), [("half", "half"), ("vectors", "vectors")])
def test_the_named_output_is_taken(name: str, found: str) -> None:
    outputs = [VECTORS, ("half", "FP16", (-1, 2))]
    embedder = Embedder(TEXT, outputs=outputs, output=name, answer=lambda _: [floats([[1, 2]], name=name)])
    assert embedder.embed("a") == [[1, 2]]
    assert embedder.transport.asked == [(found,)]


def test_a_model_without_the_named_output_has_its_only_one_taken() -> None:
    assert Embedder(TEXT, output="other").embed("abc") == [[3, 97]]


def test_a_named_output_that_cannot_be_embeddings_is_told() -> None:
    told = refusal(asked("a"), Embedder(TEXT, outputs=[HIDDEN, VECTORS], output="hidden"))
    assert told["param"] == "model"
    assert told["message"].startswith("the model's output 'hidden' has no embeddings; its outputs: hidden (FP32")


@pytest.mark.parametrize(("name", "wanted"), [("", [()]), ("vectors", [("vectors",)])])
def test_of_a_model_whose_outputs_are_not_told_the_answer_tells(name: str, wanted: Any) -> None:
    embedder = Embedder(TEXT, outputs=[], output=name)
    assert embedder.embed("abc") == [[3, 97]]
    assert embedder.transport.asked == wanted


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"is_stateful": True}, "keeps state"), ({"is_decoupled": True}, "in streams"), ({"inputs": ()}, "does not tell")],
)
def test_a_model_that_cannot_be_asked_for_embeddings_is_told(changes: dict[str, Any], reason: str) -> None:
    embedder = Embedder(TEXT)
    embedder.codec.info = embedder.codec.info._replace(**changes)
    told = refusal(asked("a"), embedder)
    assert told["param"] == "model"
    assert reason in told["message"]


def test_what_the_predictor_tells_anew_counts_from_then_on() -> None:
    embedder = Embedder(TOKENS)
    refusal(asked("a"), embedder)
    embedder.codec.info = models.ModelInfo((models.TensorSpec(*TEXT),), embedder.codec.info.outputs, 8)
    assert embedder.embed("abc") == [[3, 97]]
    assert embedder.codec.max_batch_size == 8


class TestWithoutABatchDimension:
    """Each text is a call of its own."""

    @pytest.mark.parametrize("shape", [(), (1,), (-1,), (1, 1), (-1, 1)])
    @pytest.mark.parametrize("vector", [(2,), (1, 2), (-1, -1)])
    def test_one_text_at_a_time(self, shape: tuple[int, ...], vector: tuple[int, ...]) -> None:
        answer = lambda _: [floats([3, 97] if len(vector) == 1 else [[3, 97]])]  # noqa: E731
        embedder = Embedder(("text", "BYTES", shape), outputs=[("vectors", "FP32", vector)], most=0, answer=answer)
        assert embedder.codec.max_batch_size == 1
        payload = embedder.ask(["abc", "abd"])
        shares = [share for row in range(2) for share in embedder.call((payload, row, row + 1))]
        assert [each.predictions.vectors.tolist() for each in shares] == [[[3, 97]], [[3, 97]]]
        assert [tensor.shape for (tensor,) in embedder.transport.calls] == [(1,) * len(shape)] * 2

    @pytest.mark.parametrize(("shape", "given"), [((-1,), (3,)), ((1, -1), (1, 3)), ((-1, -1), (1, 3))])
    def test_one_list_of_token_ids_at_a_time(self, shape: tuple[int, ...], given: tuple[int, ...]) -> None:
        outputs = [("vectors", "FP32", (2,))]
        embedder = Embedder(("ids", "INT64", shape), outputs=outputs, most=0, answer=lambda _: [floats([3, 6])])
        assert embedder.embed([1, 2, 3]) == [[3, 6]]
        assert [tensor.shape for (tensor,) in embedder.transport.calls] == [given]
