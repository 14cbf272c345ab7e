"""Why a pod gets the sidecar or not, and how, as values for people and programs.

Pure. What is explained is what the webhook would do; of a pod that does not ask, what it would do if it did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from carpool_injector.core import decision, list_servers, model, permission, pod_annotations, pods, refusals, sites
from carpool_injector.objects import inference_services, kserve_pods, manifests, other_kinds, patches, shapes, workloads

_LISTS = f"{model.PREFIX}lists"


@dataclass(frozen=True, slots=True)
class Row:
    """A place where somebody may have asked: what was found there, what may be, and whether that decided."""

    source: str
    found: str
    allowed: str
    decides: bool


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting in force, and where it comes from."""

    key: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is known of a pod before it is created.

    `result` is that of the webhook; `asked` tells whether plan and refusal are what will be, or what would be if the
    pod asked. `certain` and `expected` say what a pod that a controller makes was derived from. `server` is what is
    known of the model server in it, in the words of `carpool-sidecar doctor`.
    """

    name: str
    namespace: str
    result: model.Result
    reason: str
    asked: bool = False
    rows: tuple[Row, ...] = ()
    plan: model.Plan | None = None
    refusal: refusals.Refusal | None = None
    settings: tuple[Setting, ...] = ()
    certain: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def explain_all(
    thing: model.Object, injector: manifests.Injector, default_mode: kserve_pods.Mode | None = None
) -> Iterator[Explanation]:
    """Explains an object, and each canary of an InferenceService, or each template of a kind that has them anywhere.

    Nothing for one that makes no pods.

    Raises refusals.Malformed.
    """
    inner = workloads.inner_templates(thing)
    found = None if inner else explain(thing, injector, default_mode)
    if found is not None:
        yield found
    for place, template in inner.items():
        pod = workloads.as_pod(template) | {"apiVersion": "v1", "kind": "Pod"}
        pod["metadata"] = {"namespace": workloads.own_namespace(thing), **pod["metadata"]}
        explained = explain(pod, injector)
        if explained is not None:
            expected = f"pods of a {thing['kind']}, which is not known here, are those of its templates"
            yield replace(explained, name=f"{workloads.describe(thing)}, {place}", expected=(expected,))
    if workloads.group_kind(thing) == workloads.INFERENCE_SERVICE:
        for name, canary in inference_services.canaries(thing):
            explained = explain(canary, injector, default_mode)
            if explained is not None:
                yield replace(explained, name=f"{explained.name}, canary {name}")


def explain(
    thing: model.Object, injector: manifests.Injector, default_mode: kserve_pods.Mode | None = None
) -> Explanation | None:
    """Explains an object that makes pods; None for any other. Raises refusals.Malformed."""
    shapes.check(thing)
    name = workloads.describe(thing)
    told = other_kinds.told(thing, injector.patch_signs)
    template = None if patches.sign(thing) else workloads.template(thing)
    namespace = injector.in_namespace(template.namespace if template else workloads.own_namespace(thing))
    if told is not None:
        return Explanation(name, namespace.name, "skipped", told.code, refusal=told)
    if workloads.is_opted_in_only(thing):
        expectation = kserve_pods.expect(thing, default_mode)
    elif template is not None:
        expectation = kserve_pods.Expectation(template.pod)
    else:
        return None
    pod = expectation.pod
    outcome = injector.outcome(pod, namespace)
    asks = outcome.decision
    rows = tuple(_rows(pod, namespace, injector))
    if manifests.is_modelmesh(thing):  # what it makes is no pod
        return Explanation(
            name,
            namespace.name,
            "refused" if asks.inject and asks.explicit else "skipped" if asks.inject else "unconcerned",
            asks.reason,
            asks.inject,
            rows,
            refusal=refusals.Reason.MODELMESH(),
            certain=("mode ModelMesh: pods that are there already load its model, and get no labels of it",),
        )
    asked = asks.inject or outcome.refusal is not None
    would = outcome if asked else injector.outcome(manifests.asking(pod), namespace)
    return Explanation(
        name,
        namespace.name,
        outcome.result,
        asks.reason,
        asked,
        rows,
        would.plan,
        would.refusal,
        settings=tuple(_settings(pod, namespace, injector, would.plan)),
        certain=expectation.certain,
        expected=expectation.expected,
        server=_server(pod, would.plan),
        warnings=tuple(injector.warnings(thing, pod, would)),
    )


def as_values(found: Explanation) -> Mapping[str, Any]:
    """An explanation for JSON."""
    plan, refusal = found.plan, found.refusal
    return {
        "object": found.name,
        "namespace": found.namespace,
        "result": found.result,
        "asked": found.asked,
        "reason": found.reason,
        "decision": [asdict(row) for row in found.rows],
        "plan": None
        if plan is None
        else {
            "takeover": plan.takeover,
            "native": plan.native,
            "container": plan.container,
            "appPort": plan.app_port,
            "listenPort": plan.listen_port,
            "grpcAppPort": plan.grpc_app_port,
            "grpcListenPort": plan.grpc_listen_port,
            "adminPort": plan.admin_port,
            "steps": list(plan.steps),
        },
        "refusal": None if refusal is None else {"code": refusal.code, "message": refusal.message, "fix": refusal.fix},
        "settings": [asdict(each) for each in found.settings],
        "certain": list(found.certain),
        "expected": list(found.expected),
        "server": list(found.server),
        "warnings": list(found.warnings),
    }


def _rows(pod: model.Object, namespace: model.Namespace, injector: manifests.Injector) -> Iterator[Row]:
    view = pods.read(pod)
    asked = decision.Asked(view, namespace, injector.config, sites.is_predictor)
    decided = False
    for row in decision.ROWS:
        try:
            answer = row.answer(asked)
            found = {True: "yes", False: "no", None: ""}[answer]
        except refusals.BadSettings as error:
            found = str(error)
        yield Row(row.source, found, row.words, bool(found) and not decided)
        decided = decided or bool(found)


def _server(pod: model.Object, plan: model.Plan | None) -> tuple[str, ...]:
    app = pods.read(pod).container(plan.container) if plan is not None else None
    return list_servers.told(app) if app is not None else ()


def _settings(
    pod: model.Object, namespace: model.Namespace, injector: manifests.Injector, plan: model.Plan | None
) -> Iterator[Setting]:
    view = pods.read(pod)
    found: dict[str, Setting] = {}
    for source in permission.sources(view, namespace, injector.config):
        known = {key: value for key, value in source.values.items() if key in pod_annotations.KNOWN}
        found |= {key: Setting(key, value, source.where or "the pod") for key, value in known.items()}
    if plan is not None and plan.lists:
        found[_LISTS] = Setting(_LISTS, plan.lists, f"the server in container {plan.container!r}")
    yield from sorted(found.values(), key=lambda setting: setting.key)
