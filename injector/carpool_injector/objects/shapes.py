"""Whether a manifest has mappings, lists and texts where the other modules rely on them.

An API server has checked what a webhook gets, nobody what people write. Null is as good as absent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from carpool_injector.core import model, refusals
from carpool_injector.objects import parts, workloads

Check = Callable[[Any, str], None]


def check(thing: model.Object) -> None:
    """Raises refusals.Malformed for an object that makes pods and is not shaped like one; says where, and what belongs
    there. Other kinds are not looked at.
    """
    name, path = workloads.describe(thing), workloads.OF_ANY_KIND
    if workloads.is_of_unknown_kind(thing):
        _mapping(parts.find(thing, path), f"{name}: {'.'.join(path)}")
    elif workloads.is_opted_in_only(thing) or workloads.makes_pods(thing):
        _mapping(thing, name)


def _mapping(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(where, value, "a mapping")
    for key, held in value.items():
        if held is not None and key in _SHAPES:
            _SHAPES[key](held, f"{where}: {key}" if ": " not in where else f"{where}.{key}")


def _texts(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(where, value, "a mapping of strings")
    for key, held in value.items():
        if not isinstance(held, str | None):
            raise _wrong(f"{where}.{key}", held, 'a string: put it in quotes, like "true" or "16"')


def _text(value: Any, where: str, hint: str = "") -> None:
    if not isinstance(value, str):
        raise _wrong(where, value, f"a string{hint}")


def _word(value: Any, where: str) -> None:
    _text(value, where, ": put it in quotes")


def _named(value: Any, where: str) -> None:
    if value.get("name") is not None:
        _text(value["name"], f"{where}.name")


def _valued(value: Any, where: str) -> None:
    if not isinstance(value.get("value"), str | None):
        kind = type(value["value"]).__name__  # not the value, which may be secret
        raise refusals.Malformed(
            f"{where}.value, of {value.get('name')!r}, is of type {kind} and must be a string: put it in quotes"
        )


def _listed(*checks: Check) -> Check:
    """A list all of whose items pass one check before any has to pass the next."""

    def check_all(value: Any, where: str) -> None:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        for each in checks:
            for number, held in enumerate(value):
                each(held, f"{where}[{number}]")

    return check_all


def _wrong(where: str, value: Any, wanted: str) -> refusals.Malformed:
    shown = repr(value)
    if _VARIABLES.search(where):
        shown = f"of type {type(value).__name__}"  # not the variables, which may be secret
    return refusals.Malformed(f"{where} is {shown[:60]}{'…' * (len(shown) > 60)} and must be {wanted}")


_VARIABLES = re.compile(r"\.env(\[[0-9]+\])?$", re.ASCII)
_MAPPINGS = (
    "metadata", "spec", "template", "jobTemplate", "predictor", "transformer", "explainer", "workerSpec", "model",
    "leaderWorkerTemplate", "leaderTemplate", "workerTemplate",
    "modelFormat", "batcher", "logger", "lifecycle", "preStop", "postStart", "httpGet", "tcpSocket", "grpc", "exec",
    "readinessProbe", "livenessProbe", "startupProbe", "resources", "securityContext", "status",
)  # fmt: skip
_SHAPES: Mapping[str, Check] = {
    **dict.fromkeys(_MAPPINGS, _mapping),
    **dict.fromkeys(("labels", "annotations", "nodeSelector"), _texts),
    **dict.fromkeys(("envFrom", "ports", "volumeMounts"), _listed(_mapping)),
    **dict.fromkeys(("containers", "initContainers", "volumes"), _listed(_mapping, _named)),
    "env": _listed(_mapping, _named, _valued),
    **dict.fromkeys(("args", "command"), _listed(_word)),
    **dict.fromkeys(("image", "mountPath"), _text),
}
