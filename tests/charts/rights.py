"""What accounts may do: by the chart's roles, by the code that uses them, and as the chart's README tells it."""

from __future__ import annotations

import ast
import itertools

from tests.charts import helm, objects

Right = tuple[str, str, str, str, str]
"""Namespace ("" for all), group, resource, name ("" for any), verb."""

INJECTOR, CHECK = "carpool-injector", "carpool-check"
_CODE = helm.ROOT / "injector" / "carpool_injector"
_WEBHOOK_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
# By what has to be set beside the first one's values: whose rights those are that come with it.
_LEAST = "certificates.mode=certManager,events=false,missedPods.enabled=false"
_SELF_MANAGED = "events=false,missedPods.enabled=false"
_ROWS = (
    ("always", INJECTOR, _LEAST, None),
    ("`events`", INJECTOR, "certificates.mode=certManager,missedPods.enabled=false", _LEAST),
    ("`missedPods.enabled`", INJECTOR, "certificates.mode=certManager,events=false", _LEAST),
    (
        "and `missedPods.restart`", INJECTOR, "certificates.mode=certManager,events=false,missedPods.restart=true",
        "certificates.mode=certManager,events=false"
    ),
    ("`certificates.mode: selfManaged`", INJECTOR, f"{_SELF_MANAGED},webhook.validating.enabled=false", _LEAST),
    (
        "and `webhook.validating.enabled`", INJECTOR, _SELF_MANAGED, f"{_SELF_MANAGED},webhook.validating.enabled=false"
    ),
    ("`helm test`, while it runs", CHECK, _LEAST, None),
    ("and `config.imagePullSecrets`", CHECK, f"{_LEAST},config.imagePullSecrets={{registry}}", _LEAST),
)  # fmt: skip


def rights(things: list[objects.Object], account: str) -> set[Right]:
    """What an account may do by these objects."""
    return set(granted(things, account))


def granted(things: list[objects.Object], account: str) -> list[Right]:
    """The same, each as often as a rule says so."""
    found: list[Right] = []
    for binding in things:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        if account not in {subject["name"] for subject in binding["subjects"]}:
            continue
        namespace = binding["metadata"].get("namespace", "")
        role = next(
            each
            for each in objects.of_kind(things, binding["roleRef"]["kind"])
            if each["metadata"]["name"] == binding["roleRef"]["name"]
            and each["metadata"].get("namespace", "") == namespace
        )
        for rule in role["rules"]:
            names = rule.get("resourceNames", [""])
            found += itertools.product((namespace,), rule["apiGroups"], rule["resources"], names, rule["verbs"])
    return found


def asked(*parts: str) -> set[tuple[str, str]]:
    """Resource and verb of each call to the API that these parts of the injector's code may make."""
    calls = _calls()
    files = [file for part in parts for file in sorted(_CODE.glob(part))]
    assert files
    used = {
        node.attr
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in calls
    }
    return {call for method in used for call in calls[method]}


def _calls() -> dict[str, set[tuple[str, str]]]:
    """By method of the client: what it asks, as `Call("get", "secrets", …)` says."""
    (client,) = [
        node
        for node in ast.parse((_CODE / "api" / "kube.py").read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "Kube"
    ]
    found: dict[str, set[tuple[str, str]]] = {}
    for method in client.body:
        for node in ast.walk(method):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Call":
                assert isinstance(method, ast.AsyncFunctionDef)
                verb, what = node.args[:2]
                resources = [what.value] if isinstance(what, ast.Constant) else _WEBHOOK_KINDS
                assert isinstance(verb, ast.Constant)
                found.setdefault(method.name, set()).update((str(each), str(verb.value)) for each in resources)
    return found


def table() -> str:
    """The README's table of rights, made of what the chart renders."""
    lines = ["| with | in its own namespace | in the cluster |", "|---|---|---|"]
    for when, account, values, without in _ROWS:
        found = rights(objects.rendered("--set", values), account)
        if without is not None:
            found -= rights(objects.rendered("--set", without), account)
        own = {right for right in found if right[0] == helm.NAMESPACE}
        others = sorted({right[0] for right in found - own} - {""})
        wide = [_told({right for right in found if not right[0]})]
        wide += [
            f"in `{namespace}` {_told({right for right in found if right[0] == namespace})}" for namespace in others
        ]
        lines.append(f"| {when} | {_told(own) or 'nothing'} | {'; '.join(filter(None, wide)) or 'nothing'} |")
    return "\n".join(lines)


def _told(found: set[Right]) -> str:
    verbs: dict[str, list[str]] = {}
    for _, _, resource, name, verb in sorted(found, key=lambda right: (right[2], right[3], right[4])):
        verbs.setdefault(f"{resource} `{name}`" if name else resource, []).append(verb)
    return "; ".join(f"{what}: {', '.join(each)}" for what, each in verbs.items())
