"""What is read of a request, and what its caller is told about one that cannot be answered."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from carpool_sidecar import errors
from carpool_sidecar.protocols import v2
from carpool_sidecar.protocols.tensors_from_embeddings import read_model, render_error
from tests.protocols.tensors_from_embeddings.embedder import TEXT, TOKENS, Embedder


def refusal(body: Any, embedder: Embedder | None = None) -> Any:
    """The error in a refusal, which is 400."""
    with pytest.raises(errors.BadRequest) as caught:
        (embedder or Embedder(TEXT)).parse(body)
    status = errors.status_of(caught.value)
    told = json.loads(render_error(caught.value, status))
    assert list(told) == ["error"]
    assert list(told["error"]) == ["message", "type", "param", "code"]
    assert (status, told["error"]["type"], told["error"]["code"]) == (400, "invalid_request_error", None)
    return told["error"]


def asked(what: Any, **members: Any) -> Any:
    return {"model": "m", "input": what, **members}


def texts_of(embedder: Embedder, what: Any) -> list[bytes]:
    return list(v2.elements(embedder.ask(what).columns[0].data))


@pytest.mark.parametrize("shape", [(-1,), (-1, 1), (-1, -1)])
def test_texts_go_to_the_input_of_strings_whatever_its_rank(shape: tuple[int, ...]) -> None:
    embedder = Embedder(("text", "BYTES", shape))
    assert texts_of(embedder, "é") == ["é".encode()]
    assert texts_of(embedder, ["a", "", 'b"\n']) == [b"a", b"", b'b"\n']
    payload = embedder.ask(["a", "b"])
    embedder.answers(payload)
    (tensor,) = embedder.transport.calls[-1]
    assert (tensor.name, tensor.shape) == ("text", (2, *(1 for _ in shape[1:])))


def test_white_space_means_nothing() -> None:
    body = b' {\n"input" : [ "a" ,\t"b" ] , "model":"m" } '
    assert list(v2.elements(Embedder(TEXT).parse(body).columns[0].data)) == [b"a", b"b"]


@pytest.mark.parametrize("datatype", ["INT8", "UINT16", "INT32", "INT64"])
@pytest.mark.parametrize(
    ("what", "rows"), [([1, 2, 3], [[1, 2, 3]]), ([[1, 2], [3, 4]], [[1, 2], [3, 4]]), ([[7]], [[7]])]
)
def test_token_ids_go_to_the_input_of_integers(datatype: str, what: Any, rows: list[list[int]]) -> None:
    payload = Embedder(("ids", datatype, (-1, -1))).ask(what)
    found = np.frombuffer(payload.columns[0].data, f"<{v2.DATATYPES[datatype].code}")
    assert found.reshape(payload.row_count, -1).tolist() == rows
    assert payload.row_lengths(0, 1) == [len(rows[0])]


def test_a_model_may_take_both_if_each_may_be_left_out() -> None:
    embedder = Embedder((*TEXT, True), (*TOKENS, True))
    assert embedder.embed("abc") == [[3, 97]]
    assert embedder.embed([5, 6]) == [[2, 11]]
    assert [tensor.name for (tensor,) in embedder.transport.calls] == ["text", "ids"]


def test_only_one_output_is_asked_for() -> None:
    embedder = Embedder(TEXT)
    embedder.embed("abc")
    assert embedder.transport.asked == [("vectors",)]


@pytest.mark.parametrize("user", ["somebody", None, {"any": "thing"}])
def test_the_user_changes_nothing(user: Any) -> None:
    embedder = Embedder(TEXT)
    one, other = embedder.ask("a"), embedder.ask("a", user=user)
    assert one.key == other.key
    assert embedder.answers(one, other)[0] == embedder.answers(other)[0]


def test_what_is_null_is_not_given() -> None:
    assert Embedder(TEXT).ask("a", dimensions=None, encoding_format=None, user=None).row_count == 1


@pytest.mark.parametrize(
    ("body", "parameter", "reason"),
    [
        (asked("a", dimensions=256), "dimensions", "'dimensions' cannot be passed on"),
        (asked("a", truncate=True), "truncate", "the member 'truncate' cannot be passed on"),
        (asked("a", encoding_format="int8"), "encoding_format", 'must be "float" or "base64"'),
        (asked("a", encoding_format=["float"]), "encoding_format", "must be"),
        ({"input": "a"}, "model", "'model' is missing"),
        ({"input": "a", "model": None}, "model", "'model' is missing"),
        ({"input": "a", "model": ""}, "model", "must be a string that is not empty"),
        ({"input": "a", "model": 1}, "model", "must be a string"),
        ({"model": "m"}, "input", "'input' is missing"),
        (asked(None), "input", "'input' is missing"),
        (asked([]), "input", "this list is empty"),
        (asked({"text": "a"}), "input", "'input' must be a string, a list of strings"),
        (asked(1), "input", "'input' must be"),
        (asked(True), "input", "'input' must be"),
        (asked([None]), "input", "item 0 does not go with that"),
        (asked(["a", 1]), "input", "item 1 does not go with that"),
        (asked(["a", [1]]), "input", "item 1 does not go with that"),
        (asked(["a", {"b64": "YQ=="}]), "input", "item 1 does not go with that"),
        (asked([[]]), "input", "item 0 of 'input' is an empty list"),
        (asked([[1], []]), "input", "item 1 of 'input' is an empty list"),
    ],
)
def test_a_mistake_is_told_by_the_member_that_has_it(body: Any, parameter: str, reason: str) -> None:
    told = refusal(body)
    assert told["param"] == parameter
    assert reason in told["message"]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ([[1, 2], [3]], "item 1 of 'input' has 1 token ids; the model takes lists of one length, and item 0 has 2"),
        ([[[1]]], "item 0 of 'input' is no list of token ids"),
        ([[1, 2], [3, [4]]], "item 1 of 'input' is no list of token ids"),
        ([1, 1.5], "item 0 of 'input' must have values of datatype INT64; given: 1.5"),
        ([1, "a"], "item 0 of 'input' must have values of datatype INT64; given: \"a\""),
        ([[1], [None]], "item 1 of 'input' must have values of datatype INT64; given: null"),
        ([2**63], "item 0 of 'input' must have values of datatype INT64"),
    ],
)
def test_a_mistake_in_token_ids_is_told_by_the_item_that_has_it(what: Any, reason: str) -> None:
    told = refusal(asked(what), Embedder(TOKENS))
    assert (told["param"], told["message"]) == ("input", reason) or reason in told["message"]


def test_a_model_of_lists_of_a_fixed_length_tells_it() -> None:
    told = refusal(asked([1, 2, 3]), Embedder(("ids", "INT32", (-1, 8))))
    assert told["message"] == "item 0 of 'input' has 3 token ids; the model takes 8"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"{", b'{"model":"m","input":"a"', b'{"model":"m","input":"a"}x', b"\xef\xbb\xbf{}",
        b'{"model":"m","input":"\xff"}', b'{"model":"m","input":["\xff"]}', b'{"model":"\xff","input":"a"}',
        rb'{"model":"m","input":"\ud800"}', rb'{"model":"\ud800","input":"a"}',
        b'{"model":"m","input":"a","input":"b"}', b'{"model":"m","model":"m","input":"a"}',
        b'{"model":"m","input":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
        b'{"model":"m","input":"a","user":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
        b'{"model":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b',"input":"a"}',
    ],
)  # fmt: skip
def test_what_is_no_request_is_told_so(body: bytes) -> None:
    assert refusal(body)["message"]


@pytest.mark.parametrize("name", [".", "..", "x" * 257, "a\n", "a\x00"])
def test_a_name_that_no_model_has_is_not_asked_about(name: str) -> None:
    with pytest.raises(errors.ModelNotFound) as caught:
        read_model(json.dumps({"model": name, "input": "a"}).encode())
    told = json.loads(render_error(caught.value, errors.status_of(caught.value)))["error"]
    assert (told["type"], told["code"], told["param"]) == ("invalid_request_error", "model_not_found", None)
    assert len(told["message"]) < 100


@pytest.mark.parametrize("what", [["a"] * 3, [[1]] * 3])
def test_more_texts_than_allowed_are_too_many(what: Any) -> None:
    with pytest.raises(errors.PayloadTooLarge):
        Embedder((*TEXT, True), (*TOKENS, True)).ask(what, max_rows=2)


def test_requests_of_different_models_outputs_or_lengths_do_not_share_a_batch() -> None:
    payloads = [
        Embedder(TEXT).ask("a"),
        Embedder(TEXT, name="n").ask("a"),
        Embedder(TEXT, outputs=[("other", "FP32", (-1, 2))]).ask("a"),
        Embedder(("text", "BYTES", (-1,))).ask("a"),
        Embedder(TOKENS).ask([1]),
        Embedder(TOKENS).ask([1, 2]),
    ]
    assert len({payload.key for payload in payloads}) == len(payloads)


def test_the_form_of_an_answer_does_not_keep_requests_apart() -> None:
    embedder = Embedder(TEXT)
    assert len({embedder.ask("a", encoding_format=chosen).key for chosen in ("float", "base64", None)}) == 1
