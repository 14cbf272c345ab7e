"""Two injectors that see the same pods are never installed by accident, and two may share a cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.charts import releases
from tests.charts import helm

NewRelease = Callable[[], releases.Release]
EVERYWHERE = ("--set-json", "webhook.namespaceSelector=[]")


def test_a_second_release_on_the_same_namespaces_is_refused_with_the_way_out(new_release: NewRelease) -> None:
    first, second = new_release(), new_release()
    first.install()
    with pytest.raises(helm.Failed) as refused:
        second.install(*EVERYWHERE)
    told = str(refused.value)
    assert f"another release, {first.name} (zz-{first.name}-carpool-injector)" in told
    assert "give both releases webhook.namespaceSelector" in told


def test_releases_with_namespaces_of_their_own_live_side_by_side(new_release: NewRelease) -> None:
    first, second = new_release(), new_release()
    first.install()
    second.install()
    assert second.objects()


def test_a_release_that_acts_everywhere_is_upgraded_as_often_as_one_likes(new_release: NewRelease) -> None:
    release = new_release()
    release.install(*EVERYWHERE)
    release.upgrade(*EVERYWHERE, "--set", "replicas=3,webhook.namePrefix=")
