"""What is made from the chart: README, a template, manifests/install.yaml. `python -m tests.charts` writes them.

The README's list of values is made from values.yaml: a comment stands above each key that has a value, and a line
`## Title` opens a section. A key without a comment is an error. The values that matter first stand there with their
meaning; `helm show values` tells the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from carpool_injector.core import model, pod_annotations
from carpool_injector.core.settings import Settings
from tests import marks
from tests.charts import helm, rights

SCHEMA = helm.CHART / "values.schema.json"
README = helm.CHART / "README.md"
NEEDED = helm.CHART / "templates" / "_needed.tpl"
INSTALL = helm.ROOT / "manifests" / "install.yaml"
_COMMAND = "python -m tests.charts"
_KEY = re.compile(r"( *)([A-Za-z]+):(?: |$)")
# Helm's own bookkeeping, untrue where kubectl applies the file.
_HELMS = re.compile(r"(?m)^ +(app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*)\n")
# The object brings the indentation of what stands in it.
_SETTINGS = re.compile(r'(\n +)"defaults": \{.*?\1\}', re.DOTALL)
_HEADER = """\
# What `helm template` makes of the chart's defaults, for those who install without Helm:
#
#   kubectl apply --server-side -f install.yaml
#
# For Kubernetes 1.30 or newer: older ones have no ValidatingAdmissionPolicy. Take the chart there, which leaves it out.
# Made by python -m tests.charts. Images are named without a registry: name yours (kustomize, sed) where nodes pull.
apiVersion: v1
kind: Namespace
metadata:
  name: carpool-system
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""


# What Kubernetes, Grafana or the injector may go without. Of amounts the injector wants both, or none for its own.
_REMOVABLE = re.compile(
    r"nodeSelector\b|resources\b|dashboard\.labels\b"
    r"|config\.(?!image$|resources\..*\.|maxResources\.)|config\.resources\.limits\.cpu$"
)
Path = tuple[str, ...]
FIRST = (
    "mode", "global.imageRegistry", "config.image", "config.imagePullSecrets", "config.resources.limits.cpu",
    "config.defaults", "config.kserveBatcher", "webhook.failurePolicy", "certificates.mode", "replicas", "securePort",
    "hostNetwork", "missedPods.restart", "networkPolicy.enabled", "sidecarPodMonitor.enabled",
    "prometheusRule.enabled", "dashboard.enabled",
)  # fmt: skip


class Value(NamedTuple):
    """A value that can be set: its path, its default, and what it means."""

    path: str
    default: Any
    meaning: str


class Undocumented(Exception):
    """A key in values.yaml that no comment stands above."""


def values() -> list[Value]:
    """Every value, in the order of the file. Raises Undocumented."""
    text = (helm.CHART / "values.yaml").read_text()
    defaults = YAML(typ="safe", pure=True).load(text)
    return list(_values(text.splitlines(), defaults))


def _values(lines: list[str], defaults: Any) -> Iterator[Value]:
    comment, parents = [], []  # type: ignore[var-annotated]
    for line in lines:
        stripped = line.strip()
        key = _KEY.match(line)
        if stripped.startswith("## "):
            comment = []
        elif stripped.startswith("#"):
            comment.append(stripped.lstrip("# "))
        elif not stripped:
            comment = []
        elif key:
            path = [*parents[: len(key[1]) // 2], key[2]]
            default = at(defaults, path)
            if comment:
                yield Value(".".join(path), default, " ".join(comment))
            elif not isinstance(default, dict):
                raise Undocumented(f"values.yaml: {'.'.join(path)} has no comment above it")
            parents, comment = path, []


def at(values: Any, path: Sequence[str]) -> Any:
    """What stands at a path. Raises KeyError."""
    for key in path:
        values = values[key]
    return values


def paths(values: dict[str, Any], above: Path = ()) -> Iterator[Path]:
    """Every path in values, of parts that hold others as well."""
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


def removable() -> list[Path]:
    """Values that people take out with null, as Helm's users do: what is left is complete without them."""
    return [path for path in _full() if _REMOVABLE.match(".".join(path))]


def needed() -> list[Path]:
    """Values that templates cannot do without: null is refused."""
    others = removable()
    return [path for path in _full() if path not in others]


def empty() -> list[Path]:
    """Values that are empty by default, so that null is the default."""
    defaults = _defaults()
    return [path for path in paths(defaults) if not at(defaults, path)]


def _full() -> list[Path]:
    defaults = _defaults()
    return [path for path in paths(defaults) if at(defaults, path)]


def _defaults() -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe", pure=True).load((helm.CHART / "values.yaml").read_text())
    return found


def needed_template() -> str:
    """The template with the list of needed values, each part before what it holds."""
    lines = "\n".join(f"- {'.'.join(path)}" for path in needed())
    return f"""{{{{/* Values that may not be null. Made by python -m tests.charts from values.yaml. */}}}}
{{{{- define "carpool.needed" -}}}}
{lines}
{{{{- end -}}}}
"""


def table() -> str:
    """The README's list of the values that matter first."""
    found = {each.path: each for each in values()}
    rows = ((path, json.dumps(found[path].default), in_short(found[path].meaning)) for path in FIRST)
    return "\n".join(f"- `{path}` (`{default}`): {meaning}" for path, default, meaning in rows)


def readme(page: str) -> str:
    """The page with what is made from the chart brought up to date. Raises what `helm.template` does."""
    page = marks.renewed(page, "values", _COMMAND, table())
    return marks.renewed(page, "rights", _COMMAND, rights.table())


def schema(text: str) -> str:
    """values.schema.json with the settings that config.defaults may have brought up to date, and what each may be.

    Bounds of numbers are left to the injector, which tells them when it starts: values are text.
    """
    known = Settings.model_json_schema(by_alias=True)["properties"]
    properties = {
        name: {"type": "string", **({"pattern": known[name]["pattern"]} if "pattern" in known[name] else {})}
        for name in sorted(key.removeprefix(model.PREFIX) for key in pod_annotations.KNOWN)
    }
    return _SETTINGS.sub(lambda found: f'{found[1]}"defaults": {_lines(properties, found[1])}', text)


def _lines(properties: dict[str, Any], margin: str) -> str:
    inner = f",{margin}    ".join(f"{json.dumps(name)}: {json.dumps(held)}" for name, held in properties.items())
    head = f'{{{margin}  "type": "object",{margin}  "additionalProperties": false,{margin}  "properties": {{'
    return f"{head}{margin}    {inner}{margin}  }}{margin}}}"


def install() -> str:
    """The text of manifests/install.yaml. Raises what `helm.template` does."""
    return _HEADER + _HELMS.sub("", helm.template("--skip-tests")).replace("\n\n---", "\n---")


def in_short(meaning: str) -> str:
    """The first sentence, or what each word does of those that a value may be."""
    first = re.split(r"(?<=\.) (?=[A-Z])", meaning)[0]
    return meaning if re.search(r"(?:^|\. )\w+: ", meaning) else first
