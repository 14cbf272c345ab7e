"""Who is compared. A peer whose module cannot be imported is left out and named, so that the others still run."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.peers import carpool, peer, python_servers

# Modules that export one `PEER` each.
MODULES = ("benchmarks.peers.triton", "benchmarks.peers.kserve")


class Field(NamedTuple):
    """The peers there are, and why others are not, by name."""

    peers: list[peer.Peer]
    absent: dict[str, str]


def find(modules: Sequence[str] = MODULES) -> Field:
    """Every peer, Carpool first."""
    peers: list[peer.Peer] = [*carpool.PEERS, *python_servers.PEERS]
    absent: dict[str, str] = {}
    for module in modules:
        try:
            peers.append(importlib.import_module(module).PEER)
        except (ImportError, AttributeError) as error:
            absent[module.rpartition(".")[2]] = f"its module cannot be used: {error}"
    return Field(peers, absent)


def slug(name: str) -> str:
    """How a peer is named on the command line: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def select(peers: Sequence[peer.Peer], only: Sequence[str]) -> list[peer.Peer]:
    """The peers of these names, in their own order; all of them when `only` is empty.

    Raises `ValueError` for a name that does not exist.
    """
    known = {slug(each.name) for each in peers}
    wanted = {slug(name) for name in only}
    if unknown := sorted(wanted - known):
        raise ValueError(f"unknown peer {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return [each for each in peers if not wanted or slug(each.name) in wanted]
