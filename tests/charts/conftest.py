"""Tests of the chart need Helm; where there is none they are skipped, and say so."""

from __future__ import annotations

import pytest

from tests.charts import helm


@pytest.fixture(autouse=True, scope="session")
def helm_is_here() -> None:
    try:
        helm.find()
    except helm.Unavailable as missing:
        pytest.skip(str(missing))
