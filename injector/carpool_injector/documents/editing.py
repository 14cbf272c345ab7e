"""The few characters of a text that have to change so that it says something else.

`edited` walks over what is written and what is wanted together and collects edits where they differ; block style is
edited by lines, text inside of brackets by characters. Comments, order, quoting, anchors and blank lines stay because
they are never touched. An alias of something that changes in one of its places only is written out in the other. The
result is read again and compared with what was wanted before it is returned.
"""

from __future__ import annotations

import collections
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from carpool_injector.documents import reading


def edited(text: str, documents: Sequence[reading.Document], wanted: Sequence[Any], name: str) -> str:
    """The text with its documents changed to the data that is wanted, in as few places as that takes.

    Raises reading.Unreadable where the text is written in a way that cannot be edited faithfully.
    """
    pairs = [pair for pair in zip(documents, wanted, strict=True) if pair[0].data != pair[1]]
    if not pairs:
        return text
    # A last line without an end gets one for as long as lines are inserted and removed.
    newline = "\r\n" if "\r\n" in text else "\n"
    end = "" if text.endswith("\n") else newline
    ended = text + end
    edits = [edit for each, after in pairs for edit in _Editor(Layout(ended, each, newline)).edits(after)]
    if end:
        edits += _stripped(text, documents[-1].root, edits)
    result = _applied(ended, edits).removesuffix(end)
    if _again(result, name, pairs[0][0]) != list(wanted):
        raise _unfaithful(name, pairs[0][0])
    return result


