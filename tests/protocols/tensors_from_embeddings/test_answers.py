"""What callers are told: their own embeddings, in the form that they asked for."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from carpool_sidecar import errors
from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.tensors_from_embeddings import render_error
from tests.protocols.tensors_from_embeddings.embedder import TEXT, TOKENS, VECTORS, Embedder, floats, tell

Tensor = models.Tensor


def answering(*tensors: Tensor) -> Embedder:
    """A model that answers anything with these."""
    return Embedder(TEXT, outputs=[], answer=lambda _: list(tensors))


def written(embedder: Embedder, what: Any, **members: Any) -> bytes:
    payload = embedder.ask(what, **members)
    return b"".join(payload.response_format.render(embedder.call((payload, 0, payload.row_count))).body)


def test_an_answer_is_the_list_that_openai_writes() -> None:
    assert written(Embedder(TEXT), ["abc", "b"]) == (
        b'{"object":"list","data":['
        b'{"object":"embedding","index":0,"embedding":[3.0,97.0]},'
        b'{"object":"embedding","index":1,"embedding":[1.0,98.0]}'
        b'],"model":"m","usage":{"prompt_tokens":0,"total_tokens":0}}'
    )


def test_the_model_is_named_as_the_caller_named_it() -> None:
    payload = Embedder(TEXT).parse('{"model":"é \\" /","input":"a"}'.encode())
    assert tell(payload, *Embedder(TEXT).call((payload, 0, 1)))["model"] == 'é " /'


def test_numbers_and_base64_come_out_of_one_batch() -> None:
    embedder = Embedder(TEXT)
    first, second = embedder.answers(embedder.ask("abc"), embedder.ask(["d", "ef"], encoding_format="base64"))
    assert [each["embedding"] for each in first["data"]] == [[3.0, 97.0]]
    rows = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4").tolist() for each in second["data"]]
    assert rows == [[1.0, 100.0], [2.0, 101.0]]
    assert [each["index"] for each in second["data"]] == [0, 1]
    assert len(embedder.transport.calls) == 1


@pytest.mark.parametrize(
    ("datatype", "given", "text"),
    [
        ("FP32", [[0.1, 16777216]], b"[0.1,16777216.0]"),
        ("FP64", [[0.1, 1 / 3]], b"[0.1,0.3333333333333333]"),
        ("FP16", [[0.1, -2]], b"[0.099975586,-2.0]"),
        ("BF16", [[0x3DCD, 0xC000]], b"[0.100097656,-2.0]"),
    ],
)
def test_numbers_have_the_digits_that_they_need(datatype: str, given: Any, text: bytes) -> None:
    embedder = answering(floats(given, datatype))
    assert b'"embedding":%b}' % text in written(embedder, "a")


@pytest.mark.parametrize(("datatype", "dtype"), [("FP16", "<f2"), ("FP32", "<f4"), ("FP64", "<f8")])
@given(st.data())
def test_floats_come_back_the_same_in_their_own_precision(datatype: str, dtype: str, data: st.DataObject) -> None:
    width: Any = int(dtype[-1]) * 8
    numbers = st.floats(allow_nan=False, allow_infinity=False, width=width)
    rows = data.draw(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=3))
    told = answering(floats(rows, datatype)).embed(["a"] * len(rows))
    assert np.array(told, dtype).tobytes() == np.array(rows, dtype).tobytes()


@pytest.mark.parametrize(("datatype", "bits"), [("FP64", None), ("FP16", None), ("BF16", [[0x3FC0, 0xC000]])])
def test_base64_is_fp32_whatever_the_model_makes(datatype: str, bits: Any) -> None:
    (told,) = answering(floats(bits or [[1.5, -2]], datatype)).embed("a", encoding_format="base64")
    assert np.frombuffer(base64.b64decode(told), "<f4").tolist() == [1.5, -2.0]


class TestWhatIsNoNumber:
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize("chosen", ["float", "base64"])
    def test_is_told_to_its_caller_alone(self, value: float, chosen: str) -> None:
        embedder = answering(floats([[1, 2], [3, 4], [5, value]]))
        fine, broken = embedder.ask("a", encoding_format=chosen), embedder.ask(["b", "c"], encoding_format=chosen)
        shares = embedder.call((fine, 0, 1), (broken, 0, 2))
        assert len(tell(fine, shares[0])["data"]) == 1
        with pytest.raises(errors.UpstreamBroken, match="the embedding of item 1 of 'input' has NaN or infinities"):
            tell(broken, shares[1])

    def test_may_be_a_number_that_base64_has_no_room_for(self) -> None:
        embedder = answering(floats([[1e300, 0]], "FP64"))
        assert embedder.embed("a") == [[1e300, 0]]
        with pytest.raises(errors.UpstreamBroken, match="item 0"):
            embedder.embed("a", encoding_format="base64")


def test_a_request_in_several_batches_is_joined_again() -> None:
    embedder = Embedder(TEXT)
    payload, other = embedder.ask(["a", "bb", "ccc"]), embedder.ask("dddd")
    first, _ = embedder.call((payload, 0, 2), (other, 0, 1))
    (second,) = embedder.call((payload, 2, 3))
    data = tell(payload, first, second)["data"]
    assert [(each["index"], each["embedding"][0]) for each in data] == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("other", [floats([[1, 2, 3]]), floats([[1, 2]], "FP64")])
def test_answers_to_parts_that_do_not_go_together_are_a_broken_answer(other: Tensor) -> None:
    payload = answering().ask(["a", "b"])
    shares = [answering(each).call((payload, 0, 1))[0] for each in (floats([[1, 2]]), other)]
    with pytest.raises(errors.UpstreamBroken, match="do not go together"):
        tell(payload, *shares)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ([], "has 0 outputs 'vectors'; its outputs: none"),
        ([floats([[1, 2]], name="other")], "has 0 outputs 'vectors'; its outputs: other"),
        ([floats([[1, 2]], "INT32")], "'vectors' is of datatype 'INT32'"),
        ([floats([[[1, 2]]])], "has the shape [1, 1, 2], which has no embeddings"),
        ([floats([1])], "has the shape [1], which has no embeddings"),
        ([Tensor("vectors", "FP32", (1, 2), b"\0\0\0\0")], "has 1 values"),
    ],
)
def test_outputs_that_are_no_embeddings_are_a_broken_answer(tensors: list[Tensor], reason: str) -> None:
    with pytest.raises(errors.UpstreamBroken) as caught:
        Embedder(TEXT, outputs=[VECTORS], answer=lambda _: tensors).embed("a")
    assert reason in str(caught.value)


def test_of_several_outputs_that_were_not_told_before_none_is_taken() -> None:
    with pytest.raises(errors.UpstreamBroken, match="2 outputs with floating point numbers; its outputs: a, b"):
        answering(floats([[1]], name="a"), floats([[1]], name="b")).embed("a")


def test_texts_travel_alone_after_an_answer_without_their_rows_until_the_predictor_tells_anew() -> None:
    embedder = Embedder(TEXT, answer=lambda _: [floats([[1, 2]])])
    before = embedder.ask(["a", "b"])
    with pytest.raises(errors.Uneven, match="which is not 2 rows"):
        embedder.answers(before)
    assert embedder.codec.max_batch_size == 1
    after = embedder.ask(["a", "b"])
    assert after.key != before.key
    assert tell(after, *(embedder.call((after, row, row + 1))[0] for row in range(2)))["data"][1]["embedding"] == [1, 2]
    embedder.codec.info = embedder.codec.info._replace()
    assert embedder.codec.max_batch_size == 64


TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=8), min_size=1, max_size=4)


@given(st.lists(st.tuples(TEXTS, st.sampled_from(["float", "base64"])), min_size=1, max_size=4), st.data())
def test_every_member_of_a_batch_gets_what_it_would_have_got_alone(requests: Any, data: st.DataObject) -> None:
    embedder = Embedder(TEXT)
    payloads = [embedder.ask(texts, encoding_format=chosen) for texts, chosen in requests]
    assert len({payload.key for payload in payloads}) == 1
    alone = [embedder.answers(payload)[0] for payload in payloads]
    cuts = [data.draw(st.integers(0, payload.row_count - 1)) for payload in payloads]
    begun = [(payload, 0, cut) for payload, cut in zip(payloads, cuts, strict=True) if cut]
    first = embedder.call(*begun) if begun else []
    rest = embedder.call(*((payload, cut, payload.row_count) for payload, cut in zip(payloads, cuts, strict=True)))
    for payload, cut, wanted in zip(payloads, cuts, alone, strict=True):
        shares = [*([first.pop(0)] if cut else []), rest.pop(0)]
        assert tell(payload, *shares) == wanted


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=6))
def test_whatever_else_is_asked_for_is_a_bad_request_or_fine(what: Any) -> None:
    embedder = Embedder((*TEXT, True), (*TOKENS, True))
    with contextlib.suppress(errors.BadRequest):
        payload = embedder.ask(what)
        assert len(embedder.answers(payload)[0]["data"]) == payload.row_count


class TestErrorsOfThePredictor:
    @pytest.mark.parametrize(
        ("status", "body", "told"),
        [
            (400, b'{"error":"bad text"}', ("bad text", "invalid_request_error", None)),
            (404, b'{"error":"gone"}', ("gone", "invalid_request_error", "model_not_found")),
            (429, b'{"error":"busy"}', ("busy", "rate_limit_error", None)),
            (500, b"<h1>no</h1>", ("<h1>no</h1>", "server_error", None)),
            (500, b'{"error":{"a":1}}', ('{"error":{"a":1}}', "server_error", None)),
            (500, b"", ("the predictor answered 500", "server_error", None)),
            (500, b"\xff", ("\ufffd", "server_error", None)),
        ],
    )
    def test_are_told_in_openais_words(self, status: int, body: bytes, told: Any) -> None:
        error = json.loads(render_error(errors.UpstreamStatus(status, body), status))["error"]
        assert (error["message"], error["type"], error["code"]) == told

    def test_of_ours_are_told_by_their_reasons(self) -> None:
        for kind in (errors.Draining, errors.Overloaded, errors.UpstreamUnreachable):
            error = kind()
            told = json.loads(render_error(error, errors.status_of(error)))["error"]
            assert (told["message"], told["code"]) == (str(error), error.reason)
