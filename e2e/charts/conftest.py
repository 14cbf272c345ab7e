"""Releases of the chart for one test each, where there are Helm and kubectl."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e import skips
from e2e.charts import releases
from e2e.cluster import binaries, client, control_plane

NewRelease = Callable[[], releases.Release]
_numbers = itertools.count(1)


@pytest.fixture
def tools() -> None:
    """Skips where there is no Helm or no kubectl."""
    with skips.where_unavailable():
        for name in binaries.TOOLS:
            binaries.tool(name)


@pytest.fixture
def new_release(
    tools: None, admin: client.Client, plane: control_plane.ControlPlane, tmp_path: Path
) -> Iterator[NewRelease]:
    """Makes releases for one test, and takes away what is left of them."""
    with contextlib.ExitStack() as stack:

        def make() -> releases.Release:
            made = releases.Release(admin, plane, f"chart-{next(_numbers)}", tmp_path)
            stack.callback(_remove, admin, made)
            return made

        yield make


def _remove(admin: client.Client, release: releases.Release) -> None:
    release.stop()
    release.uninstall()
    with contextlib.suppress(client.Refused):
        admin.delete("Namespace", release.namespace)
