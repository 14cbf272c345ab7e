"""Numbers as text, of arrays and of lists alike."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_predictor import vectors

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(FLOATS, min_size=3, max_size=3), min_size=1, max_size=5))
def test_each_row_is_read_back_as_the_same_float32(rows: list[list[float]]) -> None:
    matrix = np.array(rows, np.float32)
    read = [json.loads(text) for text in vectors.texts(matrix)]
    assert np.array(read, np.float64).astype(np.float32).tobytes() == matrix.tobytes()


def test_an_array_is_written_in_the_fewest_digits_where_orjson_is_there() -> None:
    pytest.importorskip("orjson")
    assert vectors.texts(np.array([[0.1, -0.0, 1e-7]], np.float32)) == [b"[0.1,-0.0,1e-7]"]


def test_without_orjson_arrays_have_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "orjson", None)
    assert [np.float32(json.loads(text)[0]) for text in vectors.texts(np.array([[0.1]], np.float32))] == [
        np.float32(0.1)
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("made", [lambda value: [[value]], lambda value: np.array([[value]], np.float32)])
def test_numbers_without_a_json_form_become_null(value: float, made: Any) -> None:
    assert vectors.texts(made(value)) == [b"[null]"]


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", "<f2"])
def test_base64_has_the_numbers_as_little_endian_fp32(kind: str) -> None:
    matrix = np.array([[0.5, -2.0], [1.0, 3.0]], kind)
    for made in (matrix, matrix.tolist()):
        found = [base64.b64decode(json.loads(text)) for text in vectors.texts_in_base64(made)]
        assert [np.frombuffer(each, "<f4").tolist() for each in found] == matrix.tolist()


@pytest.mark.parametrize("kind", [">f4", "<f8", "<i4", "<f2"])
def test_other_kinds_of_arrays_are_written_as_well(kind: str) -> None:
    matrix = np.array([[1.0, -2.0], [4.0, 3.0]], kind)
    assert [json.loads(text) for text in vectors.texts(matrix)] == matrix.tolist()


def test_a_part_of_an_array_is_written_as_what_it_is() -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    assert [json.loads(text) for text in vectors.texts(matrix)] == matrix.tolist()
    found = [base64.b64decode(json.loads(text)) for text in vectors.texts_in_base64(matrix)]
    assert [np.frombuffer(each, "<f4").tolist() for each in found] == matrix.tolist()
