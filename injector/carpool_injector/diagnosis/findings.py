"""A line of the diagnosis, its three verdicts, and what a check does about a fact that could not be had."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

Verdict = Literal["ok", "warning", "failed"]
_SHOWN = 5  # names in a line
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis. `fix` is what to do about it."""

    verdict: Verdict
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a fact could not be had, with the next step. `forbidden`: this account may not ask."""

    why: str
    forbidden: bool = False


class Missing(Exception):
    """A check cannot go on without a fact. `findings` tell of that, unless another check does."""

    def __init__(self, findings: Iterator[Finding]) -> None:
        self.findings = tuple(findings)


def require(fact: _T | Failed, what: str = "") -> _T:
    """The fact itself. Raises `Missing` where it could not be had; `what` it is, where nobody else tells of it."""
    if isinstance(fact, Failed):
        raise Missing(unknown(what, fact) if what else iter(()))
    return fact


def check(look: Callable[[_T], Iterator[Finding]]) -> Callable[[_T], Iterator[Finding]]:
    """A check that ends with what is to be told of a fact that could not be had."""

    @functools.wraps(look)
    def whole(known: _T) -> Iterator[Finding]:
        try:
            yield from look(known)
        except Missing as gap:
            yield from gap.findings

    return whole


def ok(text: str) -> Finding:
    """All is well."""
    return Finding("ok", text)


def warning(text: str, fix: str) -> Finding:
    """It works, and may not for long or for all."""
    return Finding("warning", text, fix)


def failed(text: str, fix: str) -> Finding:
    """It does not work."""
    return Finding("failed", text, fix)


def unknown(what: str, why: Failed) -> Iterator[Finding]:
    """Something that could not be read; the reason names the call, and the rule that is missing if it was RBAC."""
    yield Finding("warning", f"{what} could not be checked", why.why)


def named(names: Sequence[str]) -> str:
    """The first of some names in order, and how many more there are."""
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(sorted(names)[:_SHOWN]) + rest
