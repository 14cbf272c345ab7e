"""The fixture that these tests share: a pod that sends calls."""

from __future__ import annotations

import pytest

from e2e.cluster import kubectl as kubectls
from e2e.live.rpc import callers as callers_in_pods


@pytest.fixture
def callers(kubectl: kubectls.Kubectl) -> callers_in_pods.Callers:
    """Callers in the test's namespace."""
    return callers_in_pods.ready(kubectl)
