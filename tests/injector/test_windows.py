"""Pods for Windows nodes, in all the ways in which a pod says so; and pods that may run on either."""

from __future__ import annotations

from typing import Any

import pytest

from carpool_injector.core import pods

Object = dict[str, Any]


def affinity(*terms: list[Object], kind: str = "requiredDuringSchedulingIgnoredDuringExecution") -> Object:
    selector: Any = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    if kind.startswith("preferred"):
        selector = [{"weight": 1, "preference": {"matchExpressions": term}} for term in terms]
    return {"affinity": {"nodeAffinity": {kind: selector}}}


def wish(operator: str, *values: str, key: str = "kubernetes.io/os") -> Object:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


OPTIONS = {"securityContext": {"windowsOptions": {"runAsUserName": "ContainerUser"}}}
ON_WINDOWS = {
    "by its system": {"os": {"name": "windows"}},
    "by a label": {"nodeSelector": {"kubernetes.io/os": "windows"}},
    "by the label of old": {"nodeSelector": {"beta.kubernetes.io/os": "windows"}},
    "by its build": {"nodeSelector": {"node.kubernetes.io/windows-build": "10.0.20348"}},
    "by affinity": affinity([wish("In", "windows")]),
    "by affinity, among others": affinity([wish("In", "a", key="zone"), wish("In", "windows")]),
    "by the label of old in an affinity": affinity([wish("In", "windows", key="beta.kubernetes.io/os")]),
    "by each of two terms": affinity([wish("In", "windows")], [wish("NotIn", "linux")]),
    "by affinity, beside a system that no node has": affinity([wish("In", "windows", "plan9")]),
    "by its build in an affinity": affinity([wish("Exists", key="node.kubernetes.io/windows-build")]),
    "by its user": OPTIONS,
    "by its user, with a wish of either": {**affinity([wish("In", "linux", "windows")]), **OPTIONS},
    "by a container's user": {"containers": [{"name": "a"}, {"name": "b", **OPTIONS}]},
}
ON_LINUX = {
    "nothing": {},
    "linux": {"os": {"name": "linux"}, **OPTIONS},
    "a wish that is none": affinity([wish("In", "windows")], kind="preferredDuringSchedulingIgnoredDuringExecution"),
    "either": affinity([wish("In", "linux", "windows")]),
    "another term": affinity([wish("In", "windows")], [wish("In", "b", key="zone")]),
    "not there": affinity([wish("NotIn", "windows")]),
    "no terms": affinity(),
    "by a label, with options": {"nodeSelector": {"kubernetes.io/os": "linux"}, **OPTIONS},
    "by the label of old, with options": {"nodeSelector": {"beta.kubernetes.io/os": "linux"}, **OPTIONS},
    "by affinity, with options": {**affinity([wish("In", "linux")], [wish("NotIn", "windows")]), **OPTIONS},
    "empty options": {"securityContext": {"windowsOptions": None}},
}


def is_for_windows(spec: Object) -> bool:
    return pods.read({"spec": {"containers": [{"name": "a"}], **spec}}).is_for_windows


@pytest.mark.parametrize("name", ON_WINDOWS)
def test_a_pod_that_runs_on_windows_only_is_known(name: str) -> None:
    assert is_for_windows(ON_WINDOWS[name])


@pytest.mark.parametrize("name", ON_LINUX)
def test_a_pod_that_may_run_on_linux_is_not_left_out(name: str) -> None:
    assert not is_for_windows(ON_LINUX[name])
