"""The few characters of a text that have to change so that it says something else.

`edited` walks over what is written and what is wanted together and collects edits where they differ; block style is
edited by lines, text inside of brackets by characters. Comments, order, quoting, anchors and blank lines stay because
they are never touched. An alias of something that changes in one of its places only is written out in the other. The
result is read again and compared with what was wanted before it is returned.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from carpool_injector.documents import reading, style
from carpool_injector.documents.reading import Node


def edited(text: str, documents: Sequence[Node], wanted: Sequence[Any], name: str) -> str:
    """The text with its documents changed to the data that is wanted, in as few places as that takes.

    Raises reading.Unreadable where the text is written in a way that cannot be edited faithfully.
    """
    pairs = [pair for pair in zip(documents, wanted, strict=True) if pair[0].data != pair[1]]
    if not pairs:
        return text
    # A last line without an end gets one for as long as lines are inserted and removed.
    newline = "\r\n" if "\r\n" in text else "\n"
    end = "" if text.endswith("\n") else newline
    edits = [edit for root, after in pairs for edit in _Editor(text + end, root, newline).edits(after)]
    if end:
        edits += _stripped(text, documents[-1], edits)
    result = _applied(text + end, edits).removesuffix(end)
    try:
        is_faithful = reading.contents(result, name) == list(wanted)
    except reading.Unreadable:
        is_faithful = False
    if not is_faithful:
        way = "this is written in a way that cannot be changed in place; write it in plain block style (one key a line)"
        raise reading.Unreadable(name, pairs[0][0].mark.line + 1, 1, way)
    return result


class Edit(NamedTuple):
    """Characters from `start` up to `end` become `text`."""

    start: int
    end: int
    text: str


# Anchor, tag and sign of a block scalar, and the digit and the sign of its header, in either order.
_HEADER = re.compile(r"((?:[&!]\S*\s+)*[|>][0-9]?)([-+]?)")


def _stripped(text: str, node: Node, edits: Sequence[Edit]) -> Iterator[Edit]:
    """A block scalar at the end of a text whose last line has no end: lines behind it would give its value one."""
    while node.held and not node.is_flow and not node.base:
        node = node.held[-1][1]
    header = _HEADER.match(text, node.start) if node.text is not None else None
    is_last = not text[node.end :].strip()
    if header and is_last and any(edit.start > len(text) for edit in edits):
        yield Edit(header.start(2), header.end(2), "-")


def _applied(text: str, edits: Sequence[Edit]) -> str:
    parts: list[str] = []
    done = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        parts += [text[done : edit.start], edit.text]
        done = max(done, edit.end)
    return "".join([*parts, text[done:]])


class _Span(NamedTuple):
    """Where an entry or an item stands, with its key or dash."""

    start: int
    end: int


class _Editor:
    """Walks over what is written and what is wanted together, and collects edits where they differ.

    One walk is enough: what an alias refers to is written in front of it.
    """

    def __init__(self, text: str, root: Node, newline: str) -> None:
        self._text, self._root, self._newline = text, root, newline
        self._style = style.style_of(text, root, newline)
        self._edits: list[Edit] = []
        self._changed: set[int] = set()  # nodes whose text changes: aliases of them do not mean the same any more

    def edits(self, after: Any) -> list[Edit]:
        self._collection(self._root, after)
        return self._edits

    def _value(self, parent: Node, key: Node | None, node: Node, after: Any) -> None:
        is_other = node.data != after
        if node.base:
            if is_other or id(node.base) in self._changed:
                self._replace(parent, key, node, after)
        elif _share(node.data, after):
            self._collection(node, after)
        elif is_other:
            self._changed.add(id(node))
            self._replace(parent, key, node, after)

    def _collection(self, node: Node, after: Any) -> None:
        if node.data != after:
            self._changed.add(id(node))
        if isinstance(node.data, dict):
            self._mapping(node, after)
        elif isinstance(node.data, list):
            self._sequence(node, after)

    def _mapping(self, node: Node, after: dict[str, Any]) -> None:
        before = node.data
        entries = [(key, value) for key, value in node.held if key is not None]
        own = {key.key: (key, value) for key, value in entries if key.tag != reading.MERGE}
        merged = [value for key, value in entries if key.tag == reading.MERGE]
        inherited = _inherited(merged)
        again = {name for name in own if name in inherited and before[name] != after.get(name) == inherited[name]}
        for name, (key, value) in own.items():
            if name in after and name not in again:
                self._value(node, key, value, after[name])
        # What `<<` brings in is still right if nothing of it goes, and it does not change in its own place.
        sources = [each for value in merged for each in (value, *reading.bases(value))]
        merges = own.keys() | after.keys() >= before.keys() and all(
            id(each.base or each) not in self._changed for each in sources
        )
        if not merges:  # what is inherited is written out
            for name in again:
                self._value(node, *own[name], after[name])
        goes = (before.keys() - after.keys()) | (again if merges else set())
        spans = [_Span(key.start, max(reading.colon(self._text, key), value.end)) for key, value in entries]
        self._remove(node, spans, [merges if key.tag == reading.MERGE else key.key not in goes for key, _ in entries])
        given = inherited if merges else {}
        new = {name: held for name, held in after.items() if name not in own}
        if added := {name: held for name, held in new.items() if given.get(name, new) != held}:
            self._insert(node, spans, len(spans), added)

    def _sequence(self, node: Node, after: list[Any]) -> None:
        before = node.data
        items = [item for _, item in node.held]
        kept = [True] * len(items)
        starts = [
            item.start if node.is_flow else reading.dash(self._text, node, number) for number, item in enumerate(items)
        ]
        spans = [_Span(start, item.end) for start, item in zip(starts, items, strict=True)]
        for _, i, j, k, m in _steps(before, after):
            if j - i == m - k:
                for item, value in zip(items[i:j], after[k:m], strict=True):
                    self._value(node, None, item, value)
                continue
            kept[i:j] = [False] * (j - i)
            if m > k:
                self._insert(node, spans, i, after[k:m])
        self._remove(node, spans, kept)

    def _insert(self, node: Node, spans: Sequence[_Span], number: int, new: dict[str, Any] | list[Any]) -> None:
        """Entries or items in front of the one of that number; behind all others for the number behind the last."""
        if node.is_flow:
            self._insert_flow(node, spans, number, new)
            return
        first = spans[0].start
        column = self._column(first)
        lines = self._style.block(new, column)
        if number:
            self._insert_lines(spans[number - 1].end, lines)
        elif self._opens_line(first):
            self._edit(first - column, first - column, lines + self._newline)
        else:
            indent = " " * column
            self._edit(first, first, lines.removeprefix(indent) + self._newline + indent)

    def _insert_flow(self, node: Node, spans: Sequence[_Span], number: int, new: dict[str, Any] | list[Any]) -> None:
        gaps = [self._text[end:start] for (_, end), (start, _) in pairwise(spans)]
        opening = self._text[node.start + len(reading.properties(self._text, node)) + 1 : spans[0].start]
        gap = gaps[-1] if gaps else "," + (opening if "\n" in opening else " ")
        if "#" in gap:
            gap = ", "
        margin = gap.rpartition("\n")[2] if "\n" in gap else self._margin(spans[0].start)
        written = [self._style.flow(each, margin) for each in (new.values() if isinstance(new, dict) else new)]
        keys = [f"{self._style.flow(name, margin)}: " for name in new] if isinstance(new, dict) else [""] * len(new)
        rendered = [key + value for key, value in zip(keys, written, strict=True)]
        if number:
            place = spans[number - 1].end
            self._edit(place, place, "".join(gap + entry for entry in rendered))
        else:
            self._edit(spans[0].start, spans[0].start, "".join(entry + gap for entry in rendered))

    def _insert_lines(self, after: int, lines: str) -> None:
        """Lines behind the one that holds the position `after`."""
        place = self._next_line(after)
        self._edit(place, place, lines + self._newline)

    def _remove(self, node: Node, spans: Sequence[_Span], kept: list[bool]) -> None:
        """All entries or items that are not to be kept; at least one is."""
        for stays, run in groupby(range(len(kept)), kept.__getitem__):
            if stays:
                continue
            numbers = list(run)
            first, last = numbers[0], numbers[-1]
            start, end = spans[first].start, spans[last].end
            if node.is_flow and first:
                self._edit(spans[first - 1].end, end, "")
            elif (node.is_flow or not self._opens_line(start)) and last + 1 < len(spans):
                self._edit(start, spans[last + 1].start, "")
            elif node.is_flow:
                self._edit(start, end, "")
            else:
                self._edit(start - self._column(start), self._next_line(end), "")

    def _replace(self, parent: Node, key: Node | None, node: Node, after: Any) -> None:
        """Something else where a value, an item or an alias stands."""
        quote = keep = ""
        if not node.base:
            quote = node.style if node.style in ("'", '"') else ""
            keep = reading.properties(self._text, node)
        is_block = isinstance(after, dict | list) and bool(after)
        if parent.is_flow:
            if is_block:
                written = self._style.flow(after, self._margin(node.start))
            else:
                written = self._style.scalar(after, quote or _quote_beside(parent, key, node), brackets=True)
            self._edit(node.start, node.end, keep + written)
        elif key is None:
            gap = " " if node.is_absent else ""
            start = node.end if gap else node.start
            indent = self._column(start) + len(gap)
            if not is_block:
                written = keep + self._style.scalar(after, quote)
            elif keep:
                written = keep.rstrip() + self._newline + self._style.block(after, indent)
            else:
                written = self._style.block(after, indent).removeprefix(" " * indent)
            self._edit(start, node.end, gap + written)
        elif is_block:
            self._replace_by_lines(key, node.end, keep.rstrip(), after)
        else:
            begin = reading.colon(self._text, key)
            blanks = self._text[begin : node.start]
            gap = blanks if blanks and not blanks.strip(" ") else " "
            self._edit(begin, node.end, gap + keep + self._style.scalar(after, quote))

    def _replace_by_lines(self, key: Node, end: int, keep: str, after: Any) -> None:
        begin = reading.colon(self._text, key)
        inner = self._style.dash if isinstance(after, list) else self._style.step
        lines = self._style.block(after, self._column(key.start) + inner)
        if begin == end:  # nothing is written there: a comment behind the colon keeps its place
            self._insert_lines(begin, lines)
        else:
            self._edit(begin, end, f" {keep}" * bool(keep) + self._newline + lines)

    def _edit(self, start: int, end: int, text: str) -> None:
        self._edits.append(Edit(start, end, text))

    def _column(self, position: int) -> int:
        return position - (self._text.rfind("\n", 0, position) + 1)

    def _margin(self, position: int) -> str:
        """The blanks that the line of `position` begins with."""
        before = self._text[position - self._column(position) : position]
        return before[: len(before) - len(before.lstrip(" \t"))]

    def _next_line(self, position: int) -> int:
        """Where the line after the one of `position` begins."""
        return self._text.index("\n", position) + 1

    def _opens_line(self, position: int) -> bool:
        """Whether only blanks stand before `position` on its line."""
        return not self._text[position - self._column(position) : position].strip()


def _inherited(merged: Sequence[Node]) -> dict[str, Any]:
    """What each `<<` of a mapping brings in, whether or not the mapping says otherwise itself."""
    found: dict[str, Any] = {}
    for base in (each for value in merged for each in reading.bases(value)):
        found = {**base.data, **found}
    return found


def _share(before: Any, after: Any) -> bool:
    """Whether one can become the other piece by piece: something that is there stays."""
    if isinstance(before, dict) and isinstance(after, dict):
        return not before.keys().isdisjoint(after)
    if isinstance(before, list) and isinstance(after, list) and before:
        return len(before) == len(after) or not set(_identities(before)).isdisjoint(_identities(after))
    return False


def _steps(before: list[Any], after: list[Any]) -> Sequence[tuple[str, int, int, int, int]]:
    """How one list becomes the other, as difflib's opcodes."""
    if before == after:
        return [("equal", 0, len(before), 0, len(after))]
    return difflib.SequenceMatcher(None, _identities(before), _identities(after), autojunk=False).get_opcodes()


def _identities(items: list[Any]) -> list[str]:
    """What an item is known by: containers, volumes and the like by name, all else by what it says."""
    named = [item.get("name") if isinstance(item, dict) else None for item in items]
    if all(isinstance(name, str) for name in named):
        return [str(name) for name in named]
    return [json.dumps(item, sort_keys=True) for item in items]


def _quote_beside(parent: Node, key: Node | None, node: Node) -> str:
    """The quotes for a value inside of brackets that had none: double ones where all this may be JSON."""
    if _is_plain_string(node) or (key is not None and key.text is not None and key.style is None):
        return ""
    is_beside_plain = isinstance(parent.data, list) and any(_is_plain_string(item) for _, item in parent.held)
    return "" if is_beside_plain else '"'


def _is_plain_string(node: Node) -> bool:
    return node.text is not None and node.style is None and node.tag == reading.STRING
