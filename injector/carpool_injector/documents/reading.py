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
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import yaml
from ruamel.yaml import YAML
from ruamel.yaml import error as yaml_error
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver

_MAX_DEPTH = 200
_MAX_EXPANDED = 100_000  # values, aliases counted as what they stand for; few manifests have a hundredth of it
_MAX_EXPANSION = 10  # beyond that: times the values that are written
_RESOLVER = VersionedResolver(version=(1, 1))
_TEMPLATE = "{{"
_RENDER_FIRST = "if this is a Helm template, render it first: helm template CHART | carpool-injector inject"
_TRUE = frozenset({"true", "yes", "on", "y"})
MERGE = "tag:yaml.org,2002:merge"
STRING = "tag:yaml.org,2002:str"


T = TypeVar("T")
Reader = Callable[[str], Iterator[Any]]
"""A text to the events of YAML 1.1, whose names and attributes are the same in all descendants of PyYAML."""


class Unreadable(ValueError):
    """No YAML or JSON, or not unambiguous. The text says where: file, line and column, counted from 1."""

    def __init__(self, name: str, line: int, column: int, problem: str) -> None:
        super().__init__(f"{name}:{line}:{column}: {problem}")
        self.line, self.column, self.problem = line, column, problem


@dataclass(slots=True, eq=False)
class Node:
    """A value where it stands in a text, from its anchor and tag on to `end`, before comments and blank lines.

    `data` is what it says, as JSON could hold it. `text` and `style` are a scalar's as written, `held` has the keys and
    values of a mapping, or the items of a list, with no keys. An alias is like the node `base` that it stands for, but
    for its place. `size` counts the values in it, aliases as what they stand for.
    """

    mark: Any
    end: int
    tag: str
    text: str | None = None
    style: str | None = None
    is_flow: bool = False
    anchor: str | None = None
    held: list[tuple[Node | None, Node]] = field(default_factory=list)
    data: Any = None
    base: Node | None = None
    size: int = 0

    @property
    def start(self) -> int:
        """Its place, in characters from the start of the text; that of the next word where nothing is written."""
        return int(self.mark.index)

    @property
    def is_absent(self) -> bool:
        """Whether it is null because nothing is written there."""
        return self.text == "" and self.style is None and self.base is None

    @property
    def key(self) -> str:
        """A key as Kubernetes sees it, which knows strings only: `1` becomes "1", `yes` "true"."""
        return str(self.data).lower() if isinstance(self.data, bool) else str(self.text)


def parse(text: str, name: str, readers: Sequence[Reader] = ()) -> list[Node]:
    """The roots of a file's documents; `name` is for messages. Raises Unreadable.

    The first of the readers that does not object is believed.
    """
    return _read(text, name, lambda root: root, readers)


def contents(text: str, name: str) -> list[Any]:
    """What the documents of a file say, without the places: in far less memory. Raises Unreadable."""
    return _read(text, name, lambda root: root.data)


def _read(text: str, name: str, each: Callable[[Node], T], readers: Sequence[Reader] = ()) -> list[T]:
    """What `each` makes of the root of each document; nodes that it does not keep are gone at once."""
    *quick, last = readers or READERS
    try:
        for reader in quick:
            with contextlib.suppress(yaml.YAMLError):
                return [each(root) for root in _Composer(text, name, reader(text)).roots()]
        return [each(root) for root in _Composer(text, name, last(text)).roots()]
    except Unreadable as error:
        found = error
    except yaml_error.MarkedYAMLError as error:
        found = _explained(error, name)
    except yaml_error.YAMLError as error:
        raise Unreadable(name, 1, 1, " ".join(str(error).split())) from None
    hint = f"; {_RENDER_FIRST}" if _TEMPLATE in text else ""
    raise Unreadable(name, found.line, found.column, found.problem + hint)


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


def read_by_libyaml(text: str) -> Iterator[Any]:
    """Raises PyYAML's YAMLError."""
    parser = yaml.CSafeLoader(text)
    while (event := parser.get_event()) is not None:
        yield event


def read_by_ruamel(text: str) -> Iterator[Any]:
    """Raises ruamel.yaml's YAMLError."""
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 1)
    return iter(reader.parse(io.StringIO(text, newline="")))


READERS: Sequence[Reader] = (read_by_libyaml, read_by_ruamel) if yaml.__with_libyaml__ else (read_by_ruamel,)


