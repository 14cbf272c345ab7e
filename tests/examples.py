"""How many examples a property is tried with.

Usually so many that the whole suite takes minutes: 100, or what a property says that is dearer or finds more. In
continuous integration they are the same ones each time, so that a change is blamed only for what it did. New ones are
looked for at a developer's and, `CARPOOL_EXAMPLES` times as many, in `make test-deep`, which runs every night.
"""

from __future__ import annotations

import os

import hypothesis

_MORE = int(os.environ.get("CARPOOL_EXAMPLES") or 0)
IS_DEEP = _MORE > 0
_USUALLY = 100


def use_profile() -> None:
    """Sets what holds for every property."""
    hypothesis.settings.register_profile(
        "carpool",
        # A loaded machine is no reason to fail: no deadline per example, no complaint about slow generation.
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
        max_examples=_USUALLY * (_MORE or 1),
        derandomize=bool(os.environ.get("CI")) and not IS_DEEP,
        print_blob=True,
    )
    hypothesis.settings.load_profile("carpool")


def examples(count: int) -> hypothesis.settings:
    """For a property that usually gets `count` examples instead of 100: decorates it, or is a base for settings."""
    return hypothesis.settings(max_examples=count * (_MORE or 1))
