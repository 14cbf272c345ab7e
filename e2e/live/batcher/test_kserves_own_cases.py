"""KServe's own end-to-end tests of its batcher: four requests at once share one batch and have equal answers.

After test/e2e/batcher of kserve/kserve: test_raw_batcher.py (Standard mode) and test_batcher_custom_port.py, with their
numbers, 32 and 5000, and the four requests of test/e2e/data/iris_batch_input.json. Equal answers include the batchId.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from e2e.live.batcher import deployment, sides, tables, targets

FLOWERS = [
    [[6.8, 2.8, 4.8, 1.4], [6.0, 1.0, 4.5, 1.6]],
    *([[[6.8, 2.8, 4.8, 1.4], [6.0, 3.4, 4.5, 1.6]]] * 3),
]
MODEL = "iris"
Seen = Mapping[tuple[str, str], str]


@pytest.fixture(scope="module")
def seen(deployed: deployment.Deployed) -> Seen:
    """What came of it, for each side and service; all of them at the same time, as each takes maxLatency."""

    async def everywhere() -> dict[tuple[str, str], str]:
        wanted = [(side, service) for side in sides.SIDES for service in (sides.IRIS, sides.IRIS_PORT)]
        told = await asyncio.gather(*(four_at_once(deployed.target(side, service)) for side, service in wanted))
        return {(side.key, service.name): text for (side, service), text in zip(wanted, told, strict=True)}

    return asyncio.run(everywhere())


async def four_at_once(target: targets.Target) -> str:
    answers = await target.predict_all(MODEL, FLOWERS)
    right = sum(answer.json["predictions"] == [1, 1] for answer in answers)
    equal = sum(answer.body == answers[0].body for answer in answers)
    sizes = [len(call.instances) for call in await target.recorded(MODEL)]
    return f"{right} right and {equal} equal bodies, instances in a call: {sizes}"


def test_four_concurrent_requests_of_two_instances_have_equal_bodies(
    seen: Seen, side: sides.Side, observed: tables.Observe
) -> None:
    expected = "4 right and 4 equal bodies, instances in a call: [8]"
    assert observed(seen[side.key, sides.IRIS.name]) == expected


def test_they_have_equal_bodies_in_front_of_a_predictor_on_port_5000(
    seen: Seen, side: sides.Side, observed: tables.Observe
) -> None:
    expected = "4 right and 4 equal bodies, instances in a call: [8]"
    assert observed(seen[side.key, sides.IRIS_PORT.name]) == expected
