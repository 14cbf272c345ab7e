"""Sources of pseudo-random numbers, one for each purpose, so that a change to one leaves the others as they were."""

from __future__ import annotations

import random


def source(purpose: str) -> random.Random:
    """The same numbers for the same purpose, in every run."""
    return random.Random(purpose)  # noqa: S311 - a simulation has no secrets
