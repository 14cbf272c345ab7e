"""Fixtures of the tests with real v2 predictors: one Triton, one MLServer, one sidecar in front of each."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from e2e import skips
from e2e.triton import clients, servers, sidecar

Starts = Callable[..., sidecar.Sidecar]
# A lone request waits so long for others. Long enough to see batches form, short enough not to be felt.
_WINDOW = ("--policy", "window", "--max-latency", "5")
# Triton answers 500 (INTERNAL) when a model raises and when JSON is not as it should be. The budget is for tests in
# which nearly all fail.
_ISOLATION = ("--retry-budget", "100")

# tritonclient.http.aio leaves answers that are all status unread; aiohttp complains when they are collected, which may
# be in any later test.
_UNREAD = "ignore:Exception ignored in.*Connection.__del__:pytest.PytestUnraisableExceptionWarning"
_HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(_UNREAD))


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """Triton with all models; tests must not stop it. Skips where it cannot run."""
    yield from _server(servers.Triton, tmp_path_factory)


@pytest.fixture(scope="session")
def mlserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """MLServer; tests must not stop it. Skips where it cannot run."""
    yield from _server(servers.MLServer, tmp_path_factory)


def _server(kind: Callable[..., servers.Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    with skips.where_unavailable():
        server = kind(tmp_path_factory.mktemp("server"))
    with servers.running(server):
        yield server


@pytest.fixture(scope="session")
def front(triton: servers.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sidecar.Sidecar]:
    """The sidecar in front of Triton that all tests share which leave it as it is."""
    with sidecar.running(tmp_path_factory.mktemp("sidecar"), triton, *_WINDOW, *_ISOLATION) as started:
        yield started


@pytest.fixture
def start(triton: servers.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starts]:
    """Starts a sidecar with flags of the test's own in front of Triton, or of `predictor`."""
    with contextlib.ExitStack() as stack:

        def starts(*options: str, predictor: servers.Server = triton) -> sidecar.Sidecar:
            folder = tmp_path_factory.mktemp("sidecar")
            return stack.enter_context(sidecar.running(folder, predictor, *options))

        yield starts


@pytest.fixture(params=["direct", "through the sidecar"])
def target(request: pytest.FixtureRequest) -> clients.Target:
    """Triton itself, which shows that a test is right, and the sidecar, where its outcome must be the same."""
    fixture = "triton" if request.param == "direct" else "front"
    return request.getfixturevalue(fixture)  # type: ignore[no-any-return]


@pytest.fixture(params=clients.KINDS)
async def client(request: pytest.FixtureRequest, target: clients.Target) -> AsyncIterator[clients.Client]:
    """Each of tritonclient's clients, connected to each target."""
    async with clients.connected(request.param, target) as connected:
        yield connected
