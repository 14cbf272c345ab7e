"""What the cluster can do, as it is known from one moment to the next."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from carpool_injector.core import model
from carpool_injector.objects import review
from carpool_injector.webhook import cluster


class Source:
    """Versions, or the errors that come instead."""

    def __init__(self, server: model.Version | Exception, nodes: list[model.Version] | Exception) -> None:
        self.server = server
        self.nodes = nodes

    async def server_version(self) -> model.Version:
        if isinstance(self.server, Exception):
            raise self.server
        return self.server

    async def kubelet_versions(self) -> list[model.Version]:
        if isinstance(self.nodes, Exception):
            raise self.nodes
        return self.nodes


@contextlib.asynccontextmanager
async def following(source: Source) -> AsyncIterator[cluster.ClusterVersion]:
    subject = cluster.ClusterVersion(source)
    task = asyncio.create_task(subject.follow())
    try:
        await asyncio.sleep(0.01)
        yield subject
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("server", "nodes", "native", "named"),
    [
        ((1, 33), [(1, 33), (1, 32)], True, True),
        ((1, 33), [(1, 33), (1, 28)], False, False),
        ((1, 30), [(1, 29)], True, False),
        ((1, 33), [], True, True),
        ((1, 33), OSError("forbidden"), True, True),
        ((1, 31), OSError("forbidden"), False, False),
        ((1, 32), [(1, 32)], True, False),
    ],
)
async def test_the_oldest_node_decides_and_the_oldest_allowed_one_where_nodes_cannot_be_read(
    server: model.Version, nodes: list[model.Version] | Exception, native: bool, named: bool
) -> None:
    async with following(Source(server, nodes)) as subject:
        assert subject.missing() == ""
        assert subject.capabilities() == model.Capabilities(native, named)


@pytest.mark.looptime
async def test_until_the_version_is_known_nothing_is_answered_and_readiness_says_so() -> None:
    source = Source(OSError("no route"), [])
    async with following(source) as subject:
        assert "not known yet" in subject.missing()
        with pytest.raises(review.Unanswerable, match="the cluster's version is not known yet"):
            subject.capabilities()
        source.server = (1, 33)
        await asyncio.sleep(60)
        assert subject.capabilities().native_sidecars


@pytest.mark.looptime
async def test_an_upgrade_is_noticed_and_an_outage_changes_nothing() -> None:
    source = Source((1, 28), [(1, 28)])
    async with following(source) as subject:
        assert not subject.capabilities().native_sidecars
        source.server = OSError("down")
        await asyncio.sleep(600)
        assert not subject.capabilities().native_sidecars
        source.server, source.nodes = (1, 33), [(1, 33)]
        await asyncio.sleep(600)
        assert subject.capabilities().native_sidecars
