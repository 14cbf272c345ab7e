"""A line of the diagnosis, and its three verdicts: what every check makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from carpool_injector.diagnosis import cluster_state

Verdict = Literal["ok", "warning", "failed"]
_SHOWN = 5  # names in a line


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis. `fix` is what to do about it."""

    verdict: Verdict
    text: str
    fix: str = ""


def ok(text: str) -> Finding:
    """All is well."""
    return Finding("ok", text)


def warning(text: str, fix: str) -> Finding:
    """It works, and may not for long or for all."""
    return Finding("warning", text, fix)


def failed(text: str, fix: str) -> Finding:
    """It does not work."""
    return Finding("failed", text, fix)


def unknown(what: str, why: cluster_state.Failed) -> Iterator[Finding]:
    """Something that could not be read; the reason names the call, and the rule that is missing if it was RBAC."""
    yield Finding("warning", f"{what} could not be checked", why.why)


def named(names: Sequence[str]) -> str:
    """The first of some names in order, and how many more there are."""
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(sorted(names)[:_SHOWN]) + rest
