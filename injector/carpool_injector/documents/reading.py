"""YAML and JSON read twice over: as data, the way Kubernetes reads it, and as nodes with their places in the text.

JSON is read as YAML, which contains it. Words mean what they mean to kubectl, which follows YAML 1.1: `yes` is a
boolean and `0644` is octal; only dates stay the strings that they become on the way to the API server.

libyaml reads first: kubectl's reader is a port of it, and it is many times as fast as one in Python. A text that it
rejects is read by ruamel.yaml, which explains better what is wrong; so is everything where libyaml is missing.
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


MERGE = "tag:yaml.org,2002:merge"
STRING = "tag:yaml.org,2002:str"
_T = TypeVar("_T")
_TEMPLATE = "{{"
_RENDER_FIRST = "if this is a Helm template, render it first: helm template CHART | carpool-injector inject"
_TRUE = frozenset({"true", "yes", "on", "y"})


class Unreadable(ValueError):
    """No YAML or JSON, or not unambiguous. The text says where: file, line and column, counted from 1."""

    def __init__(self, name: str, line: int, column: int, problem: str) -> None:
        super().__init__(f"{name}:{line}:{column}: {problem}")
        self.line, self.column, self.problem = line, column, problem


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file. `data` is None and `root` without places where it is empty.

    `aliases` has the place of each `*name`, by the collection it stands in and its key node or number there: the node
    that is found at such a place is the anchored one, which lies elsewhere. `values` has what nodes say, by their id.
    """

    data: Any
    root: Node
    line: int
    aliases: Aliases
    values: Mapping[int, Any]

    def alias(self, parent: Node, key: Node | int) -> Span | None:
        """Where `*name` stands, if that is what stands in `parent` under `key`."""
        return self.aliases.get((id(parent), key if isinstance(key, int) else id(key)))


def parse(text: str, name: str) -> list[Document]:
    """The documents of a file; `name` is for messages. Raises Unreadable."""

    def document(root: Node, aliases: Aliases) -> Document:
        data = _Data(name)
        return Document(data.of(root), root, root.start_mark.line + 1, aliases, data.known)

    return _read(text, name, document)


def contents(text: str, name: str) -> list[Any]:
    """What the documents of a file say, without the places: in far less memory. Raises Unreadable."""
    return _read(text, name, lambda root, _: _Data(name).of(root))


def _read(text: str, name: str, each: Callable[[Node, Aliases], _T]) -> list[_T]:
    try:
        return compose(text, each)
    except Unreadable as error:
        raise _hinted(error, text, name) from None
    except yaml_error.MarkedYAMLError as error:
        raise _hinted(_explained(error, name), text, name) from None
    except yaml_error.YAMLError as error:
        raise Unreadable(name, 1, 1, " ".join(str(error).split())) from None


def _hinted(error: Unreadable, text: str, name: str) -> Unreadable:
    if _TEMPLATE not in text:
        return error
    return Unreadable(name, error.line, error.column, f"{error.problem}; {_RENDER_FIRST}")


class _Data:
    """Makes plain data of nodes, as JSON could hold it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.known: dict[int, Any] = {}
        self._open: set[int] = set()

    def of(self, node: Node) -> Any:
        if id(node) in self._open:
            raise self._error(node, "this anchor contains itself; Kubernetes objects cannot")
        if id(node) not in self.known:
            self._open.add(id(node))
            self.known[id(node)] = self._made(node)
            self._open.remove(id(node))
        return self.known[id(node)]

    def _made(self, node: Node) -> Any:
        if isinstance(node, MappingNode):
            return self._mapping(node)
        if isinstance(node, SequenceNode):
            return [self.of(item) for item in node.value]
        return self._scalar(node)

    def _mapping(self, node: MappingNode) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag == MERGE:
                for base in value.value if isinstance(value, SequenceNode) else [value]:
                    merged = {**self._base(base), **merged}
                continue
            text = key_text(key) if isinstance(key, ScalarNode) else ""
            if text.startswith("\ufeff"):
                raise self._error(
                    key, "a byte order mark hides this key; remove it, or begin a document there with ---"
                )
            if not isinstance(key, ScalarNode) or text in own:
                problem = f"duplicate key {text!r}" if isinstance(key, ScalarNode) else "a key must be a string"
                raise self._error(key, f"{problem}; remove one of them" if text in own else problem)
            own[text] = self.of(value)
        return {**{key: value for key, value in merged.items() if key not in own}, **own}

    def _base(self, node: Node) -> dict[str, Any]:
        found = self.of(node)
        if not isinstance(found, dict):
            raise self._error(node, "<< merges mappings only")
        return found

    def _scalar(self, node: Node) -> Any:
        kind, text = str(node.tag).rpartition(":")[2], node.value
        try:
            return _READERS.get(kind, _string)(text)
        except ValueError:
            raise self._error(node, f"{text!r} is no {kind} that JSON can hold") from None

    def _error(self, node: Node, problem: str) -> Unreadable:
        mark = node.start_mark
        return Unreadable(self._name, mark.line + 1, mark.column + 1, problem)


def key_text(node: ScalarNode) -> str:
    """A key as Kubernetes sees it, which knows strings only: `1` becomes "1", `yes` "true"."""
    if node.tag == "tag:yaml.org,2002:bool":
        return "true" if _bool(node.value) else "false"
    return str(node.value)


def _bool(text: str) -> bool:
    return text.lower() in _TRUE


def _int(text: str) -> int | str:
    if ":" in text:  # base 60 to YAML 1.1, and a string to everybody else
        return text
    digits = text.replace("_", "").lower()
    unsigned = digits.lstrip("+-")
    octal = len(unsigned) > 1 and unsigned.isdigit() and unsigned.startswith("0")
    return int(digits, 8 if octal else 0)


def _float(text: str) -> float | str:
    if ":" in text:
        return text
    return float(text.replace("_", ""))  # a ValueError for .inf and .nan, which JSON does not have


def _string(text: str) -> str:
    """Halves of characters that JSON wrote as two escapes are joined."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_READERS: Mapping[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": _bool,
    "int": _int,
    "float": _float,
}


def _explained(error: yaml_error.MarkedYAMLError, name: str) -> Unreadable:
    mark = error.problem_mark or error.context_mark
    problem = " ".join(str(error.problem or error.context).split())
    if "'\\t'" in problem or "\t" in str(error.problem):
        problem += "; indent with spaces, YAML takes no tabs"
    elif "<document start>" in problem:
        problem = "a second document begins here; put a line with --- between documents, JSON ones as well"
    elif error.context:
        problem = f"{problem}, {' '.join(error.context.split())}"
    return Unreadable(name, mark.line + 1, mark.column + 1, problem) if mark else Unreadable(name, 1, 1, problem)
