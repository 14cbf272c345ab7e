"""Single edits of a text: entries and items inserted, removed and replaced, in the style that is there already.

Block style works by lines, and what stands inside of brackets by characters; both leave the rest of the text alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from carpool_injector.documents import layout, nodes, syntax

Spans = Sequence[nodes.Span]


class Edit(NamedTuple):
    """Characters from `start` up to `end` become `text`."""

    start: int
    end: int
    text: str


class Pen:
    """Collects edits of one document. `spans` are the places of a collection's entries or items, in their order."""

    def __init__(self, places: layout.Layout) -> None:
        self._at = places
        self._style = places.style
        self.edits: list[Edit] = []

    def add_entries(self, node: MappingNode, spans: Spans, new: dict[str, Any]) -> None:
        """Entries at the end of a mapping that has some."""
        if new and node.flow_style:
            entries = [(f"{json.dumps(text, ensure_ascii=False)}: ", held) for text, held in new.items()]
            self._insert_flow(node, spans, len(spans), entries)
        elif new:
            self._insert_lines(spans[-1][1], self._style.block(new, self._at.column(spans[0][0])))

    def insert_items(self, node: SequenceNode, spans: Spans, number: int, items: list[Any]) -> None:
        """Items in front of the item of that number; behind all others for the number behind the last."""
        if node.flow_style:
            self._insert_flow(node, spans, number, [("", item) for item in items])
            return
        lines = self._style.block(items, self._at.column(spans[0][0]))
        first = spans[0][0]
        if number:
            self._insert_lines(spans[number - 1][1], lines)
        elif self._at.opens_line(first):
            line = first - self._at.column(first)
            self.edits.append(Edit(line, line, lines + self._style.newline))
        else:
            indent = " " * self._at.column(first)
            self.edits.append(Edit(first, first, lines.removeprefix(indent) + self._style.newline + indent))

    def remove(self, node: CollectionNode, spans: Spans, kept: list[bool]) -> None:
        """All entries or items that are not to be kept; at least one is."""
        number = 0
        while number < len(kept):
            last = number
            while last + 1 < len(kept) and not kept[number] and not kept[last + 1]:
                last += 1
            if not kept[number]:
                self.edits.append(self._removal(node, spans, number, last))
            number = last + 1

    def replace(self, parent: Node, key: Node | int, node: Node, after: Any) -> None:
        """Something else where a value, an item or an alias stands."""
        alias = self._at.document.alias(parent, key)
        start, end = self._at.start(node, parent, key), self._at.end(node, parent, key)
        quote = None if alias else _quote(node)
        keep = "" if alias else self._at.properties(node)
        if isinstance(parent, CollectionNode) and parent.flow_style:
            self.edits.append(
                Edit(start, end, keep + self._bracketed(after, quote or _quote_beside(parent, key, node), start))
            )
        elif isinstance(key, int):
            gap = " " if layout.is_absent(node) else ""
            start = end if gap else start
            rendered = self._inline(after, self._at.column(start) + len(gap), quote, keep)
            self.edits.append(Edit(start, end, gap + rendered))
        elif isinstance(after, dict | list) and after:
            self._replace_by_lines(key, end, keep.rstrip(), after)
        else:
            begin = self._at.colon(key)
            blanks = self._at.text[begin:start]
            gap = blanks if blanks and not blanks.strip(" ") else " "
            self.edits.append(Edit(begin, end, gap + keep + self._style.scalar(after, quote)))

    def _bracketed(self, after: Any, quote: str | None, start: int) -> str:
        if isinstance(after, dict | list) and after:
            return self._style.flow(after, self._at.margin(start))
        return self._style.scalar(after, quote, brackets=True)

    def _insert_lines(self, after: int, lines: str) -> None:
        """Lines behind the one that holds the position `after`."""
        place = self._at.next_line(after)
        self.edits.append(Edit(place, place, lines + self._style.newline))

    def _insert_flow(self, node: CollectionNode, spans: Spans, number: int, entries: list[tuple[str, Any]]) -> None:
        text = self._at.text
        gaps = [text[end:start] for (_, end), (start, _) in pairwise(spans)]
        opening = text[node.start_mark.index + len(self._at.properties(node)) + 1 : spans[0][0]]
        gap = gaps[-1] if gaps else "," + (opening if "\n" in opening else " ")
        if "#" in gap:
            gap = ", "
        margin = gap.rpartition("\n")[2] if "\n" in gap else self._at.margin(spans[0][0])
        rendered = [prefix + self._style.flow(value, margin) for prefix, value in entries]
        if number:
            place = spans[number - 1][1]
            self.edits.append(Edit(place, place, "".join(gap + entry for entry in rendered)))
        else:
            self.edits.append(Edit(spans[0][0], spans[0][0], "".join(entry + gap for entry in rendered)))

    def _removal(self, node: CollectionNode, spans: Spans, first: int, last: int) -> Edit:
        start, end = spans[first][0], spans[last][1]
        if node.flow_style and first:
            return Edit(spans[first - 1][1], end, "")
        if (node.flow_style or not self._at.opens_line(start)) and last + 1 < len(spans):
            return Edit(start, spans[last + 1][0], "")
        if node.flow_style:
            return Edit(start, end, "")
        return Edit(start - self._at.column(start), self._at.next_line(end), "")

    def _replace_by_lines(self, key: Node, end: int, keep: str, after: Any) -> None:
        begin = self._at.colon(key)
        inner = self._style.dash if isinstance(after, list) else self._style.step
        lines = self._style.block(after, self._at.column(key.start_mark.index) + inner)
        if begin == end:  # nothing is written there: a comment behind the colon keeps its place
            self._insert_lines(begin, lines)
        else:
            self.edits.append(Edit(begin, end, f" {keep}" * bool(keep) + self._style.newline + lines))

    def _inline(self, after: Any, indent: int, quote: str | None, keep: str) -> str:
        """A value behind a dash, from column `indent` on."""
        if not isinstance(after, dict | list) or not after:
            return keep + self._style.scalar(after, quote)
        lines = self._style.block(after, indent)
        return keep.rstrip() + self._style.newline + lines if keep else lines.removeprefix(" " * indent)


def _quote(node: Node) -> str | None:
    """The quotes of a scalar on one line."""
    return node.style if isinstance(node, ScalarNode) and node.style in ("'", '"') else None


def _quote_beside(parent: CollectionNode, key: Node | int, node: Node) -> str | None:
    """The quotes for a value inside of brackets that had none: double ones where all this may be JSON."""
    if _is_plain_string(node) or (isinstance(key, ScalarNode) and key.style is None):
        return None
    return None if isinstance(parent, SequenceNode) and any(map(_is_plain_string, parent.value)) else '"'


def _is_plain_string(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.style is None and str(node.tag) == syntax.STRING
