"""Nodes and their places: the text of a file as trees, before it means anything.

libyaml reads where it is there: kubectl's reader is a port of it, and it is many times as fast as one in Python. A text
that it objects to is read by ruamel.yaml, which explains better what is wrong; so is everything where it is missing.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import yaml
from ruamel.yaml import YAML
from ruamel.yaml import error as yaml_error
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.resolver import VersionedResolver

_MAX_DEPTH = 200
_MAX_EXPANDED = 100_000  # values, aliases counted as what they stand for; few manifests have a hundredth of it
_MAX_EXPANSION = 10  # beyond that: times the values that are written
_RESOLVER = VersionedResolver(version=(1, 1))


T = TypeVar("T")


class Span(NamedTuple):
    """From `start` up to, not including, `end`: positions in the text."""

    start: int
    end: int


Reader = Callable[[str], Iterator[Any]]
Aliases = Mapping[tuple[int, int], Span]
"""Where aliases stand, by the collection they stand in and their key node or number there."""


class Excessive(yaml_error.MarkedYAMLError):
    """Nested too deep, or more than it looks: a file that would take all memory if it were read."""


def compose(text: str, each: Callable[[Node, Aliases], T], readers: Sequence[Reader] | None = None) -> list[T]:
    """What `each` makes of the root of each document and its aliases; nodes that it does not keep are gone at once.

    The first of the `readers` that does not object is believed. Raises ruamel.yaml's YAMLError, of which Excessive is
    one.
    """
    *quick, last = readers or READERS
    for reader in quick:
        with contextlib.suppress(yaml.YAMLError):
            return _composed(reader(text), each)
    return _composed(last(text), each)


def _composed(events: Iterator[Any], each: Callable[[Node, Aliases], T]) -> list[T]:
    composer = _Composer(events)
    return [each(root, composer.aliases) for root in composer.roots()]


def read_by_libyaml(text: str) -> Iterator[Any]:
    """Events of YAML 1.1. Raises PyYAML's YAMLError."""
    parser = yaml.CSafeLoader(text)
    while (event := parser.get_event()) is not None:
        yield event


def read_by_ruamel(text: str) -> Iterator[Any]:
    """Events of YAML 1.1. Raises ruamel.yaml's YAMLError."""
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 1)
    return iter(reader.parse(io.StringIO(text, newline="")))


READERS: Sequence[Reader] = (read_by_libyaml, read_by_ruamel) if yaml.__with_libyaml__ else (read_by_ruamel,)


@dataclass(slots=True)
class _Composer:
    """Makes nodes of events, whose names and attributes are the same in all descendants of PyYAML.

    It counts what was `written`, and what that comes to with each alias `expanded`.
    """

    events: Iterator[Any]
    aliases: dict[tuple[int, int], Span] = field(default_factory=dict)
    anchors: dict[str, Node] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    depth: int = 0
    written: int = 0
    expanded: int = 0

    def roots(self) -> Iterator[Node]:
        for event in self.events:
            if _name(event) == "DocumentStartEvent":
                self.anchors, self.aliases, self.sizes = {}, {}, {}
                yield self._node(next(self.events))

    def _node(self, event: Any) -> Node:
        before = self.expanded
        self.written += 1
        self.expanded += 1
        node = self._scalar(event) if _name(event) == "ScalarEvent" else self._collection(event)
        if event.anchor is not None:
            self.sizes[id(node)] = self.expanded - before
        return node

    def _scalar(self, event: Any) -> Node:
        is_plain = event.implicit[0]  # only then does the tag depend on the value
        tag = _tag(event.tag, event.value if is_plain else "", tuple(event.implicit))
        node = ScalarNode(tag, event.value, event.start_mark, event.end_mark, style=event.style or None)
        return self._anchored(event, node)

    def _collection(self, event: Any) -> Node:
        is_mapping = _name(event) == "MappingStartEvent"
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise Excessive(None, None, f"maximum depth of {_MAX_DEPTH} exceeded", event.start_mark)
        kind = MappingNode if is_mapping else SequenceNode
        tag = event.tag or f"tag:yaml.org,2002:{'map' if is_mapping else 'seq'}"
        node = kind(_known(tag), [], event.start_mark, None, flow_style=bool(event.flow_style))
        self._anchored(event, node)
        end = self._entries(node) if is_mapping else self._items(node)
        node.end_mark = end.end_mark
        self.depth -= 1
        return node

    def _entries(self, node: Node) -> Any:
        while _name(event := next(self.events)) != "MappingEndEvent":
            key = self._held(event, node, 0)
            node.value.append((key, self._held(next(self.events), node, id(key))))
        return event

    def _items(self, node: Node) -> Any:
        while _name(event := next(self.events)) != "SequenceEndEvent":
            node.value.append(self._held(event, node, len(node.value)))
        return event

    def _held(self, event: Any, parent: Node, key: int) -> Node:
        if _name(event) != "AliasEvent":
            return self._node(event)
        if event.anchor not in self.anchors:
            raise yaml_error.MarkedYAMLError(None, None, f"found undefined alias {event.anchor!r}", event.start_mark)
        node = self.anchors[event.anchor]
        self.aliases[id(parent), key] = Span(event.start_mark.index, event.end_mark.index)
        self.written += 1
        self.expanded += self.sizes.get(id(node), 1)
        if self.expanded > max(_MAX_EXPANDED, _MAX_EXPANSION * self.written):
            problem = f"aliases make this more than {_MAX_EXPANDED} values; write fewer of them"
            raise Excessive(None, None, problem, event.start_mark)
        return node

    def _anchored(self, event: Any, node: Node) -> Node:
        if event.anchor is not None:
            self.anchors[event.anchor] = node
            node.anchor = event.anchor
        return node


def _name(event: Any) -> str:
    return type(event).__name__


@functools.lru_cache(maxsize=4096)
def _tag(tag: str | None, value: str, implicit: tuple[bool, bool]) -> Any:
    """The tag of a scalar, as YAML 1.1 has it."""
    if tag and tag != "!":
        return _known(tag)
    return _RESOLVER.resolve(ScalarNode, value, implicit)


@functools.lru_cache(maxsize=64)
def _known(tag: str) -> Any:
    return ScalarNode(tag, "", None, None).ctag
