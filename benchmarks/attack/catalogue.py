"""All attacks there are, by name."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.attack import attack
from benchmarks.attack.kinds import calls, floods, garbage, heads, http, hung, streams, unread

ALL: dict[str, attack.Attack] = {
    each.name: each for kind in (calls, streams, floods, unread, heads, garbage, http, hung) for each in kind.ATTACKS
}


def select(only: Sequence[str], server: str) -> list[attack.Attack]:
    """Those of these names, or whose names begin with one that ends in a hyphen; all if there are no names.

    Only such as the server can be attacked with. Raises `ValueError` for a name that fits none.
    """
    for name in only:
        if not any(_fits(each, name) for each in ALL):
            raise ValueError(f"unknown attack {name!r}; there are {', '.join(ALL)}")
    return [
        each
        for name, each in ALL.items()
        if server in each.servers and (not only or any(_fits(name, wanted) for wanted in only))
    ]


def _fits(name: str, wanted: str) -> bool:
    return name == wanted or (wanted.endswith("-") and name.startswith(wanted))
