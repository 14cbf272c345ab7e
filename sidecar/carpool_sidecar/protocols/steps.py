"""Work on a message that is done a bit at a time, so that a large one does not hold up everybody else's small ones.

All callers share one event loop, and what works on a body of megabytes in one go keeps all of them waiting. So whatever
takes long is written as a generator that yields after each step. `carpool_sidecar.turns` lets it take a step in each
turn of the loop; where nobody else waits, `at_once` takes all of them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""Yields after about half a millisecond's work, and returns or raises what comes of all of it."""


def at_once(steps: Steps[T]) -> T:
    """What comes of all steps, taken one after the other."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
