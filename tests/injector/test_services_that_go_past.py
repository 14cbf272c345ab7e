"""Services in the same manifests that would go past the sidecar are told offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from carpool_injector.core import surroundings
from carpool_injector.objects import explanation, manifests, workloads
from tests.injector.command_runs import Run

Object = dict[str, Any]

SELECTOR = {"app": "scorer"}


def deployment(*ports: Object, namespace: str = "", **annotations: str) -> Object:
    settings = {f"carpool.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    metadata = {"labels": {**SELECTOR, "carpool.dev/inject": "true", "v": "1"}, "annotations": settings}
    container = {"name": "app", "image": "acme/scorer:1", "ports": list(ports)}
    template = {"metadata": metadata, "spec": {"containers": [container]}}
    own = {"name": "scorer", **({"namespace": namespace} if namespace else {})}
    spec = {"selector": {"matchLabels": SELECTOR}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": own, "spec": spec}


def service(*ports: Object, selector: Any = SELECTOR, **metadata: str) -> Object:
    spec = {"selector": selector, "ports": list(ports)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "scorer", **metadata}, "spec": spec}


HTTP = {"name": "http", "containerPort": 7000}
NAMED = deployment(HTTP)


def warnings(thing: Object, *others: Any) -> tuple[str, ...]:
    injector = manifests.Injector(around=list(workloads.of_kinds([thing, *others], surroundings.KINDS)))
    _, report = manifests.inject(thing, injector)
    told = explanation.explain(thing, injector)
    assert report is not None
    assert report.result == "injected", report
    assert told is not None
    assert told.warnings == report.warnings
    return report.warnings


@pytest.mark.parametrize(
    "port",
    [{"port": 80, "targetPort": 7000}, {"port": 80, "targetPort": "7000"}, {"port": 7000}, {"port": 7000, "name": "x"}],
    ids=str,
)
def test_a_service_by_number_goes_past_a_sidecar_that_took_the_name(port: Object) -> None:
    assert warnings(NAMED, service(port)) == (
        "Service/scorer goes past the sidecar to 7000: let its targetPort be http",
    )


@pytest.mark.parametrize(
    "other",
    [
        service({"port": 80, "targetPort": "http"}),
        service({"port": 80, "targetPort": 9999}),
        service({"port": 7000, "protocol": "UDP"}),
        service({"port": 7000}, selector={**SELECTOR, "v": "2"}),
        service({"port": 7000}, selector={}),
        service({"port": 7000}, selector=None),
        service({"port": 7000}, namespace="other"),
        {"kind": "Service", "apiVersion": "serving.knative.dev/v1", "metadata": {}, "spec": {}},
        {"kind": "Service", "apiVersion": "v1"},
        {"kind": "Service", "apiVersion": "v1", "metadata": None, "spec": {"selector": SELECTOR, "ports": "7000"}},
        ["no object"],
        None,
    ],
    ids=str,
)
def test_others_are_not_spoken_of(other: Any) -> None:
    assert warnings(NAMED, other) == ()


def test_the_namespaces_have_to_agree_where_one_of_both_names_none() -> None:
    assert warnings(deployment(HTTP, namespace="default"), service({"port": 7000})) != ()
    assert warnings(deployment(HTTP, namespace="ml"), service({"port": 7000})) == ()
    assert warnings(deployment(HTTP, namespace="ml"), service({"port": 7000}, namespace="ml")) != ()


@pytest.mark.parametrize("target", [7000, "http"])
def test_beside_an_app_that_nothing_was_taken_from_every_service_is_told_the_sidecars_port(target: int | str) -> None:
    [told] = warnings(deployment(HTTP, takeover="none"), service({"port": 80, "targetPort": target}))
    assert told == f"Service/scorer goes past the sidecar to {target}: let its targetPort be 9081"


def test_where_the_sidecar_has_the_apps_port_any_service_is_right() -> None:
    moved = deployment(HTTP)
    moved["spec"]["template"]["spec"]["containers"][0]["args"] = ["uvicorn", "a:b", "--host=0.0.0.0", "--port=7000"]
    assert warnings(moved, service({"port": 7000}), service({"port": 80, "targetPort": "http"})) == ()


def test_the_port_for_grpc_is_one_of_the_apps_too() -> None:
    thing = deployment(HTTP, {"name": "grpc", "containerPort": 9000}, grpc_port="grpc", takeover="named-port")
    told = warnings(thing, service({"port": 9000}, {"port": 80, "targetPort": "http"}))
    assert told == ("Service/scorer goes past the sidecar to 9000: let its targetPort be grpc",)


def test_services_anywhere_among_the_files_and_in_lists_are_found(run: Run) -> None:
    found = {"apiVersion": "v1", "kind": "List", "items": [service({"port": 7000}), NAMED]}
    for command in ("inject", "explain"):
        assert "Service/scorer goes past the sidecar to 7000" in run(command, text=json.dumps(found)).output


def test_a_service_in_another_file_is_found(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(NAMED))
    (tmp_path / "b.json").write_text(json.dumps(service({"port": 7000})))
    assert "Service/scorer goes past the sidecar to 7000" in run("explain", tmp_path).output


def test_what_was_injected_before_is_told_the_name_that_moved() -> None:
    injector = manifests.Injector(around=[service({"port": 7000})])
    injected, first = manifests.inject(NAMED, injector)
    _, again = manifests.inject(injected, injector)
    assert first is not None
    assert again is not None
    assert (again.result, again.warnings) == ("unchanged", first.warnings)


def test_a_pod_is_looked_at_as_a_workload_is() -> None:
    template = NAMED["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "scorer"}}
    assert warnings(pod, service({"port": 7000})) != ()
