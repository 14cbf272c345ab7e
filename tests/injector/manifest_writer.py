"""Manifests as people write them, each in another way."""

from __future__ import annotations

import json
import random
import re
from typing import Any

PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)-{0,2}[A-Za-z][\w./=:-]*[\w/]")
"""Strings that need no quotes anywhere."""


class Writer:
    """Writes data as YAML the way people do, each in another way: chance decides about every blank."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.comments = 0

    def pick(self, *choices: Any) -> Any:
        return self.chance.choice(choices)

    def comment(self) -> str:
        self.comments += 1
        return f"# comment {self.comments}."

    def between(self, indent: int) -> str:
        blanks = " " * self.pick(indent, indent, 0, indent + 1)
        return self.pick("", "", "", "\n", f"{blanks}{self.comment()}\n")

    def behind(self) -> str:
        return self.pick("", "", "", f"  {self.comment()}")

    def mapping(self, value: dict[str, Any], indent: int) -> str:
        text = ""
        for key, held in value.items():
            shown = self.pick(json.dumps(key), key if key not in ("on", "8080") else f"'{key}'")
            text += f"{self.between(indent)}{' ' * indent}{shown}:{self.held(held, indent, False)}"
        return text

    def sequence(self, value: list[Any], indent: int) -> str:
        return "".join(f"{self.between(indent)}{' ' * indent}-{self.held(held, indent, True)}" for held in value)

    def held(self, value: Any, indent: int, item: bool) -> str:
        """What follows a colon or a dash, with the end of its line."""
        if isinstance(value, dict) and value and self.pick(True, True, False):
            inner = indent + 2 if item else indent + self.pick(1, 2, 4)
            lines = self.mapping(value, inner)
            compact = item and lines.startswith(" " * inner) and not lines.lstrip().startswith("#")
            return f" {lines[inner:]}" if compact else f"{self.behind()}\n{lines}"
        if isinstance(value, list) and value and self.pick(True, True, False):
            return f"{self.behind()}\n{self.sequence(value, indent + (2 if item else self.pick(0, 2)))}"
        if value is None and self.pick(True, False):
            return f"{self.behind()}\n"
        if isinstance(value, str) and value.endswith("\n") and value.strip() and self.pick(True, False):
            inner_lines = "".join(f"{' ' * (indent + 2)}{line}\n" for line in value.splitlines())
            return f" |{self.behind()}\n{inner_lines}"
        return f"{self.pick(' ', '  ')}{self.inline(value)}{self.behind()}\n"

    def inline(self, value: Any) -> str:
        if isinstance(value, list):
            return f"[{self.pick(', ', ',').join(self.inline(held) for held in value)}]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(key)}: {self.inline(held)}" for key, held in value.items()) + "}"
        if isinstance(value, str) and value.isprintable():
            bare = value if PLAIN.fullmatch(value) else None
            return self.pick(bare, bare, json.dumps(value), "'" + value.replace("'", "''") + "'") or json.dumps(value)
        return json.dumps(value)
