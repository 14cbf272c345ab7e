"""The chart's objects as the tests look at them: parsed, and found by kind and name."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import yaml

from tests.charts import helm

Object = dict[str, Any]

# Every file of values that is part of the chart, by a short name; the first is the chart's defaults.
SCENARIOS = {
    "default": None,
    "ha": helm.CHART / "values-ha.yaml",
    **{path.name.removesuffix("-values.yaml"): path for path in sorted((helm.CHART / "ci").glob("*-values.yaml"))},
}


def parse(text: str) -> list[Object]:
    """The objects of a YAML text; empty documents are left out. As Kubernetes reads it: YAML 1.1, by libyaml."""
    return [found for found in yaml.load_all(text, yaml.CSafeLoader) if found]


@functools.cache
def _rendered(helm_used: Path, *more: str, values: Path | None, namespace: str) -> list[Object]:
    asked_for = "--set=check.enabled=true"  # `helm test`, so that tests see its objects as well
    return parse(helm.template(*more, asked_for, namespace=namespace, values=[values] if values else []))


def rendered(*more: str, values: Path | None = None, namespace: str = helm.NAMESPACE) -> list[Object]:
    """What the chart makes of these values, with the hooks of `helm test`: fresh objects, that a test may change."""
    return copy.deepcopy(_rendered(helm.find(), *more, values=values, namespace=namespace))


def scenario(name: str) -> list[Object]:
    """What the chart makes of a file of values."""
    return rendered(values=SCENARIOS[name])


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    """All of a kind."""
    return [each for each in objects if each["kind"] == kind]


def one(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one of a kind, or of a kind and name."""
    (found,) = [each for each in of_kind(objects, kind) if name in (None, each["metadata"]["name"])]
    return found


def is_test(thing: Object) -> bool:
    """Whether an object is there for `helm test` only."""
    return "helm.sh/hook" in (thing["metadata"].get("annotations") or {})


def installed(objects: list[Object]) -> list[Object]:
    """Those that `helm install` creates."""
    return [each for each in objects if not is_test(each)]


def container(objects: list[Object]) -> Object:
    """The injector's container."""
    found: Object = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return found
