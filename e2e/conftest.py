"""Fixtures of the tests with a real API server: one control plane, one injector, and a namespace for each test."""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import xdist.remote
from xdist import scheduler

from e2e import skips
from e2e.cluster import client, control_plane, kserve
from e2e.injector import installation, steps
from tests import loopback

HERE = Path(__file__).parent
# Of one test by its folder, without the fixtures that it shares: builds and starts have deadlines of their own.
TEST_SECONDS = {"live/faults": 600, "live": 300, "lists": 240, ".": 120}

_numbers = itertools.count(1)


class ByCluster(scheduler.LoadScopeScheduling):
    """One process runs the tests with a cluster, which wait most of the time, another one all others meanwhile."""

    def _split_scope(self, nodeid: str) -> str:
        return "cluster" if nodeid.startswith("e2e/live/") else "no cluster"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: xdist.remote.Producer) -> ByCluster:
    return ByCluster(config, log)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(skips)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limits the time of each test, unless it has a limit of its own."""
    for item in items:
        limits = [seconds for folder, seconds in TEST_SECONDS.items() if HERE / folder in item.path.parents]
        if limits and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(limits[0], func_only=True))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says once, for each reason, why tests were skipped."""
    skipped = terminalreporter.stats.get("skipped", ())
    for reason, count in collections.Counter(report.longrepr[2] for report in skipped).items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(scope="session")
def building(request: pytest.FixtureRequest) -> steps.Building:
    """A block that may build things for minutes: it prints what it does, and skips where something is unavailable."""
    uncaptured = request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled

    @contextlib.contextmanager
    def build(what: str) -> Iterator[None]:
        with skips.where_unavailable(what), uncaptured():
            yield

    return build


@pytest.fixture(scope="session")
def plane(building: steps.Building, tmp_path_factory: pytest.TempPathFactory) -> Iterator[control_plane.ControlPlane]:
    """A control plane for this run; skips where none can be built."""
    with contextlib.ExitStack() as stack:
        with building("API server to test against"):
            running = stack.enter_context(control_plane.running(tmp_path_factory.mktemp("control-plane")))
        yield running


@pytest.fixture(scope="session")
def admin(plane: control_plane.ControlPlane) -> Iterator[client.Client]:
    """Calls the API server as a user with all rights."""
    with contextlib.closing(client.Client(plane.kubeconfig)) as admin:
        yield admin


@pytest.fixture(scope="session")
def inference_services(admin: client.Client) -> None:
    """KServe's resource definitions; skips where its module cannot be had."""
    with skips.where_unavailable():
        kserve.install_resource_definitions(admin)


@pytest.fixture(scope="session")
def start_injector(
    plane: control_plane.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[steps.StartInjector]:
    """Starts an injector for an installation, as the user that the chart grants its rights to."""
    folder = tmp_path_factory.mktemp("injectors")
    with contextlib.ExitStack() as stack:

        def start(installed: installation.Installation, *more: str, port: int = 0) -> installation.Injector:
            credentials = plane.kubeconfig_of(installed.user)
            injector = installation.Injector(installed, credentials, folder, more, port)
            stack.callback(injector.stop)
            injector.start()
            return injector

        yield start


@pytest.fixture(scope="session")
def shared(admin: client.Client, start_injector: steps.StartInjector) -> installation.Installation:
    """An installation with a running injector, for all tests that leave both as they are."""
    installed = installation.Installation(admin, "shared")
    port = loopback.free_port()
    installed.install(port)
    start_injector(installed, port=port)
    steps.wait_until_effective(admin, steps.create_namespace(admin, "shared-probe", installed.labels))
    return installed


@pytest.fixture
def new_installation(admin: client.Client) -> Iterator[steps.NewInstallation]:
    """Makes installations for one test; their webhooks are gone after it."""
    with contextlib.ExitStack() as stack:

        def make() -> installation.Installation:
            made = installation.Installation(admin, f"test-{next(_numbers)}")
            stack.callback(made.uninstall)
            return made

        yield make


@pytest.fixture
def new_namespace(admin: client.Client) -> Iterator[steps.NewNamespace]:
    """Makes namespaces for one test; in reach of no injector, unless the labels say so."""
    made: list[str] = []

    def make(labels: dict[str, str] | None = None) -> str:
        made.append(steps.create_namespace(admin, f"test-{next(_numbers)}", labels or {}))
        return made[-1]

    yield make
    for name in made:
        admin.delete("Namespace", name)


@pytest.fixture
def namespace(shared: installation.Installation, new_namespace: steps.NewNamespace) -> str:
    """A namespace of this test's own, in reach of the shared injector."""
    return new_namespace(shared.labels)
