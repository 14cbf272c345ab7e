"""A codec for one model, and what it is told of uneven outputs."""

from __future__ import annotations

import pytest

from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.v2_http import codec


@pytest.fixture
def uneven() -> list[str]:
    """Gets an entry whenever outputs did not have the batch's rows."""
    return []


@pytest.fixture
def spoken(uneven):
    return codec.Codec(models.ModelInfo(max_batch_size=8), lambda: uneven.append("uneven"))
