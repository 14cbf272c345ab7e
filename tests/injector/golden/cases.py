"""Golden cases: one file each, read from top to bottom.

1. What the situation is and the facts that must hold, written by hand.
2. The pod, or a workload with a pod template, written by hand.
3. What comes out, made by `python -m tests.injector.golden` and reviewed as a diff. It begins at a marker line.

Members of the sidecar's container that are the same in nearly every pod are in `usual.yaml`, once; a case names them.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import io
import pathlib
from collections.abc import Mapping
from typing import Any

import ruamel.yaml
import yaml
from ruamel.yaml.scalarstring import LiteralScalarString

import carpool_injector
from carpool_injector import config_file
from carpool_injector.core import config, injection, model
from carpool_injector.objects import workloads

Object = dict[str, Any]

FOLDER = pathlib.Path(__file__).parent / "cases"
USUAL = pathlib.Path(__file__).parent / "usual.yaml"
_USUAL_CASE = "standard-sklearn"
_ALWAYS_SHOWN = {"name", "image", "args", "env", "ports", "resources"}
MARKER = "--- # What comes out. Made by: python -m tests.injector.golden\n"
# What a release changes is no part of a case: the image is this one, version and configuration's hash are left out.
_IMAGE = {"image": "carpool-sidecar:golden"}
_HEADER = {"situation", "namespace", "capabilities", "config", "facts"}


@dataclasses.dataclass(frozen=True)
class Case:
    """One case as written by hand, and the text that was made of it last."""

    path: pathlib.Path
    thing: Object
    pod: Object
    facts: Mapping[str, Any]
    namespace: model.Namespace
    capabilities: model.Capabilities
    config: config.Config
    written: str
    expected: str

    @property
    def name(self) -> str:
        return self.path.stem

    def inject(self, pod: Object | None = None) -> model.Outcome:
        """What the injector makes of the case's pod, or of another one in the same situation."""
        given = self.pod if pod is None else pod
        return injection.inject(given, self.config, self.namespace, self.capabilities)


def load(path: pathlib.Path) -> Case:
    """Read one case. Raises ValueError for a file that is none."""
    written, _, expected = path.read_text().partition(MARKER)
    header, thing = yaml.load_all(written, yaml.CSafeLoader)
    if unknown := header.keys() - _HEADER:
        raise ValueError(f"{path.name}: unknown {sorted(unknown)}; known: {sorted(_HEADER)}")
    template = workloads.template(thing)
    if template is None:
        raise ValueError(f"{path.name}: {workloads.describe(thing)} has no pod template")
    return Case(
        path=path,
        thing=thing,
        pod=template.pod,
        facts=header["facts"],
        namespace=model.Namespace(**{"name": "models", **header.get("namespace", {})}),
        capabilities=model.Capabilities(**header.get("capabilities", {})),
        config=config_file.parse(_IMAGE | header.get("config", {})),
        written=written,
        expected=expected,
    )


@functools.cache  # several modules ask
def load_all() -> tuple[Case, ...]:
    """Every case, by name."""
    return tuple(load(path) for path in sorted(FOLDER.glob("*.yaml")))


def render(case: Case, outcome: model.Outcome) -> str:
    """What came out, for people: the verdict, the plan in words, and the pod's changes as lines of YAML."""
    shown: Object = {"result": outcome.result, "decided by": outcome.decision.source}
    if outcome.decision.reason:
        shown["reason"] = str(outcome.decision.reason)
    if outcome.plan is not None:
        shown |= {name: getattr(outcome.plan, name) for name in ("takeover", "container", "app_port", "listen_port")}
        if outcome.plan.grpc_listen_port is not None:
            shown |= {name: getattr(outcome.plan, name) for name in ("grpc_app_port", "grpc_listen_port")}
        shown["steps"] = list(outcome.plan.steps)
    if outcome.refusal is not None:
        shown["refusal"] = {name: getattr(outcome.refusal, name) for name in ("code", "message", "fix")}
    shown["warnings"] = list(outcome.warnings)
    shortened = {**outcome.pod, "spec": _shortened(outcome.pod["spec"])} if outcome.plan else outcome.pod
    text = _dump({**shown, "changes": _changes(case.thing, workloads.replaced(case.thing, shortened))})
    return text.replace(case.config.hash, "HASH").replace(carpool_injector.__version__, "VERSION")


def usual() -> str:
    """What `usual.yaml` has to say: the members of a sidecar's container that hardly ever differ."""
    [container] = load(FOLDER / f"{_USUAL_CASE}.yaml").inject().pod["spec"]["initContainers"]
    return _dump({key: value for key, value in container.items() if key not in _ALWAYS_SHOWN})


@functools.cache
def _usual_members() -> Object:
    members: Object = yaml.load(USUAL.read_text(), yaml.CSafeLoader)
    return members


def _shortened(spec: Object) -> Object:
    """The spec with the names of the usual members in place of them."""
    known = _usual_members()
    shown = dict(spec)
    for group in ("containers", "initContainers"):
        for at, container in enumerate(spec.get(group) or ()):
            if container["name"] == model.CONTAINER:
                same = [key for key in container if key in known and container[key] == known[key]]
                rest = {key: value for key, value in container.items() if key not in same}
                shown[group] = [
                    *spec[group][:at],
                    {**rest, "as in usual.yaml": ", ".join(same)},
                    *spec[group][at + 1 :],
                ]
    return shown


def _changes(before: Object, after: Object) -> str:
    lines = difflib.unified_diff(_dump(before).splitlines(), _dump(after).splitlines(), lineterm="", n=3)
    shown = ["..." if line.startswith("@@") else line for line in lines if not line.startswith(("---", "+++"))]
    return LiteralScalarString("".join(f"{line}\n" for line in shown[1:])) if shown else "none"


def _dump(value: Any) -> str:
    writer = ruamel.yaml.YAML()
    writer.width = 4096
    writer.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    writer.dump(value, stream)
    return stream.getvalue()
