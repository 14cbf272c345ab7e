"""Whether a manifest has the shapes that all code behind relies on: mappings where mappings belong, lists where lists.

An API server has checked what a webhook gets; what people write nobody has. Null is as good as absent, everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from carpool_injector.core import errors, model
from carpool_injector.objects import workloads

_HOLDERS = (
    "metadata", "spec", "template", "jobTemplate", "predictor", "transformer", "explainer", "workerSpec", "model",
    "modelFormat", "batcher", "logger", "lifecycle", "preStop", "postStart", "httpGet", "tcpSocket", "grpc", "exec",
    "readinessProbe", "livenessProbe", "startupProbe", "resources", "securityContext", "status",
)  # fmt: skip
_TEXTS = ("labels", "annotations", "nodeSelector")
_LISTS = ("containers", "initContainers", "volumes", "env", "envFrom", "ports", "volumeMounts")
_WORDS = ("args", "command")
_NAMED = ("containers", "initContainers", "volumes", "env")
_STRINGS = ("image", "mountPath")


def check(thing: model.Object) -> None:
    """Raises errors.Malformed for an object that makes pods and is not shaped like one; says where, and what belongs
    there. Other kinds are nobody's business here.
    """
    if workloads.is_opted_in_only(thing) or workloads.makes_pods(thing):
        _object(thing, workloads.describe(thing))


def _object(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(where, value, "a mapping")
    for key, held in value.items():
        if held is not None and key in _SHAPES:
            _SHAPES[key](held, f"{where}: {key}" if ": " not in where else f"{where}.{key}")


def _texts(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(where, value, "a mapping of strings")
    for key, held in value.items():
        if not isinstance(held, str) and held is not None:
            raise _wrong(f"{where}.{key}", held, 'a string: put it in quotes, like "true" or "16"')


def _objects(value: Any, where: str) -> None:
    if not isinstance(value, list):
        raise _wrong(where, value, "a list")
    for number, held in enumerate(value):
        _object(held, f"{where}[{number}]")


def _named(value: Any, where: str) -> None:
    _objects(value, where)
    for number, held in enumerate(value):
        if not isinstance(held.get("name"), str | None):
            raise _wrong(f"{where}[{number}].name", held["name"], "a string")


def _words(value: Any, where: str) -> None:
    if not isinstance(value, list):
        raise _wrong(where, value, "a list")
    for number, held in enumerate(value):
        if not isinstance(held, str):
            raise _wrong(f"{where}[{number}]", held, "a string: put it in quotes")


def _string(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise _wrong(where, value, "a string")


def _wrong(where: str, value: Any, wanted: str) -> errors.Malformed:
    shown = repr(value)
    return errors.Malformed(f"{where} is {shown[:60]}{'…' * (len(shown) > 60)} and must be {wanted}")


_SHAPES: Mapping[str, Callable[[Any, str], None]] = {
    **dict.fromkeys(_HOLDERS, _object),
    **dict.fromkeys(_TEXTS, _texts),
    **dict.fromkeys(_LISTS, _objects),
    **dict.fromkeys(_NAMED, _named),
    **dict.fromkeys(_WORDS, _words),
    **dict.fromkeys(_STRINGS, _string),
}
