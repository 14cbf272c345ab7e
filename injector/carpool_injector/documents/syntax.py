"""YAML and JSON read twice over: as data, the way Kubernetes reads it, and as places in the text.

JSON is read as YAML, which contains it. Words mean what they mean to kubectl, which follows YAML 1.1: `yes` is a
boolean and `0644` is octal; only dates stay the strings that they become on the way to the API server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ruamel.yaml import error as yaml_error
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from carpool_injector.documents import nodes

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
    aliases: nodes.Aliases
    values: Mapping[int, Any]

    def alias(self, parent: Node, key: Node | int) -> nodes.Span | None:
        """Where `*name` stands, if that is what stands in `parent` under `key`."""
        return self.aliases.get((id(parent), key if isinstance(key, int) else id(key)))


def parse(text: str, name: str) -> list[Document]:
    """The documents of a file; `name` is for messages. Raises Unreadable."""

    def document(root: Node, aliases: nodes.Aliases) -> Document:
        data = _Data(name)
        return Document(data.of(root), root, root.start_mark.line + 1, aliases, data.known)

    return _read(text, name, document)


def contents(text: str, name: str) -> list[Any]:
    """What the documents of a file say, without the places: in far less memory. Raises Unreadable."""
    return _read(text, name, lambda root, _: _Data(name).of(root))


def _read(text: str, name: str, each: Callable[[Node, nodes.Aliases], _T]) -> list[_T]:
    try:
        return nodes.compose(text, each)
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
