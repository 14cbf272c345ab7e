"""JSON as odd clients and servers write it: texts with blanks, escapes, huge numbers and values that look like more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

Template = list[Any]
"""A text with gaps: strings, and tuples whose one element names what comes there."""

blanks = st.sampled_from(["", "", "", "", " ", "\n", "\t", " \r\n "])

_BITS = [
    "a", "word", " ", "é", "日本", "\U0001f600", r"\"", r"\\", r"\/", r"\n", r"\u0041", r"\u00e9", r"\ud83d\ude00",
    r"\ud83d", r"\ude00x", "[",
    "]", "{", "}", ",", ":", "],[", r"\"input\":[1]", r"\\\"", r'{\"data\":[1,2],\"index\":7}', "\x7f", "\u2028", "0",
]  # fmt: skip

strings = st.lists(st.sampled_from(_BITS), max_size=5).map(lambda bits: f'"{"".join(bits)}"')

integers = st.integers(-9, 99).map(str) | st.sampled_from(["9007199254740993", "-0", "1" + "0" * 400])

numbers = integers | st.sampled_from(["1.0", "-0.0", "1e400", "1E+2", "0.1000000000000000055", "0.1e-5", "5e-324"])

literals = st.sampled_from(["true", "false", "null"])

# Names that mean something elsewhere, in the same places or deeper.
names = st.sampled_from(["input", "data", "index", "usage", "stream", "user", "a", "b", "x", "", "a.b", "$", "é"])


@st.composite
def keys(draw: st.DrawFn, name: str) -> str:
    """A name as a member has it, sometimes with an escape."""
    written = json.dumps(name, ensure_ascii=draw(st.booleans()))
    if name and name[0].isascii() and name[0].isalpha() and draw(st.integers(0, 9)) == 0:
        return f'"\\u{ord(name[0]):04x}{written[2:]}'
    return written


@st.composite
def joined(draw: st.DrawFn, opening: str, items: Sequence[str], closing: str) -> str:
    """Items with commas and blanks between them."""
    text = opening + draw(blanks)
    for number, item in enumerate(items):
        text += ("," + draw(blanks) if number else "") + item + draw(blanks)
    return text + closing


def lists(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(inner, max_size=3).flatmap(lambda items: joined("[", items, "]"))


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Members may be there twice."""
    member = st.tuples(names.flatmap(keys), blanks, blanks, inner).map(lambda each: "{}{}:{}{}".format(*each))
    return st.lists(member, max_size=3).flatmap(lambda items: joined("{", items, "}"))


leaves = strings | numbers | literals

values = st.recursive(leaves, lambda inner: lists(inner) | objects(inner), max_leaves=5)

# --- rows of one form --------------------------------------------------------------------------------------------

Shape = str | tuple[Any, ...]
"""What rows of one form have: a kind, ("object", (name as written, shape), …) or ("list", (shape, count), …), where a
count of 0 is any number from 1 on."""

_LEAVES = {
    "string": strings,
    "number": st.integers(-9, 99).map(str) | st.sampled_from(["1.0", "-0.0", "1e400", "1E+2", "0.10", "5e-324", "-0"]),
    "large": st.sampled_from(["9007199254740993", "-9007199254740993", "1000000000000000000", "1" + "0" * 400]),
    "boolean": st.sampled_from(["true", "false"]),
    "null": st.just("null"),
    "token": st.integers(0, 50_000).map(str),
}


@st.composite
def shapes(draw: st.DrawFn, kinds: Sequence[str], has_lengths: bool = False, depth: int = 2) -> Shape:
    """Of rows that are of one of these kinds; with `has_lengths` equal ones have lists of one length."""
    kind = draw(st.sampled_from(sorted(kinds)))
    inner = shapes([*sorted(_LEAVES), *(["list", "object"] if depth else [])], has_lengths, depth - 1)
    if kind == "tokens":
        return ("list", ("token", draw(st.integers(1, 3)) if has_lengths else 0))
    if kind == "list":
        few = st.integers(1, 3) if has_lengths else st.sampled_from([0, 0, 1, 2])
        return ("list", *draw(st.lists(st.tuples(inner, few), max_size=3)))
    if kind == "object":
        named = draw(st.lists(names, max_size=3, unique=has_lengths))  # one may be there twice, but not in a table
        return ("object", *((draw(keys(name)), draw(inner)) for name in named))
    return kind


@st.composite
def rows(draw: st.DrawFn, shape: Shape) -> str:
    """A row of this shape."""
    if isinstance(shape, str):
        return draw(_LEAVES[shape])
    if shape[0] == "object":
        told = [f"{name}{draw(blanks)}:{draw(blanks)}{draw(rows(inner))}" for name, inner in shape[1:]]
        return draw(joined("{", told, "}"))
    counts = [count or draw(st.integers(1, 3)) for _, count in shape[1:]]
    found = [draw(rows(inner)) for (inner, _), count in zip(shape[1:], counts, strict=True) for _ in range(count)]
    return draw(joined("[", found, "]"))


@st.composite
def object_templates(
    draw: st.DrawFn,
    members: dict[str, Template],
    avoid: frozenset[str] = frozenset(),
    others: st.SearchStrategy[str] = values,
) -> Template:
    """An object of some members and up to two more that are nobody's business, in any order, and any blanks."""
    more = names.filter(lambda name: name not in (*members, *avoid, "stream"))
    every = {name: [draw(others)] for name in draw(st.lists(more, unique=True, max_size=2))} | members
    return draw(_members(every, draw(st.permutations(sorted(every)))))


@st.composite
def _members(draw: st.DrawFn, members: Mapping[str, Template], order: Sequence[str]) -> Template:
    made: Template = ["{" + draw(blanks)]
    for number, name in enumerate(order):
        made.append(("," + draw(blanks) if number else "") + draw(keys(name)) + draw(blanks) + ":" + draw(blanks))
        made += [*members[name], draw(blanks)]
    return [*made, "}"]


def fill(template: Template, gaps: Mapping[Any, str]) -> str:
    """The text of a template."""
    return "".join(each if isinstance(each, str) else gaps[each[0]] for each in template)


_GARBAGE = [
    b"[", b"]", b",", b",,", b"{", b"}", b'"', b"\\", b" ", b"1", b"-", b"[]", b"null", b"\xff", b"\0", b":", b'"a"',
    b'"input":[1],', b'"data":[1],', b'"index":1,', b"NaN", b"\\u", b"\xed\xa0\x80", b"0", b".", b"e", b"[[[[",
    b'"stream":true,',
]  # fmt: skip


@st.composite
def garbled(draw: st.DrawFn, body: bytes) -> bytes:
    """A good text with some bytes replaced, added or taken away, or a piece of it there twice."""
    garbage = bytearray(body)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(garbage) - 1)))
        stop = at + draw(st.sampled_from([0, 0, 1, 1, 2, 10, 1000]))
        if draw(st.integers(0, 5)) == 0:
            garbage[at:at] = garbage[at:stop]
        else:
            garbage[at:stop] = draw(st.sampled_from([b"", *_GARBAGE]))
    return bytes(garbage)
