"""The chart's MutatingAdmissionPolicy as an API server applies it to a pod, evaluated by CEL's own runtime.

`e2e/charts/test_policy.py` holds the policy against a real API server.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import jsonpatch
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from tests.charts import objects
from tests.injector import api_defaults

Object = objects.Object

# A type of Kubernetes' own, for which a map stands.
_PATCH = re.compile(r"JSONPatch\{op: ('\w+'),(\s+)path: ")
_VARIABLE = re.compile(r"\bvariables\.(\w+)")
# How a mutation begins that is none unless all of these hold.
_GUARD = re.compile(r"!\((variables\.\w+(?: && variables\.\w+)*)\)\s*\?\s*\[\]\s*:")


class Failed(Exception):
    """An expression has no value: an API server leaves the pod alone then, and logs it."""


class Policy:
    """The policy and its parameters, of what the chart renders."""

    def __init__(self, things: list[Object]) -> None:
        self._spec: Object = objects.one(things, "MutatingAdmissionPolicy")["spec"]
        stored: Object = _without_nothing(objects.one(things, "PodTemplate"))
        self._params = {**stored, "template": api_defaults.defaulted(stored["template"])}
        self._environment = cel.NewEnv(
            variables=dict.fromkeys(("object", "params", "namespaceObject", "variables"), cel.Type.DYN),
            extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings()],
        )
        self._variables = {each["name"]: each["expression"] for each in self._spec["variables"]}
        self._compiled: dict[str, cel.Expression] = {}

    def apply(self, pod: Object, annotations: Mapping[str, str] | None = None) -> Object:
        """What becomes of a pod in a namespace with these annotations: the very object if it is left alone.

        The pod has to have the API server's defaults. Raises `Failed`.
        """
        if not self._selects(pod):
            return pod
        given = {
            "object": pod, "params": self._params, "namespaceObject": {"metadata": {"annotations": annotations or {}}},
            "variables": {},
        }  # fmt: skip
        if not all(self._value(each["expression"], given) for each in self._spec["matchConditions"]):
            return pod
        [mutation] = self._spec["mutations"]
        expression = mutation["jsonPatch"]["expression"]
        guard = _GUARD.match(expression)
        # The last condition costs least. Most pods of the tests are left alone for it.
        if guard and any(self._variable(name, given) is False for name in reversed(_VARIABLE.findall(guard[1]))):
            return pod
        for name in self._variables:
            self._variable(name, given)
        operations = self._value(expression, given)
        return jsonpatch.apply_patch(pod, operations) if operations else pod

    def _selects(self, pod: Object) -> bool:
        selector, labels = self._spec["matchConstraints"]["objectSelector"], pod["metadata"].get("labels") or {}
        [absent] = selector["matchExpressions"]
        assert absent["operator"] == "DoesNotExist"
        return selector["matchLabels"].items() <= labels.items() and absent["key"] not in labels

    def _variable(self, name: str, given: Object) -> Any:
        """Its value, which is found once; None if it has none, as long as nothing asks for it."""
        known: Object = given["variables"]
        if name not in known:
            for other in _VARIABLE.findall(self._variables[name]):
                self._variable(other, given)
            with contextlib.suppress(Failed):
                known[name] = self._value(self._variables[name], given)
        return known.get(name)

    def _value(self, expression: str, given: Object) -> Any:
        if expression not in self._compiled:
            known = _PATCH.sub(r"{'op': \1,\2'path': ", expression).replace("value: ", "'value': ")
            self._compiled[expression] = self._environment.compile(known)
        found = self._compiled[expression].eval(data=given)
        if found.type() in (cel.Type.ERROR, cel.Type.UNKNOWN):
            raise Failed(f"{found.value()}: {expression}")
        return found.plain_value()


def _without_nothing(thing: Any) -> Any:
    """Without null and empty text, which an API server does not keep."""
    if isinstance(thing, dict):
        return {key: _without_nothing(value) for key, value in thing.items() if value not in (None, "")}
    return [_without_nothing(each) for each in thing] if isinstance(thing, list) else thing