class _Composer:
    """Makes nodes and their data of events.

    It counts what was written, and what that comes to with each alias expanded: nested too deep, or more than it looks,
    a file would take all memory if it were read.
    """

    def __init__(self, text: str, name: str, events: Iterator[Any]) -> None:
        self._text, self._name, self._events = text, name, events
        self._anchors: dict[str, Node] = {}
        self._depth = self._written = self._expanded = 0

    def roots(self) -> Iterator[Node]:
        for event in self._events:
            if _kind(event) == "DocumentStart":
                self._anchors = {}
                yield self._node(next(self._events))

    def _node(self, event: Any, is_key: bool = False) -> Node:
        self._written += 1
        if _kind(event) == "Alias":
            return self._alias(event)
        before = self._expanded
        self._expanded += 1
        node = Node(event.start_mark, int(event.end_mark.index), _tag(event), anchor=event.anchor)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        if _kind(event) == "Scalar":
            self._scalar(node, event, is_key)
        else:
            self._collection(node, event)
        node.size = self._expanded - before
        return node

    def _alias(self, event: Any) -> Node:
        base = self._anchors.get(event.anchor)
        if base is None:
            raise self._error(event.start_mark, f"found undefined alias {event.anchor!r}")
        if not base.size:
            raise self._error(base.mark, "this anchor contains itself; Kubernetes objects cannot")
        self._expanded += base.size
        if self._expanded > max(_MAX_EXPANDED, _MAX_EXPANSION * self._written):
            problem = f"aliases make this more than {_MAX_EXPANDED} values; write fewer of them"
            raise self._error(event.start_mark, problem)
        return replace(base, mark=event.start_mark, end=int(event.end_mark.index), anchor=None, base=base)

    def _scalar(self, node: Node, event: Any, is_key: bool) -> None:
        node.text, node.style = event.value, event.style or None
        if node.style in ("|", ">"):
            node.end = _block_scalar_end(self._text, node.start, node.end)
        kind = node.tag.rpartition(":")[2]
        try:
            node.data = _VALUES.get(kind, _string)(event.value)
        except ValueError:
            if not is_key:
                raise self._error(node.mark, f"{event.value!r} is no {kind} that JSON can hold") from None

    def _collection(self, node: Node, event: Any) -> None:
        node.is_flow = bool(event.flow_style)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(node.mark, f"maximum depth of {_MAX_DEPTH} exceeded")
        end = self._mapping(node) if _kind(event) == "MappingStart" else self._sequence(node)
        node.end = node.held[-1][1].end if node.held and not node.is_flow else int(end.end_mark.index)
        self._depth -= 1

    def _sequence(self, node: Node) -> Any:
        while _kind(event := next(self._events)) != "SequenceEnd":
            item = self._node(event)
            node.held.append((None, item))
            if item.is_absent:  # it is marked where the next word begins, behind comments
                item.end = dash(self._text, node, len(node.held) - 1) + 1
        node.data = [item.data for _, item in node.held]
        return event

    def _mapping(self, node: Node) -> Any:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while _kind(event := next(self._events)) != "MappingEnd":
            key = self._node(event, is_key=True)
            if key.tag != MERGE:
                self._check(key, own)
            value = self._node(next(self._events))
            node.held.append((key, value))
            if value.is_absent:
                value.end = colon(self._text, key)
            if key.tag == MERGE:
                for base in bases(value):
                    if not isinstance(base.data, dict):
                        raise self._error(base.mark, "<< merges mappings only")
                    merged = {**base.data, **merged}
            else:
                own[key.key] = value.data
        node.data = {**{key: value for key, value in merged.items() if key not in own}, **own}
        return event

    def _check(self, key: Node, others: Mapping[str, Any]) -> None:
        if key.text is None:
            raise self._error(key.mark, "a key must be a string")
        if key.text.startswith("\ufeff"):
            problem = "a byte order mark hides this key; remove it, or begin a document there with ---"
            raise self._error(key.mark, problem)
        if key.key in others:
            raise self._error(key.mark, f"duplicate key {key.key!r}; remove one of them")

    def _error(self, mark: Any, problem: str) -> Unreadable:
        return Unreadable(self._name, mark.line + 1, mark.column + 1, problem)


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")


def _tag(event: Any) -> str:
    """The tag of a scalar, as YAML 1.1 has it; a plain one's depends on the value. A collection's is not read."""
    if _kind(event) != "Scalar":
        return ""
    return _resolved(event.value) if event.implicit[0] else str(event.tag or STRING)


@functools.lru_cache(maxsize=4096)
def _resolved(value: str) -> str:
    return str(_RESOLVER.resolve(ScalarNode, value, (True, False)))


def bases(value: Node) -> list[Node]:
    """What the value of a `<<` brings in, the first of them first."""
    return [each for _, each in value.held] if isinstance(value.data, list) else [value]


_COLON = re.compile(r"\s*:")
_DASH = re.compile(r"(?:\s+|#[^\n]*)*-")
_PROPERTIES = re.compile(r"(?:[&!][^\s,\[\]{}]*\s+)*")


def colon(text: str, key: Node) -> int:
    """The place behind the colon of a key."""
    found = _COLON.match(text, key.end)
    return found.end() if found else key.end


def dash(text: str, sequence: Node, number: int) -> int:
    """The place of an item's dash in a block sequence."""
    if number == 0:
        return sequence.start + len(properties(text, sequence))
    after = sequence.held[number - 1][1].end
    found = _DASH.match(text, after)
    return found.end() - 1 if found else after


def properties(text: str, node: Node) -> str:
    """Anchor and tag in front of a node, with the blanks behind them."""
    found = _PROPERTIES.match(text, node.start)
    return found.group() if found and not node.is_absent else ""


def _block_scalar_end(text: str, start: int, marked: int) -> int:
    header = text[start : text.find("\n", start)]
    if "+" in header.partition("#")[0]:  # blank lines at its end belong to it
        return marked - 1 if text[marked - 1 : marked] == "\n" else marked
    return start + len(text[start:marked].rstrip())


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


_VALUES: Mapping[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": _bool,
    "int": _int,
    "float": _float,
}
