"""Lists of lists of numbers, looked at in C: what is found is what msgspec's decoder finds, and there is no more."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import carpool_sidecar
from carpool_sidecar.protocols import form_scan, forms, json_rows, number_lists
from tests import native
from tests.examples import examples

MOST = sys.maxsize

Find = Callable[[bytes, int, int, int, int, int, int], tuple[int, list[int], list[int], int] | None]

NUMBERS = st.one_of(
    st.integers(-1000, 1000).map(str),
    st.integers(0, 10**90).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,80})(\.[0-9]{1,80})?([eE][-+]?[0-9]{1,3})?", fullmatch=True),
)
ODD = st.one_of(
    st.sampled_from(
        [
            "",
            "0",
            "00",
            "01",
            "1.",
            ".5",
            "-",
            "--1",
            "+1",
            "1e",
            "1e+",
            "1.e5",
            "1e5.5",
            "1.2.3",
            "1 2",
            "e",
            ".",
            "1-2",
        ]
    ),
    st.sampled_from(["[", "]", ",", " ", ",,", "[]", "[ ]", "],[", "], [", "]]", "[[", "][", " ,", ",  ", "\n", "\t"]),
    st.sampled_from(["null", "true", "NaN", '"a"', "{}", '{"a":1}', "é", "\x00", "/", ":", "9" * 70, "0" * 70]),
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """What is between the brackets of a list of rows, mostly right."""
    between = draw(st.sampled_from([",", ", "]))

    def several(values: st.SearchStrategy[str]) -> str:
        return between.join(draw(st.lists(values, max_size=12)))

    def row(deepest: int) -> str:
        inner = (
            several(NUMBERS)
            if not deepest or draw(st.booleans())
            else between.join([row(deepest - 1), several(NUMBERS)])
        )
        return f"[{inner}]"

    text = between.join(row(draw(st.integers(0, 3))) for _ in range(draw(st.integers(1, 5))))
    for at in draw(st.lists(st.integers(0, len(text)), max_size=3)):
        text = text[:at] + draw(ODD) + text[at + draw(st.integers(0, 2)) :]
    return text


@pytest.fixture(scope="module")
def find(tmp_path_factory: pytest.TempPathFactory) -> Find:
    """The function in C: that of the compiled build, or one that is made for these tests."""
    found: Find = native.in_c("protocols.number_lists", tmp_path_factory.mktemp("native")).find
    if found(b"[1]", 0, 3, 1, 0, MOST, 0) is None:
        pytest.skip("this processor has none")
    return found


def closed(text: str, opened: int) -> tuple[int, list[bytes]] | None:
    """How many lists are open behind this text if so many were before, and the rows once all are closed."""
    unquoted = re.sub('"[^"]*"', "", text)
    depth = opened + unquoted.count("[") - unquoted.count("]")
    # Before it and behind it there are other values, so that it cannot be cut within one.
    around = "[1],", ",[1]"
    whole = (
        "[" * opened + (around[0] if opened == 1 else "1,") + text + (around[1] if depth == 1 else ",1") + "]" * depth
    )
    try:
        rows = json_rows.LIST.decode(whole.encode("latin-1"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return depth, [bytes(row) for row in rows]


@given(texts(), st.integers(1, 3), st.integers(0, 70))
@example("[1],5,[2]", 1, 0)
@example("5,[1]", 1, 0)
@example("[1.5]], [[2e-5]", 2, 0)
def test_whatever_is_found_the_decoder_finds_too(find: Find, text: str, opened: int, before: int) -> None:
    data = b"9" * before + text.encode("latin-1", "replace") + b"9"
    found = find(data, before, len(data) - 1, opened, 1000 - before, MOST, 0)
    if found is None:
        return
    expected = closed(text, opened)
    assert expected is not None
    depth, rows = expected
    assert found[0] == depth
    if opened == depth == 1:
        places = zip(found[1], found[2], strict=True)
        assert [text[start - 1000 : stop - 1000].encode() for start, stop in places] == rows[1:-1]


@given(st.lists(st.lists(NUMBERS, max_size=40), min_size=1, max_size=5), st.sampled_from([",", ", "]))
def test_all_lists_of_numbers_are_found(find: Find, rows: list[list[str]], between: str) -> None:
    written = [f"[{between.join(row)}]" for row in rows]
    text = between.join(written).encode()
    found = find(text, 0, len(text), 1, 0, len(rows), 0)
    assert found is not None
    depth, starts, ends, _ = found
    assert depth == 1
    assert [text[start:stop].decode() for start, stop in zip(starts, ends, strict=True)] == written
    assert find(text, 0, len(text), 1, 0, len(rows) - 1, 0) is None


@given(st.lists(NUMBERS, min_size=3, max_size=60), st.data())
def test_a_list_in_two_pieces_is_found_as_well(find: Find, numbers: list[str], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(numbers) - 1))
    pieces = ["[[" + ",".join(numbers[:cut]), ",".join(numbers[cut:]) + "]],[[7]]"]
    first = find(pieces[0].encode(), 0, len(pieces[0]), 1, 0, MOST, 0)
    assert first is not None
    assert first[:3] == (3, [0], [])
    at = len(pieces[0]) + 1
    second = find(pieces[1].encode(), 0, len(pieces[1]), 3, at, MOST, first[3])
    assert second is not None
    assert second[:3] == (1, [at + len(pieces[1]) - 5], [at + len(pieces[1]) - 6, at + len(pieces[1])])


@given(texts(), st.data())
@examples(200)
def test_the_nesting_tells_the_form_in_one_piece_and_in_several(find: Find, text: str, data: st.DataObject) -> None:
    written = text.encode("latin-1")
    commas = [at for at, byte in enumerate(written) if byte == ord(",")]
    chosen = sorted(data.draw(st.lists(st.sampled_from(commas), unique=True, max_size=3))) if commas else []
    depth, at, nesting, form = 1, 0, 0, b"["
    for stop in (*chosen, len(written)):
        found = find(written, at, stop, depth, 0, MOST, nesting)
        if found is None:
            return
        depth, nesting = found[0], found[3]
        form = form_scan.scan(form, written, at, stop, False) or b""
        at = stop + 1
        if nesting >= 0:
            assert forms.of_numbers(nesting, depth) == form


@given(st.lists(st.lists(NUMBERS, min_size=1, max_size=9), min_size=1, max_size=5))
def test_lists_as_most_are_need_no_second_look(find: Find, rows: list[list[str]]) -> None:
    text = ",".join([f"[{','.join(row)}]" for row in rows]).encode()
    found = find(text, 0, len(text), 1, 0, MOST, 0)
    assert found is not None
    has_big = re.search(rb"(?<![-+.0-9eE])-?[0-9]{16}", text)
    assert found[3] == -1 if has_big else found[3] & 63 == 2


@pytest.mark.parametrize(
    "text",
    [
        b"1,2,3", b"[1],2", b"2,[1]", b'["a"]', b"[true]", b"[{}]", b"[1]\n,[2]", b"[ 1]", b"[1,  2]", b"[01]", b"[1.]",
        b"[-]", b"[+1]", b"[1e]", b"[1.2.3]", b"[1e5.5]", b"[1,]", b"[,1]", b"[1],", b",[1]", b"[1]]", b"[1][2]", b"",
        b"[" * 64 + b"1" + b"]" * 64, b"[" + b"1" * 62 + b".5.5]", b"[" + b"1" * 63 + b".5.5]", b"[" + b"0" * 70 + b"]",
        b"1," * 1000 + b"[2]", b"[" + b"1," * 31 + b"01]", b"[" + b"1," * 30 + b"1e-,1]",
    ],
)  # fmt: skip
def test_all_else_is_for_others_to_tell(find: Find, text: bytes) -> None:
    assert find(text, 0, len(text), 1, 0, MOST, 0) is None


def test_the_compiled_build_has_it() -> None:
    if carpool_sidecar.build() == "python":
        pytest.skip("this is the Python")
    assert not str(number_lists.__file__).endswith(".py")


def test_places_outside_of_the_text_are_never_looked_at(find: Find) -> None:
    for start, stop in ((-1, 3), (0, 4), (3, 3), (2, 1), (0, MOST)):
        assert find(b"[1]", start, stop, 1, 0, MOST, 0) is None
    with pytest.raises(TypeError):
        find("[1]", 0, 3, 1, 0, MOST, 0)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        find(b"[1]", 0, 1 << 70, 1, 0, MOST, 0)
