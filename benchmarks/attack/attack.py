"""What an attack is, and what most have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from benchmarks.attack import link, target

GRPC = frozenset(("carpool", "grpcio"))
"""Attacks on a gRPC port: plain grpcio can be attacked like that, too."""

CARPOOL = frozenset(("carpool",))

SECONDS = 3.0
_RECONNECTS = 20
_PAUSE = 0.05

Strike = Callable[[target.Target], Awaitable[None]]


class Attack(NamedTuple):
    """`run` may raise `link.Gone` and `target.Exhausted`, which both just end it. `seconds` is how long it lasts.

    `flags` are those of the sidecar that is attacked; `files` is how many it may have open, if not the usual number.
    """

    name: str
    title: str
    run: Strike
    servers: frozenset[str] = GRPC
    seconds: float = SECONDS
    flags: tuple[str, ...] = ()
    files: int | None = None

    @property
    def needs(self) -> tuple[tuple[str, ...], int | None]:
        """What its server is started with: attacks that need the same may share one."""
        return self.flags, self.files


def again(strike: Strike, most: int = _RECONNECTS) -> Strike:
    """The strike, and again over a new connection whenever the server has ended it."""

    async def run(to: target.Target) -> None:
        for _ in range(most):
            try:
                await strike(to)
            except link.Gone:
                await asyncio.sleep(_PAUSE)

    return run


def at_once(strike: Strike, count: int) -> Strike:
    """The strike so many times side by side."""

    async def run(to: target.Target) -> None:
        for outcome in await asyncio.gather(*(strike(to) for _ in range(count)), return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, link.Gone | target.Exhausted):
                raise outcome

    return run
