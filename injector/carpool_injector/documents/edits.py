"""The few characters of a text that have to change so that it says something else.

Comments, order, quoting, anchors and blank lines stay because they are never touched. An alias of something that
changes in one of its places only is written out in the other. What comes out is read again and compared with what was
wanted before anybody sees it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, SequenceNode

from carpool_injector.documents import layout, nodes, syntax, text_edits


def edited(text: str, documents: Sequence[syntax.Document], wanted: Sequence[Any], name: str) -> str:
    """The text with its documents changed to the data that is wanted, in as few places as that takes.

    Raises syntax.Unreadable where the text is written in a way that cannot be edited faithfully.
    """
    pairs = [pair for pair in zip(documents, wanted, strict=True) if pair[0].data != pair[1]]
    if not pairs:
        return text
    # A last line without an end gets one for as long as lines are inserted and removed.
    newline = "\r\n" if "\r\n" in text else "\n"
    end = "" if text.endswith("\n") else newline
    ended = text + end
    edits = [edit for each, after in pairs for edit in _Editor(layout.Layout(ended, each, newline)).edits(after)]
    result = _applied(ended, edits).removesuffix(end)
    if _again(result, name, pairs[0][0]) != list(wanted):
        raise _unfaithful(name, pairs[0][0])
    return result


def _again(text: str, name: str, first: syntax.Document) -> list[Any]:
    try:
        return syntax.contents(text, name)
    except syntax.Unreadable:
        raise _unfaithful(name, first) from None


def _unfaithful(name: str, document: syntax.Document) -> syntax.Unreadable:
    problem = "this is written in a way that cannot be changed in place; write it in plain block style (one key a line)"
    return syntax.Unreadable(name, document.line, 1, problem)


def _applied(text: str, edits: Sequence[text_edits.Edit]) -> str:
    parts: list[str] = []
    done = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        parts += [text[done : edit.start], edit.text]
        done = max(done, edit.end)
    return "".join([*parts, text[done:]])


class _Editor:
    """Walks over what is written and what is wanted together, and collects edits where they differ."""

    def __init__(self, places: layout.Layout) -> None:
        self._at = places
        self._pen = text_edits.Pen(places)
        self._changed: set[int] = set()  # nodes whose text changes: aliases of them do not mean the same any more

    def edits(self, after: Any) -> list[text_edits.Edit]:
        """One walk is enough: what an alias refers to is written in front of it."""
        self._node(self._at.document.root, self._at.document.data, after)
        return self._pen.edits

    def _value(self, parent: Node, key: Node | int, node: Node, before: Any, after: Any) -> None:
        if self._at.document.alias(parent, key):
            if before != after or id(node) in self._changed:
                self._pen.replace(parent, key, node, after)
        elif isinstance(node, CollectionNode) and _share(before, after):
            self._node(node, before, after)
        elif before != after:
            self._changed.add(id(node))
            self._pen.replace(parent, key, node, after)

    def _node(self, node: Node, before: Any, after: Any) -> None:
        if before != after:
            self._changed.add(id(node))
        if isinstance(node, MappingNode):
            self._mapping(node, before, after)
        elif isinstance(node, SequenceNode):
            self._sequence(node, before, after)

    def _mapping(self, node: MappingNode, before: Any, after: Any) -> None:
        own = {syntax.key_text(key): (key, value) for key, value in node.value if key.tag != syntax.MERGE}
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
        spans = [nodes.Span(int(key.start_mark.index), self._entry_end(node, key, value)) for key, value in node.value]
        self._pen.remove(
            node,
            spans,
            [merges if key.tag == syntax.MERGE else syntax.key_text(key) not in goes for key, _ in node.value],
        )
        given = inherited if merges else {}
        new = {text: held for text, held in after.items() if text not in own}
        self._pen.add_entries(node, spans, {text: held for text, held in new.items() if given.get(text, new) != held})

    def _still_merges(self, node: MappingNode, nothing_goes: bool) -> bool:
        """Whether what `<<` brings in is still right: nothing of it goes, and it does not change in its own place."""
        merged = [value for key, value in node.value if key.tag == syntax.MERGE]
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
        spans = [nodes.Span(starts[number], self._at.end(item, node, number)) for number, item in enumerate(node.value)]
        for _, i, j, k, m in _steps(before, after):
            if j - i == m - k:
                for number in range(i, j):
                    self._value(node, number, node.value[number], before[number], after[k + number - i])
                continue
            kept[i:j] = [False] * (j - i)
            if m > k:
                self._pen.insert_items(node, spans, i, after[k:m])
        self._pen.remove(node, spans, kept)


def _bases(node: MappingNode) -> Iterator[Node]:
    """What is merged into a mapping, the first of them first."""
    for key, value in node.value:
        if key.tag == syntax.MERGE:
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
