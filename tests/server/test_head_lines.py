"""The lines of heads, in Python and in C: what servers may differ on has no lines, and both tell the same."""

from __future__ import annotations

import contextlib
import string
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import carpool_sidecar
from carpool_sidecar.server.http1 import head_lines
from tests import native

NAME = "server.http1.head_lines"
TOKEN = "!#$%&'*+-.^_`|~" + string.ascii_letters + string.digits  # RFC 9110, section 5.6.2
LONG = "x-" + "long" * 20
KINDS = {
    "host": -1, "connection": -1, "expect": -2, "accept": 0, "content-length": 1, "x-request-id": 2, "x-request-ip": 3,
    LONG: 4, "a": 5, LONG + "er": -2,
}  # fmt: skip
PLACES = 5
ODD = st.sampled_from(
    [
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b"\0",
        b"\t",
        b"\x1f",
        b" ",
        b"~",
        b"\x7f",
        b"\x80",
        b"\xff",
        b":",
        b"",
        b"\r\n ",
    ]
)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """Heads that are mostly plain, in any order, spelling and spacing, with a few bytes of anything put in."""
    lines = ["POST / HTTP/1.1"]
    for _ in range(draw(st.integers(0, 6))):
        name = draw(st.one_of(st.sampled_from([*KINDS, "X-Request-IDx", "b"]), st.text(TOKEN, min_size=1, max_size=70)))
        name = draw(st.sampled_from([name, name.upper(), name.title()]))
        value = draw(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
        lines.append(f"{name}:{draw(st.sampled_from(['', ' ', '  ']))}{value}")
    text = "\r\n".join(lines).encode()
    for at in draw(st.lists(st.integers(0, len(text)), max_size=3)):
        text = text[:at] + draw(ODD) + text[at + draw(st.integers(0, 2)) :]
    return text + b"\r\n\r\n"


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return native.in_c(NAME, tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def in_portable_c(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """As other processors have it, without the instructions for 16 bytes at once."""
    return native.in_c(NAME, tmp_path_factory.mktemp("portable"), "-U__SSE2__")


@pytest.fixture(scope="module", params=["python", "in_c", "in_portable_c"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return native.in_python(NAME) if request.param == "python" else request.getfixturevalue(request.param)


def values(matter: str, **told: str) -> list[str | None]:
    """What is told of lines that matter, and the values at these places."""
    return [matter, *(told.get(f"at{place}") for place in range(1, PLACES + 1))]


@given(heads())
@example(b"\r\n\r\n")
@example(b"\r\nHost: x\r\n\r\n")
@example(b"a" * 15 + b"\r\n\r\n")
@example(b"a" * 16 + b"\r\nHost: " + b"b" * 16 + b"\r\n\r\n")
@example(b"P\r\nx:\xc3\xa9\r\n\r\n")
def test_of_every_head_c_tells_what_python_tells(in_c: ModuleType, text: bytes) -> None:
    python = native.in_python(NAME)
    assert in_c.lines(text) == python.lines(text)
    for others in (-1, 0):
        assert in_c.sorter(KINDS, PLACES, others)(text) == python.sorter(KINDS, PLACES, others)(text)


@given(heads())
def test_a_head_has_lines_where_all_between_their_ends_is_visible_ascii(module: ModuleType, text: bytes) -> None:
    lines = text[:-4].split(b"\r\n")
    is_plain = all(32 <= code < 127 for line in lines for code in line)
    assert module.lines(text) == ([line.decode() for line in lines] if is_plain else None)


@given(heads())
def test_a_head_is_sorted_where_its_lines_are_headers_and_none_is_refused_or_told_twice(
    module: ModuleType, text: bytes
) -> None:
    lines = module.lines(text)
    found = module.sorter(KINDS, PLACES)(text)
    if lines is None:
        assert found is None
        return
    pairs = [line.partition(":") for line in lines[1:]]
    kinds = [KINDS.get(name.lower(), 0) for name, _, _ in pairs]
    told = [kind for kind in kinds if kind > 0]
    is_plain = all(colon and name and not set(name) - set(TOKEN) for name, colon, _ in pairs)
    if not is_plain or -2 in kinds or len(set(told)) < len(told):
        assert found is None
        return
    expected = values(
        "\r\n".join([lines[0], *(line for line, kind in zip(lines[1:], kinds, strict=True) if kind == -1)])
    )
    for (_, _, value), kind in zip(pairs, kinds, strict=True):
        if kind > 0:
            expected[kind] = value.strip(" ")
    assert found == expected


def test_names_are_told_in_any_spelling_and_values_without_the_spaces_around_them(module: ModuleType) -> None:
    sort = module.sorter(KINDS, PLACES)
    head = f"GET / HTTP/1.1\r\nX-REQUEST-id:  an id \r\nHOST: h\r\n{LONG}:\r\nAccept: b\r\nX-Other: c\r\na: d\r\n\r\n"
    assert sort(head.encode()) == values("GET / HTTP/1.1\r\nHOST: h", at2="an id", at4="", at5="d")


@pytest.mark.parametrize("before", [0, 1, 15, 16, 17, 40])
def test_of_all_bytes_only_visible_ascii_is_in_lines_and_only_tokens_in_names(module: ModuleType, before: int) -> None:
    sort = module.sorter({"x": -1}, 0)
    for code in range(256):
        line = b"v" * before + bytes([code]) + b"v" * 20
        is_visible = 32 <= code < 127
        assert (module.lines(b"P\r\nx: " + line + b"\r\n\r\n") is not None) is is_visible
        assert (sort(b"P\r\nx: " + line + b"\r\n\r\n") is not None) is is_visible
        assert (sort(line + b"\r\nx: 1\r\n\r\n") is not None) is is_visible
        is_token = chr(code) in TOKEN
        for name in (line, line[: before + 1], line[before:]):
            assert (sort(b"P\r\n" + name + b": 1\r\n\r\n") is not None) is (
                is_token or (chr(code) == ":" and name[0] != code)
            )
            assert module.is_name(name.decode("latin-1") + ":") is is_token


def test_names_that_differ_in_one_bit_are_told_apart(module: ModuleType) -> None:
    sort = module.sorter({"a~b": 1}, 1)
    assert [sort(b"P\r\n%b: v\r\n\r\n" % name) for name in (b"A~B", b"a^b")] == [["P", "v"], ["P", None]]


def test_names_that_were_not_told_may_matter_or_mean_nothing(module: ModuleType) -> None:
    head = b"P\r\nX-a:  1 \r\nHost: h\r\nAccept: b\r\na: c\r\nx-A: 2\r\n\r\n"
    for _ in range(2):
        assert module.sorter(KINDS, PLACES, -1)(head) == values("P\r\nX-a:  1 \r\nHost: h\r\nx-A: 2", at5="c")
        assert module.sorter(KINDS, PLACES, 0)(head) == values("P\r\nHost: h", at5="c")


def test_all_headers_may_matter(module: ModuleType) -> None:
    text = b"P\r\n" + b"X: 1\r\n" * 128
    assert module.sorter({"x": -1}, 0)(text + b"\r\n") == [text[:-2].decode()]


def test_nothing_is_kept_of_heads(module: ModuleType) -> None:
    sort = module.sorter(KINDS, PLACES)
    good = b"P\r\nHost: a host of many\r\nContent-Length: 12345\r\nX-Request-ID: an id\r\nX-Other: b\r\n"
    texts = [
        good + end
        for end in (b"\r\n", b"X-Request-ID: 1\r\n\r\n", b"Expect: 1\r\n\r\n", b"a b: 1\r\n\r\n", b"a: \x80\r\n\r\n")
    ]

    def all_of_them() -> None:
        for text in texts:
            sort(text), module.lines(text)
        for places in (-1, PLACES):
            with contextlib.suppress(ValueError):
                module.sorter({**KINDS, "b": 9}, places)
        module.sorter(KINDS, PLACES)(good + b"\r\n")

    for _ in range(20):
        all_of_them()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        all_of_them()
    assert sys.getallocatedblocks() - before < 100


def test_names_that_were_met_are_kept_up_to_a_number_of_them(module: ModuleType) -> None:
    sort = module.sorter(KINDS, PLACES)
    before = sys.getallocatedblocks()
    for number in range(20_000):
        assert sort(b"P\r\nX-%d: 1\r\n\r\n" % number) is not None
    assert sys.getallocatedblocks() - before < 5000


def test_more_than_128_headers_are_no_lines(module: ModuleType) -> None:
    sort = module.sorter({"x": -1}, 0)
    for count, is_plain in ((128, True), (129, False)):
        text = b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * count + b"\r\n"
        assert (module.lines(text) is not None) is is_plain
        assert (sort(text) is not None) is is_plain


@pytest.mark.parametrize(
    "text", [b"", b"\r\n", b"\n\r\n", b"GET / HTTP/1.1\r\nHost: h\r\n", b"GET / HTTP/1.1\r\n\r\n\n"]
)
def test_what_is_no_complete_head_has_no_lines(module: ModuleType, text: bytes) -> None:
    assert module.lines(text) is None
    assert module.sorter(KINDS, PLACES)(text) is None


@given(st.text(st.one_of(st.sampled_from(TOKEN + ": \0é"), st.characters()), max_size=8))
@example("\ud800:")
@example("Accept:")
def test_a_name_is_a_token_with_a_colon(module: ModuleType, name: str) -> None:
    assert module.is_name(name) == (len(name) > 1 and name.endswith(":") and not set(name[:-1]) - set(TOKEN))


def test_what_it_is_made_of_is_checked(module: ModuleType) -> None:
    for kinds in ({"a": 6}, {"a": -3}):
        with pytest.raises(ValueError, match="the kinds of headers are -2 to 5"):
            module.sorter(kinds, PLACES)
    for places in (-1, 65, 2**31 - 1):
        with pytest.raises(ValueError, match="there are 0 to 64 places"):
            module.sorter({}, places)
    for others in (-3, -2, 1):
        with pytest.raises(ValueError, match="other headers are of the kind -1 or 0"):
            module.sorter(KINDS, PLACES, others)
    assert module.sorter({}, 64)(b"P\r\n\r\n") == ["P", *[None] * 64]
    for wrong in (None, 7, [("a", 1)], {"a": "b"}):
        with pytest.raises((TypeError, AttributeError)):
            module.sorter(wrong, PLACES)


def test_what_is_no_text_is_refused_by_c(in_c: ModuleType) -> None:
    wrong: Any
    for wrong in ("GET / HTTP/1.1\r\n\r\n", None, bytearray(b"\r\n\r\n")):
        with pytest.raises(TypeError):
            in_c.lines(wrong)
        with pytest.raises(TypeError):
            in_c.sorter(KINDS, PLACES)(wrong)
    with pytest.raises(TypeError):
        in_c.is_name(b"a:")
    with pytest.raises(TypeError):
        in_c.sorter({b"a": 1}, PLACES)


def test_a_sorter_keeps_the_names_that_it_was_made_of(in_c: ModuleType) -> None:
    kinds = {f"x-{number}": 1 for number in range(50)}
    sort = in_c.sorter(kinds, 1)
    kinds.clear()
    assert [sort(b"P\r\nX-%d: v\r\n\r\n" % number) for number in (0, 49, 50)] == [["P", "v"], ["P", "v"], ["P", None]]


def test_the_compiled_build_has_it() -> None:
    if carpool_sidecar.build() == "python":
        pytest.skip("this is the Python")
    assert not str(head_lines.__file__).endswith(".py")