def _stripped(text: str, node: Node, edits: Sequence[Edit]) -> Iterator[Edit]:
    """A block scalar at the end of a text whose last line has no end: lines behind it would give its value one."""
    while isinstance(node, CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last if isinstance(node, SequenceNode) else last[1]
    header = _HEADER.match(text, node.start_mark.index) if isinstance(node, ScalarNode) else None
    is_last = node.end_mark is not None and int(node.end_mark.index) >= len(text)
    if header and is_last and any(edit.start > len(text) for edit in edits):
        yield Edit(header.start(2), header.end(2), "-")


def _again(text: str, name: str, first: reading.Document) -> list[Any]:
    try:
        return reading.contents(text, name)
    except reading.Unreadable:
        raise _unfaithful(name, first) from None


def _unfaithful(name: str, document: reading.Document) -> reading.Unreadable:
    problem = "this is written in a way that cannot be changed in place; write it in plain block style (one key a line)"
    return reading.Unreadable(name, document.line, 1, problem)


def _applied(text: str, edits: Sequence[Edit]) -> str:
    parts: list[str] = []
    done = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        parts += [text[done : edit.start], edit.text]
        done = max(done, edit.end)
    return "".join([*parts, text[done:]])


# Anchor, tag and sign of a block scalar, and the digit and the sign of its header, in either order.
_HEADER = re.compile(r"((?:[&!]\S*\s+)*[|>][0-9]?)([-+]?)")


class _Editor:
    """Walks over what is written and what is wanted together, and collects edits where they differ."""

    def __init__(self, places: Layout) -> None:
        self._at = places
        self._edits = TextEdits(places)
        self._changed: set[int] = set()  # nodes whose text changes: aliases of them do not mean the same any more

    def edits(self, after: Any) -> list[Edit]:
        """One walk is enough: what an alias refers to is written in front of it."""
        self._node(self._at.document.root, self._at.document.data, after)
        return self._edits.edits

    def _value(self, parent: Node, key: Node | int, node: Node, before: Any, after: Any) -> None:
        if self._at.document.alias(parent, key):
            if before != after or id(node) in self._changed:
                self._edits.replace(parent, key, node, after)
        elif isinstance(node, CollectionNode) and _share(before, after):
            self._node(node, before, after)
        elif before != after:
            self._changed.add(id(node))
            self._edits.replace(parent, key, node, after)

    def _node(self, node: Node, before: Any, after: Any) -> None:
        if before != after:
            self._changed.add(id(node))
        if isinstance(node, MappingNode):
            self._mapping(node, before, after)
        elif isinstance(node, SequenceNode):
            self._sequence(node, before, after)

    def _mapping(self, node: MappingNode, before: Any, after: Any) -> None:
        own = {reading.key_text(key): (key, value) for key, value in node.value if key.tag != reading.MERGE}
        inherited = self._inherited(node)
        again = {text for text in own if text in inherited and before[text] != after.get(text) == inherited[text]}
        for text, (key, value) in own.items():
            if text in after and text not in again:
                self._value(node, key, value, before[text], after[text])
        merges = self._still_merges(node, own.keys() | after.keys() >= before.keys())
        if not merges:  # what is inherited is written out
            for text in again:
                self._value(node, *own[text], before[text], after[text])
        goes = (before.keys() - after.keys()) | (again if merges else set())
        spans = [
            reading.Span(int(key.start_mark.index), self._entry_end(node, key, value)) for key, value in node.value
        ]
        self._edits.remove(
            node,
            spans,
            [merges if key.tag == reading.MERGE else reading.key_text(key) not in goes for key, _ in node.value],
        )
        given = inherited if merges else {}
        new = {text: held for text, held in after.items() if text not in own}
        self._edits.add_entries(node, spans, {text: held for text, held in new.items() if given.get(text, new) != held})

    def _still_merges(self, node: MappingNode, nothing_goes: bool) -> bool:
        """Whether what `<<` brings in is still right: nothing of it goes, and it does not change in its own place."""
        merged = [value for key, value in node.value if key.tag == reading.MERGE]
        return nothing_goes and all(id(base) not in self._changed for base in [*merged, *_bases(node)])

    def _inherited(self, node: MappingNode) -> dict[str, Any]:
        """What `<<` brings in, whether or not the mapping says otherwise itself."""
        found: dict[str, Any] = {}
        for base in _bases(node):
            found = {**self._at.document.values[id(base)], **found}
        return found

    def _entry_end(self, node: MappingNode, key: Node, value: Node) -> int:
        return max(self._at.colon(key), self._at.end(value, node, key))

    def _sequence(self, node: SequenceNode, before: Any, after: Any) -> None:
        kept = [True] * len(before)
        starts = [
            self._at.start(item, node, number) if node.flow_style else self._at.dash(node, number)
            for number, item in enumerate(node.value)
        ]
        spans = [
            reading.Span(starts[number], self._at.end(item, node, number)) for number, item in enumerate(node.value)
        ]
        for _, i, j, k, m in _steps(before, after):
            if j - i == m - k:
                for number in range(i, j):
                    self._value(node, number, node.value[number], before[number], after[k + number - i])
                continue
            kept[i:j] = [False] * (j - i)
            if m > k:
                self._edits.insert_items(node, spans, i, after[k:m])
        self._edits.remove(node, spans, kept)


def _bases(node: MappingNode) -> Iterator[Node]:
    """What is merged into a mapping, the first of them first."""
    for key, value in node.value:
        if key.tag == reading.MERGE:
            yield from value.value if isinstance(value, SequenceNode) else [value]


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


Spans = Sequence[reading.Span]


class Edit(NamedTuple):
    """Characters from `start` up to `end` become `text`."""

    start: int
    end: int
    text: str


class TextEdits:
    """Collects edits of one document. `spans` are the places of a collection's entries or items, in their order."""

    def __init__(self, places: Layout) -> None:
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
            gap = " " if is_absent(node) else ""
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
    return isinstance(node, ScalarNode) and node.style is None and str(node.tag) == reading.STRING


_COLON = re.compile(r"\s*:")
_BLANKS = re.compile(r"[ \t]*")
_DASH = re.compile(r"(?:\s+|#[^\n]*)*-")
_PROPERTIES = re.compile(r"(?:[&!][^\s,\[\]{}]*\s+)*")


class Layout:
    """One document's places in its text: positions are characters from its start. `newline`: what ends new lines."""

    def __init__(self, text: str, document: reading.Document, newline: str = "\n") -> None:
        self.text = text
        self.document = document
        self.style = _style(text, document, newline)

    def end(self, node: Node, parent: Node | None = None, key: Node | int | None = None) -> int:
        """Where what stands in `parent` under `key` ends, without comments and blank lines that follow."""
        alias = self.document.alias(parent, key) if parent is not None and key is not None else None
        if alias:
            return alias.end
        if isinstance(node, CollectionNode) and not node.flow_style and node.value:
            if isinstance(node, SequenceNode):
                return self.end(node.value[-1], node, len(node.value) - 1)
            return self.end(node.value[-1][1], node, node.value[-1][0])
        if isinstance(node, ScalarNode) and node.style in ("|", ">"):
            return self._block_scalar_end(node)
        if not is_absent(node) or parent is None:
            return int(node.end_mark.index)
        # A value that is not there is marked where the next token begins, behind comments.
        return self.dash(parent, key) + 1 if isinstance(key, int) else self.colon(key)

    def colon(self, key: Node | None) -> int:
        """The place behind the colon of a key."""
        end = int(key.end_mark.index) if key else 0
        found = _COLON.match(self.text, end)
        return found.end() if found else end

    def dash(self, sequence: Node, number: int) -> int:
        """The place of an item's dash in a block sequence."""
        if number == 0:
            return int(sequence.start_mark.index) + len(self.properties(sequence))
        after = self.end(sequence.value[number - 1], sequence, number - 1)
        found = _DASH.match(self.text, after)
        return found.end() - 1 if found else after

    def start(self, node: Node, parent: Node, key: Node | int) -> int:
        """Where what stands in `parent` under `key` begins, with its anchor and tag."""
        alias = self.document.alias(parent, key)
        return alias.start if alias else int(node.start_mark.index)

    def properties(self, node: Node) -> str:
        """Anchor and tag in front of a node, with the blanks behind them."""
        found = _PROPERTIES.match(self.text, node.start_mark.index)
        return found.group() if found and not is_absent(node) else ""

    def next_line(self, position: int) -> int:
        """Where the line after the one of `position` begins."""
        return self.text.index("\n", position) + 1

    def margin(self, position: int) -> str:
        """The blanks that the line of `position` begins with."""
        found = _BLANKS.match(self.text, self._line_start(position))
        return found.group() if found else ""

    def column(self, position: int) -> int:
        return position - self._line_start(position)

    def opens_line(self, position: int) -> bool:
        """Whether only blanks stand before `position` on its line."""
        return not self.text[self._line_start(position) : position].strip()

    def _line_start(self, position: int) -> int:
        return self.text.rfind("\n", 0, position) + 1

    def _block_scalar_end(self, node: Node) -> int:
        header = self.text[node.start_mark.index : self.text.find("\n", node.start_mark.index)]
        marked = int(node.end_mark.index)
        if "+" in header.partition("#")[0]:  # blank lines at its end belong to it
            return marked - 1 if self.text[marked - 1 : marked] == "\n" else marked
        return int(node.start_mark.index) + len(self.text[node.start_mark.index : marked].rstrip())


def is_absent(node: Node) -> bool:
    """Whether a value is null because nothing is written there."""
    return isinstance(node, ScalarNode) and node.style is None and node.value == ""


def _style(text: str, document: reading.Document, newline: str) -> Style:
    """The layout that most of a document has, and that of Kubernetes' documentation where it shows none."""
    steps: collections.Counter[int] = collections.Counter()
    dashes: collections.Counter[int] = collections.Counter()
    for parent, key, node in _nested(document.root):
        if parent.flow_style or node.flow_style or node.anchor or document.alias(parent, key) or not node.value:
            continue
        distance = node.start_mark.column - key.start_mark.column
        (dashes if isinstance(node, SequenceNode) else steps)[distance] += 1
    return Style(
        step=steps.most_common(1)[0][0] if steps else 2,
        dash=dashes.most_common(1)[0][0] if dashes else 2,
        newline=newline,
        unit=_json_unit(text, document),
    )


def _json_unit(text: str, document: reading.Document) -> str | None:
    root = document.root
    if not isinstance(root, MappingNode) or not root.flow_style or not root.value:
        return None
    first = root.value[0][0].start_mark
    return str(text[first.index - first.column : first.index]) if first.line > root.start_mark.line else None


def _nested(root: Node) -> Iterator[tuple[MappingNode, Node, CollectionNode]]:
    """Each collection that is the value of a key, with the mapping and the key."""
    waiting = [root]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, CollectionNode):
            continue
        seen.add(id(node))
        waiting += [value for _, value in node.value] if isinstance(node, MappingNode) else node.value
        if isinstance(node, MappingNode):
            yield from ((node, key, value) for key, value in node.value if isinstance(value, CollectionNode))


