"""A pod as large as the API server stores costs work in proportion to its size, and gets a patch of the usual size."""

from __future__ import annotations

import json
import sys
from typing import Any

from carpool_injector.core import config, injection, model
from tests.injector import pods

Object = dict[str, Any]


def inject(pod: Object) -> model.Outcome:
    return injection.inject(pod, config.Config(), model.Namespace("models"), model.Capabilities())


def test_a_pod_as_large_as_etcd_takes_costs_work_in_proportion_and_a_small_patch() -> None:
    """Counted in calls of functions, which a slow machine does not change."""
    small, large = _pod_of_size(300_000), _pod_of_size(1_200_000)
    assert len(json.dumps(large)) > 1_200_000
    assert _calls(large) < 5 * _calls(small)
    outcome = inject(large)
    assert outcome.result == "injected"
    assert len(json.dumps(outcome.patch)) < 20_000


def _pod_of_size(size: int) -> Object:
    """Most of it in variables, arguments and annotations, as in real pods that grow too large."""
    env = [{"name": f"FEATURE_{index}", "value": "x" * 60} for index in range(size // 240)]
    annotations = {f"acme.dev/note-{index}": "y" * 200 for index in range(size // 450)}
    pod = pods.kserve(pods.sklearn(env=env), annotations=annotations)
    pod["spec"]["containers"] += [
        {"name": f"helper-{index}", "image": "busybox:1.37", "args": ["z" * 1000]} for index in range(size // 4000)
    ]
    return pod


def _calls(pod: Object) -> int:
    """Calls of Python and C functions that injecting takes."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        inject(pod)
    finally:
        sys.setprofile(None)
    return count
