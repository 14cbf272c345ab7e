"""What tests of the clusters share."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import engines


@pytest.fixture
def kind_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own, and nothing of the user's settings for clusters."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(engines.PROVIDER, raising=False)
    monkeypatch.delenv(engines.CONFIGURATION, raising=False)
    monkeypatch.delenv("CARPOOL_CLUSTER", raising=False)
    return tmp_path
