"""YAML within an annotation, read so that every reader of YAML takes it for the same, and no short text for much.

It is written by people and by attackers, and somebody else reads it again: the sidecar, by YAML 1.2. So what readers
take for different things (`yes`, `0x1F`, `2024-01-31`) must be quoted, or is refused (tabs, texts after `|`); and so
are anchors, tags and directives, with which a short text can stand for more than memory holds.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_DEEPEST = 16
# Characters that are blanks, ends of lines or nothing at all to one reader and not to another.
_STRANGE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
# Plain words of YAML 1.2's core schema, and what they mean.
_PLAIN: tuple[tuple[re.Pattern[str], bool | None], ...] = (
    (re.compile(r"|~|null|Null|NULL"), None),
    (re.compile(r"true|True|TRUE"), True),
    (re.compile(r"false|False|FALSE"), False),
)
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})", re.ASCII)
# What YAML 1.1 takes for anything but text, and what only YAML 1.2 does.
_IN_1_1: Any = yaml.resolver.Resolver()
_IN_1_2 = re.compile(r"[-+]?(0o[0-7]+|\.?[0-9][0-9_.]*(e[-+]?[0-9]+)?)", re.ASCII | re.IGNORECASE)
_TEXT = "tag:yaml.org,2002:str"


def read(text: str) -> Any:
    """The data of the one document, None if there is none.

    Raises `ValueError`, its text saying in ASCII what is wrong, and in which line.
    """
    strange = _STRANGE.search(text)
    if strange is not None:
        number = text.count("\n", 0, strange.start()) + 1
        raise ValueError(f"line {number}: the character {ascii(strange[0])[1:-1]} is not allowed here")
    try:
        return _Reader(text).document()
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        hint = "; quote what begins with *" if re.search(r"[:,\[-]\s*\*", text) else ""
        problem = f"{line}{error.problem or 'it is none'}{hint}"
    except (yaml.YAMLError, ValueError) as error:
        problem = str(error).partition("\n")[0]
    raise ValueError(ascii(problem[:300])[1:-1])


class _Reader:
    # State: the events that are still to come, and how deep they are nested.
    def __init__(self, text: str) -> None:
        self._events = yaml.CSafeLoader(text) if yaml.__with_libyaml__ else yaml.SafeLoader(text)
        self._depth = 0

    def document(self) -> Any:
        self._next()
        start = self._next()
        if isinstance(start, yaml.StreamEndEvent):
            return None
        if start.version or start.tags:
            raise _at(start, "directives (%YAML, %TAG) are not allowed here")
        found = self._value(self._next())
        if (end := self._next()).explicit:
            raise _at(end, "the mark ... is not allowed here")
        if not isinstance(another := self._next(), yaml.StreamEndEvent):
            raise _at(another, "there must be one document")
        return found

    def _next(self) -> Any:
        return self._events.get_event()

    def _value(self, event: Any) -> Any:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _at(event, "anchors and aliases (&a, *a) are not allowed here")
        if event.tag is not None:
            raise _at(event, "tags (!a) are not allowed here")
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _at(event, f"it is nested deeper than {_DEEPEST} levels")
        found = self._mapping() if isinstance(event, yaml.MappingStartEvent) else self._sequence()
        self._depth -= 1
        return found

    def _mapping(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._value(event)
            if not isinstance(key, str):
                raise _at(event, "the names in a mapping must be texts")
            if key in found:
                raise _at(event, f"{key!r} stands twice")
            found[key] = self._value(self._next())
        return found

    def _sequence(self) -> list[Any]:
        found = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            found.append(self._value(event))
        return found


def _scalar(event: Any) -> str | int | bool | None:
    """A scalar by the core schema of YAML 1.2. Raises YAMLError for one that is something else to other readers."""
    text: str = event.value
    if event.style in ("|", ">"):
        raise _at(event, "texts of several lines (| and >) are not allowed here")
    if not event.implicit[0]:
        return text
    for pattern, value in _PLAIN:
        if pattern.fullmatch(text):
            return value
    if _WHOLE.fullmatch(text):
        return int(text)
    if _IN_1_2.fullmatch(text) or _IN_1_1.resolve(yaml.ScalarNode, text, (True, False)) != _TEXT:
        raise _at(event, f"write {text!r} in quotes, or as a plain whole number, true or false")
    return text


def _at(event: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
