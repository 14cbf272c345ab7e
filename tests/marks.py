"""What programs write into pages: it stands between two marks, of which the first says what it is and who made it.

All that write into a page do it here, tests' tables as benchmarks' figures.
"""

from __future__ import annotations

import re

_END = "<!-- end -->"


def block(name: str, made_by: str, text: str) -> str:
    """A text between its marks, as it stands on its page; `made_by` is the command."""
    return f"<!-- {name}: made by {made_by} -->\n{text.rstrip()}\n{_END}"


def names(page: str) -> list[str]:
    """What stands between marks on a page."""
    return re.findall(r"<!-- ([^:>]+): made by ", page)


def renewed(page: str, name: str, made_by: str, text: str) -> str:
    """A page with this in place of what stands between the marks of that name. Raises `ValueError` if it has none."""
    pattern = re.compile(rf"<!-- {re.escape(name)}: made by .*?{_END}", re.DOTALL)
    found, count = pattern.subn(lambda _: block(name, made_by, text), page)
    if not count:
        raise ValueError(f"there is no <!-- {name}: made by … --> with {_END} after it")
    return found
