"""The promises of the policies, on a reduced grid; `make sim` judges them on the whole one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.sim import acceptance, grid


@pytest.fixture(scope="module")
def of_window() -> grid.Results:
    return grid.run_all(grid.window_tasks(grid.REDUCED), processes=1)


@pytest.fixture(scope="module")
def of_adaptive() -> grid.Results:
    return grid.run_all(grid.adaptive_tasks(grid.REDUCED), processes=1)


@pytest.fixture(scope="module")
def of_hindsight() -> grid.Results:
    return grid.run_all(grid.hindsight_tasks(grid.REDUCED), processes=1)


@pytest.mark.parametrize("promise", acceptance.WINDOW_PROMISES)
def test_window_keeps_its_promise(
    promise: Callable[[grid.Results], acceptance.Checks], of_window: grid.Results
) -> None:
    assert_all_hold(promise(of_window))


@pytest.mark.parametrize("promise", acceptance.ADAPTIVE_PROMISES)
def test_adaptive_keeps_its_promise(
    promise: Callable[[grid.Results], acceptance.Checks], of_adaptive: grid.Results
) -> None:
    assert_all_hold(promise(of_adaptive))


@pytest.mark.parametrize("promise", acceptance.HINDSIGHT_PROMISES)
def test_adaptive_is_as_good_as_if_it_had_known(
    promise: Callable[[grid.Results], acceptance.Checks], of_hindsight: grid.Results
) -> None:
    assert_all_hold(promise(of_hindsight))


@pytest.mark.parametrize("scene", acceptance.ADAPTIVE_SCENES)
def test_adaptive_passes_the_scene(scene: Callable[[], acceptance.Checks]) -> None:
    assert_all_hold(scene())


def assert_all_hold(found: acceptance.Checks) -> None:
    checks = list(found)
    assert checks
    assert [check for check in checks if not check.ok] == []
