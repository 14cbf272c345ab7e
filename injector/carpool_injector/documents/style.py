"""How a file is laid out, and new values written in that layout: block style by lines, all within brackets as JSON."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from carpool_injector.documents.reading import Node

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

    def scalar(self, value: Any, quote: str = "", brackets: bool = False) -> str:
        """A scalar, or an empty collection, on one line.

        `quote` is that of the value it takes the place of; "" for one without. `brackets`: it stands inside of some.
        """
        if not isinstance(value, str):
            return json.dumps(value)
        bare = _PLAIN.fullmatch(value) and value.isprintable() and not _AMBIGUOUS.fullmatch(value)
        if not quote and bare and not (brackets and _BRACKETS.search(value)):
            return value
        if quote == "'" or (not quote and not bare and '"' in value):
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


def style_of(text: str, root: Node, newline: str) -> Style:
    """The layout that most of a document has, and that of Kubernetes' documentation where it shows none."""
    steps: collections.Counter[int] = collections.Counter()
    dashes: collections.Counter[int] = collections.Counter()
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        waiting += [value for _, value in parent.held if not value.base]
        for key, value in parent.held:
            if key and value.held and not (parent.is_flow or value.is_flow or value.anchor or value.base):
                of_its_kind = dashes if isinstance(value.data, list) else steps
                of_its_kind[value.mark.column - key.mark.column] += 1
    return Style(
        step=steps.most_common(1)[0][0] if steps else 2,
        dash=dashes.most_common(1)[0][0] if dashes else 2,
        newline=newline,
        unit=_json_unit(text, root),
    )


def _json_unit(text: str, root: Node) -> str | None:
    key = root.held[0][0] if root.held and root.is_flow else None
    if key is None or key.mark.line == root.mark.line:
        return None
    return text[key.start - key.mark.column : key.start]