# Words, numbers, dates and times, as any YAML reader may see them. An address with a port is none of those.
_AMBIGUOUS = re.compile(
    r"(?i)(?![0-9]{1,3}(?:\.[0-9]{1,3}){3}:[0-9]+$)"
    r"(?:y|n|yes|no|on|off|true|false|null|~|=|<<|[-+.]?[0-9][-+0-9_,.:xoa-ftz ]*|[-+]?\.?(inf|nan))"
)
# What no reader needs quotes for: no sign that means something at the start, no ": ", no " #", no blank at an end.
_PLAIN = re.compile(r"(?!---|\.\.\.)(?:[\w./$+(^;)]|-(?=[\w./$-]))(?:[^\s:#]|:(?!\s|$)|(?<!\s)#| (?=[^\s#]))*")
_BRACKETS = re.compile(r"[,\[\]{}]")
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")  # JSON may hold them, YAML may not


@dataclass(frozen=True, slots=True)
class Style:
    """How a file is laid out. `step`: columns a mapping inside of a mapping is indented by. `dash`: columns from a key
    to the dashes of its list. `newline`: what ends its lines. `unit`: what one level of JSON is indented by, None
    where it stands on one line.
    """

    step: int = 2
    dash: int = 2
    newline: str = "\n"
    unit: str | None = None

    def block(self, value: Any, indent: int) -> str:
        """A collection as lines, each indented by `indent` columns, without the last line's end."""
        return self.newline.join(self._lines(value, indent))

    def scalar(self, value: Any, quote: str | None = None, brackets: bool = False) -> str:
        """A scalar, or an empty collection, on one line.

        `quote` is that of the value it takes the place of; None for one without. `brackets`: it stands inside of some.
        """
        if not isinstance(value, str):
            return json.dumps(value)
        bare = _PLAIN.fullmatch(value) and value.isprintable() and not _AMBIGUOUS.fullmatch(value)
        if not quote and bare and not (brackets and _BRACKETS.search(value)):
            return value
        if quote == "'" or (quote is None and not bare and '"' in value):
            return "'" + value.replace("'", "''") + "'" if value.isprintable() else _json(value)
        return _json(value)

    def flow(self, value: Any, margin: str) -> str:
        """A value as JSON, which is YAML inside of brackets; `margin` is what its line begins with."""
        return _json(value, self.unit).replace("\n", self.newline + margin)

    def _lines(self, value: Any, indent: int) -> Iterator[str]:
        blanks = " " * indent
        if isinstance(value, Mapping):
            for key, held in value.items():
                yield from self._entry(f"{blanks}{self.scalar(key)}:", held, indent)
            return
        for held in value:
            if not isinstance(held, dict | list) or not held:
                yield f"{blanks}- {self.scalar(held)}"
                continue
            first, *rest = self._lines(held, indent + 2)
            yield f"{blanks}- {first[indent + 2 :]}"
            yield from rest

    def _entry(self, key: str, held: Any, indent: int) -> Iterator[str]:
        if not isinstance(held, dict | list) or not held:
            yield f"{key} {self.scalar(held)}"
            return
        yield key
        yield from self._lines(held, indent + (self.dash if isinstance(held, list) else self.step))


def _json(value: Any, unit: str | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=unit)
    return text if text.isascii() and "\x7f" not in text else _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
