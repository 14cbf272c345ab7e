"""Where things end and how a file is indented: what the parser's marks leave open, read from the text itself."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator

from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from carpool_injector.documents import rendering, syntax

_COLON = re.compile(r"\s*:")
_BLANKS = re.compile(r"[ \t]*")
_DASH = re.compile(r"(?:\s+|#[^\n]*)*-")
_PROPERTIES = re.compile(r"(?:[&!][^\s,\[\]{}]*\s+)*")


class Layout:
    """One document's places in its text: positions are characters from its start. `newline`: what ends new lines."""

    def __init__(self, text: str, document: syntax.Document, newline: str = "\n") -> None:
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


def _style(text: str, document: syntax.Document, newline: str) -> rendering.Style:
    """The layout that most of a document has, and that of Kubernetes' documentation where it shows none."""
    steps: collections.Counter[int] = collections.Counter()
    dashes: collections.Counter[int] = collections.Counter()
    for parent, key, node in _nested(document.root):
        if parent.flow_style or node.flow_style or node.anchor or document.alias(parent, key) or not node.value:
            continue
        distance = node.start_mark.column - key.start_mark.column
        (dashes if isinstance(node, SequenceNode) else steps)[distance] += 1
    return rendering.Style(
        step=steps.most_common(1)[0][0] if steps else 2,
        dash=dashes.most_common(1)[0][0] if dashes else 2,
        newline=newline,
        unit=_json_unit(text, document),
    )


def _json_unit(text: str, document: syntax.Document) -> str | None:
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
