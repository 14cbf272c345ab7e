"""The package's first page names all state of the data path: which class holds it."""

from __future__ import annotations

import re
from pathlib import Path

import carpool_sidecar
from tests import state_holders

ROOT = Path(str(carpool_sidecar.__file__)).parent
SIMULATED = ROOT / "planning"


def test_all_state_of_the_data_path_is_named_on_the_first_page() -> None:
    named = re.findall(r"(?m)^\| `([\w.]+)` \|", carpool_sidecar.__doc__ or "")
    found = state_holders.holders(path for path in ROOT.rglob("*.py") if SIMULATED not in path.parents)
    modules = (".".join((*path.relative_to(ROOT).with_suffix("").parts, name)) for path, name in found)
    assert sorted(named) == sorted(modules)
