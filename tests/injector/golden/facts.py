"""The hand-written half of a golden case: facts that stay true however the expected outcome was made.

Each fact is a line in a case's header, `name: value`, and a function here that returns the problem it sees or "".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from carpool_injector.core import model
from tests.injector import pods

Object = dict[str, Any]

_STEP = re.compile(r"\[([^\]]+)\]|\.?([^.\[\]]+)")
_MISSING = object()


def problems(facts: Object, before: Object, outcome: model.Outcome) -> list[str]:
    """What of the facts does not hold, in words."""
    found = [f"{name}: {_CHECKS[name](value, before, outcome)}" for name, value in facts.items()]
    return [problem for problem in found if not problem.endswith(": ")]


def at(thing: Any, path: str) -> Any:
    """What lies at a path such as `spec.containers[queue-proxy].env[USER_PORT].value`; `None` at the end if nothing.

    In brackets: the `name` of a list's element, its index, or a mapping's key. Steps into text read it as JSON.
    """
    for match in _STEP.finditer(path):
        step = match[1] or match[2]
        thing = json.loads(thing) if isinstance(thing, str) else thing
        if isinstance(thing, list):
            by_name = {each.get("name"): each for each in thing if isinstance(each, dict)}
            thing = thing[int(step)] if re.fullmatch(r"-?\d+", step) else by_name.get(step, _MISSING)
        elif isinstance(thing, dict):
            thing = thing.get(step, _MISSING)
        if thing is _MISSING:
            return None
    return thing


def _is(get: Callable[[model.Outcome], Any]) -> Callable[[Any, Object, model.Outcome], str]:
    def check(expected: Any, before: Object, outcome: model.Outcome) -> str:
        value = get(outcome)
        return "" if value == expected else f"expected {expected!r}, got {value!r}"

    return check


def sidecar(outcome: model.Outcome) -> Object:
    """The sidecar's container in the result, {} if there is none."""
    try:
        return pods.container(outcome.pod, model.CONTAINER)
    except KeyError:
        return {}


def _flag(name: str) -> Callable[[model.Outcome], Any]:
    return lambda outcome: int(pods.flags(sidecar(outcome).get("args") or []).get(name) or 0)


def _kind(outcome: model.Outcome) -> str:
    names = [container["name"] for container in outcome.pod["spec"].get("initContainers") or ()]
    if not sidecar(outcome):
        return "no container"
    return "init container" if model.CONTAINER in names else "container"


def _moved(port: int, before: Object, outcome: model.Outcome) -> str:
    return "" if outcome.plan and outcome.plan.app_port != port else f"it still listens on {port}"


def _has(expected: Object, before: Object, outcome: model.Outcome) -> str:
    found = {path: at(outcome.pod, path) for path in expected}
    return "; ".join(f"{path} is {found[path]!r}, not {v!r}" for path, v in expected.items() if found[path] != v)


def _lacks(paths: list[str], before: Object, outcome: model.Outcome) -> str:
    return "; ".join(f"{path} is {found!r}" for path in paths if (found := at(outcome.pod, path)) is not None)


def _keeps(paths: list[str], before: Object, outcome: model.Outcome) -> str:
    absent = [f"{path} is not in the case's pod" for path in paths if at(before, path) is None]
    pairs = {path: (at(before, path), at(outcome.pod, path)) for path in paths}
    return "; ".join(absent + [f"{path} became {after!r}" for path, (was, after) in pairs.items() if was != after])


def _flags(expected: Object, before: Object, outcome: model.Outcome) -> str:
    """Each flag with its value; null: it is not given."""
    given = pods.flags(sidecar(outcome).get("args") or [])
    wanted = {name: None if value is None else str(value) for name, value in expected.items()}
    return "; ".join(f"{name} is {given.get(name)!r}" for name, value in wanted.items() if given.get(name) != value)


def _says(phrases: list[str], before: Object, outcome: model.Outcome) -> str:
    refusal = [outcome.refusal.message, outcome.refusal.fix] if outcome.refusal else []
    text = "\n".join([*refusal, *outcome.warnings, *(outcome.plan.steps if outcome.plan else ())])
    return "; ".join(f"nothing says {phrase!r}" for phrase in phrases if phrase.lower() not in text.lower())


def _warns(phrases: list[str], before: Object, outcome: model.Outcome) -> str:
    """One warning for each phrase, and no other."""
    missing = [f"no warning says {p!r}" for p in phrases if not any(p.lower() in w.lower() for w in outcome.warnings)]
    return "; ".join(missing) or ("" if len(outcome.warnings) == len(phrases) else f"warnings are {outcome.warnings}")


def _order(names: list[str], before: Object, outcome: model.Outcome) -> str:
    found = [container["name"] for container in outcome.pod["spec"].get("initContainers") or ()]
    return "" if found == names else f"they are {found}"


_CHECKS: dict[str, Callable[[Any, Object, model.Outcome], str]] = {
    "result": _is(lambda outcome: outcome.result),
    "refused because": _is(lambda outcome: outcome.refusal.code if outcome.refusal else None),
    "takeover": _is(lambda outcome: outcome.plan.takeover if outcome.plan else None),
    "app container": _is(lambda outcome: outcome.plan.container if outcome.plan else None),
    "app listens": _is(lambda outcome: outcome.plan.app_port if outcome.plan else None),
    "app moved from": _moved,
    "sidecar is": _is(_kind),
    "sidecar listens": _is(_flag("--port")),
    "sidecar forwards to": _is(_flag("--component-port")),
    "app listens for gRPC": _is(lambda outcome: outcome.plan.grpc_app_port if outcome.plan else None),
    "sidecar listens for gRPC": _is(_flag("--grpc-port")),
    "sidecar forwards gRPC to": _is(_flag("--component-grpc-port")),
    "sidecar flags": _flags,
    "init containers": _order,
    "has": _has,
    "lacks": _lacks,
    "keeps": _keeps,
    "says": _says,
    "warns": _warns,
}
