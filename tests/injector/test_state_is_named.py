"""The package's first page names all state that outlives a review: which class holds it."""

from __future__ import annotations

import re
from pathlib import Path

import carpool_injector
from tests import state_holders

ROOT = Path(str(carpool_injector.__file__)).parent
LONG_LIVED = ("api", "certificates", "webhook")


def test_all_state_that_outlives_a_review_is_named_on_the_first_page() -> None:
    named = re.findall(r"(?m)^\| `([\w.]+)` \|", carpool_injector.__doc__ or "")
    found = state_holders.holders(path for part in LONG_LIVED for path in (ROOT / part).glob("*.py"))
    assert sorted(named) == sorted(f"{path.parent.name}.{path.stem}.{name}" for path, name in found)


def test_the_files_to_read_first_are_there() -> None:
    named = re.findall(r"(?m)^\d\. `([\w/]+\.py)`:", carpool_injector.__doc__ or "")
    assert len(named) == 5
    assert all((ROOT / name).is_file() for name in named)
