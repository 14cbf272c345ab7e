"""Channels to predictors that speak gRPC."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("grpc", reason="needs the extra: pip install 'carpool-sidecar[triton]'")


def test_however_much_has_happened_a_busy_loop_hears_of_it_within_a_few_turns() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.upstream.grpc_burst"], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(found.stdout) < 60
