"""The pages whose commands the end-to-end tests run have the steps that those look for."""

from __future__ import annotations

import pytest

from e2e.live.journey import page, test_journey


def test_the_readme_has_the_step_that_the_smoke_runs() -> None:
    (step,) = [each for each in page.steps(page.ROOT / "README.md") if each.heading == page.FIRST_TEN_MINUTES]
    assert step.commands.startswith("helm install ")


@pytest.mark.parametrize("heading", test_journey.CHECKS)
def test_the_journey_has_commands_for_each_check(heading: str) -> None:
    (step,) = [each for each in page.steps() if each.heading == heading]
    assert step.commands
