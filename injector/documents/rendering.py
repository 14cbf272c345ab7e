"""New values as text: in the block style of a YAML file, with its indentation, or as JSON inside of brackets.

Strings that some YAML reader could take for something else (`yes`, `1:30`, `0644`) are always quoted.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

# Words, numbers, dates and times, as any YAML reader may see them.
_AMBIGUOUS = re.compile(
    r"(?i)y|n|yes|no|on|off|true|false|null|~|=|<<|[-+.]?[0-9][-+0-9_,.:xoa-ftz ]*|[-+]?\.?(inf|nan)"
)
_NEVER_WRAPPED = 1 << 30


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
        yaml = YAML()
        yaml.width = _NEVER_WRAPPED
        yaml.default_flow_style = False
        yaml.indent(mapping=self.step, sequence=self.dash + 2, offset=self.dash)
        yaml.representer.ignore_aliases = lambda data: True
        out = io.StringIO()
        # The offset of dashes is that of lists in mappings; a list alone would be indented by it as well.
        yaml.dump(_quoted({"": value} if isinstance(value, list) else value), out)
        lines = out.getvalue().splitlines()
        if isinstance(value, list):
            lines = [line[self.dash :] for line in lines[1:]]
        return self.newline.join(" " * indent + line if line else line for line in lines)

    def scalar(self, value: Any, quote: str | None = None) -> str:
        """A scalar, or an empty collection, on one line; `quote` as the value had that it takes the place of."""
        if not isinstance(value, str) or quote == '"':
            return json.dumps(value, ensure_ascii=False)
        if quote == "'" and value.isprintable():
            return "'" + value.replace("'", "''") + "'"
        return self.block({"": value}, 0).partition(": ")[2]

    def flow(self, value: Any, margin: str) -> str:
        """A value as JSON, which is YAML inside of brackets; `margin` is what its line begins with."""
        text = json.dumps(value, ensure_ascii=False, indent=self.unit)
        return text.replace("\n", self.newline + margin)


def _quoted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_quoted(key): _quoted(held) for key, held in value.items()}
    if isinstance(value, list):
        return [_quoted(held) for held in value]
    if isinstance(value, str) and (not value or _AMBIGUOUS.fullmatch(value)):
        return DoubleQuotedScalarString(value)
    return value
