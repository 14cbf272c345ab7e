"""The benchmark of lists: what is sent, what its stub answers, and that the two formats carry the same bytes."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lists import cells, stub, traffic

KINDS = pytest.mark.parametrize("kind", [traffic.V1, traffic.OpenAI])
MARKS = pytest.mark.parametrize("mark", [traffic.SHORT, traffic.LONG])


def text_of(body: bytes) -> str:
    decoded = json.loads(body)
    text = decoded["instances"][0] if "instances" in decoded else decoded["input"]
    assert isinstance(text, str)
    return text


@KINDS
@MARKS
@given(size=st.integers(90, 3_000), number=st.integers(0, 99_999))
def test_a_body_is_as_large_as_asked_and_its_text_ends_in_its_mark(
    kind: type[traffic.V1], mark: bytes, size: int, number: int
) -> None:
    body = kind(size, mark).body(number)
    assert len(body) == size
    assert text_of(body).endswith(f"{mark.decode()}{number:05d}")
    assert body.count(b"-") == 1


def test_only_who_wants_a_long_embedding_asks_for_base64() -> None:
    assert "encoding_format" not in json.loads(traffic.OpenAI(100, traffic.SHORT).body(1))
    assert json.loads(traffic.OpenAI(100, traffic.LONG).body(1))["encoding_format"] == "base64"


def test_a_body_too_small_for_its_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="the smallest body has 26 bytes"):
        traffic.V1(20).body(1)


def test_embeddings_are_8_numbers_or_1536_in_base64() -> None:
    short, long = (json.loads(traffic.row(mark + b"00042", 3)) for mark in (traffic.SHORT, traffic.LONG))
    assert (short["index"], short["embedding"][0], len(short["embedding"])) == (3, -0.00042, 8)
    assert len(base64.b64decode(long["embedding"], validate=True)) == 1536 * 4


@KINDS
@MARKS
def test_the_stubs_answer_to_a_request_is_its_own_and_nobody_elses(kind: type[traffic.V1], mark: bytes) -> None:
    sent = kind(100, mark)
    connection, written = stub.Connection(), list[bytes]()
    connection._transport = type("Transport", (), {"write": staticmethod(written.append)})()  # type: ignore[assignment]
    body = sent.body(42)
    head = f"POST {sent.path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    connection.data_received(head + body[:60])
    connection.data_received(body[60:])
    answer = written[0].partition(b"\r\n\r\n")[2]
    assert sent.is_own(42, answer)
    assert not sent.is_own(43, answer)


@MARKS
def test_the_rows_of_both_formats_have_the_same_bytes(mark: bytes) -> None:
    marks = [mark + b"00001"]
    v1, openai = (json.loads(stub.answer(marks, is_openai)) for is_openai in (False, True))
    assert v1["predictions"] == openai["data"]


def test_openais_answer_counts_its_rows_and_their_tokens() -> None:
    found = json.loads(stub.answer([b"-0.00001", b"-0.00002", b"-0.00003"], is_openai=True))
    assert [each["index"] for each in found["data"]] == [0, 1, 2]
    assert found["usage"] == {"prompt_tokens": 6, "total_tokens": 6}


def test_a_cell_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="unknown cell 'x'; there are embeddings-100B, embeddings-8kB"):
        cells.select(["x"])
    assert [duel.name for duel in cells.select(["embeddings-8kB"])] == ["embeddings-8kB"]
    assert cells.select([]) == list(cells.DUELS)
