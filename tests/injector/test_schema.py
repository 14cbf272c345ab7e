"""Injected pods follow the published schemas of Kubernetes, unknown members forbidden, for each version in use."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given

from carpool_injector.core import model
from tests.injector import pod_rules, strategies
from tests.injector.golden import cases

# Native sidecars exist since 1.28 and are on by default since 1.29.
CLASSIC = ("1.25", "1.27", "1.28")
NATIVE = ("1.29", "1.31", "1.32", "1.34", "1.37")
CASES = [case for case in cases.load_all() if case.facts["result"] == "injected"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_injected_golden_cases_add_nothing_that_a_schema_does_not_know(case: cases.Case) -> None:
    versions = NATIVE if case.capabilities.native_sidecars else CLASSIC
    after = case.inject().pod
    for version in versions:
        assert pod_rules.off_schema(after, version) == pod_rules.off_schema(case.pod, version)


@given(strategies.situations())
def test_nothing_invalid_is_added_to_generated_pods(situation: strategies.Situation) -> None:
    version = NATIVE[0] if situation.capabilities.native_sidecars else CLASSIC[0]
    assert set(pod_rules.off_schema(situation.inject().pod, version)) <= set(
        pod_rules.off_schema(situation.pod, version)
    )


@pytest.mark.parametrize("version", CLASSIC)
def test_without_native_sidecars_nothing_newer_than_the_cluster_is_used(version: str) -> None:
    case = next(case for case in CASES if case.name == "standard-sklearn")
    old = dataclasses.replace(case, capabilities=model.Capabilities(False, False))
    assert pod_rules.off_schema(old.inject().pod, version) == []
