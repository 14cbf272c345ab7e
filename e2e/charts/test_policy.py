"""Mode policy on a real API server: what it makes of a pod is what the webhook makes of it, or nothing at all."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import re
from collections.abc import Iterator

import pytest

from e2e.charts import releases
from e2e.cluster import client, control_plane, processes
from e2e.injector import manifests, steps
from tests.charts.policy_cases import DONE, LEFT

Object = client.Object
SETTLED_SECONDS = 20.0
VALUES = {
    "imagePullSecrets": ["registry"], "defaults": {"log-level": "debug", "max-batch-size": "8"},
    # No limit of CPU, and in a Guaranteed pod more of it than by default.
    "resources": {"requests": {"cpu": "600m"}, "limits": {"cpu": None, "memory": "1Gi"}, "guaranteed": {"cpu": "700m"}},
}  # fmt: skip
# What another installation, or another pod, would have in these places.
_DIFFERS = (("metadata", "name"), ("metadata", "namespace"), *(("metadata", each) for each in manifests.SERVERS_OWN))
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def installed(
    admin: client.Client, plane: control_plane.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """A namespace for each mode, with one configuration; "neither" has no injector at all."""
    if not plane.mutating_policies:
        pytest.skip(f"mode policy needs Kubernetes 1.34, and this is {plane.version}")
    folder = tmp_path_factory.mktemp("policy")
    file = folder / "values.json"
    file.write_text(json.dumps({"config": VALUES}))
    with contextlib.ExitStack() as stack:
        spaces = {"neither": steps.create_namespace(admin, "policy-neither", {})}
        for mode in ("webhook", "policy"):
            release = releases.Release(admin, plane, mode[:3], folder)
            stack.callback(release.uninstall)
            release.install("--values", str(file), "--set", f"mode={mode}")
            spaces[mode] = steps.create_namespace(admin, f"policy-{mode}", release.labels)
            if mode == "webhook":
                stack.callback(release.stop)
                release.call_at(release.start_injector())
        for mode in ("webhook", "policy"):
            processes.eventually(
                lambda mode=mode: manifests.has_sidecar(create(admin, DONE["plain"], spaces[mode])),
                SETTLED_SECONDS, f"mode {mode} is in force",
            )  # fmt: skip
        yield spaces
        for name in spaces.values():
            admin.delete("Namespace", name)


def create(admin: client.Client, pod: Object, namespace: str) -> Object:
    """What the API server would store."""
    made = copy.deepcopy(pod)
    made["metadata"].pop("generateName", None)
    made["metadata"] |= {"name": f"p{next(_numbers)}", "namespace": namespace}
    return admin.create(made, dry_run=True).object


def comparable(stored: Object) -> Object:
    """The pod without what differs from one creation to the next, or between configurations."""
    text = re.sub(r"kube-api-access-\w+", "kube-api-access", json.dumps(stored))
    found: Object = json.loads(text)
    for group, key in _DIFFERS:
        found[group].pop(key, None)
    found.pop("status", None)
    annotations = found["metadata"].get("annotations", {})
    if manifests.STATUS in annotations:
        annotations[manifests.STATUS] = {**json.loads(annotations[manifests.STATUS]), "config": "…"}
    return found


@pytest.mark.parametrize("case", DONE)
def test_the_policy_makes_of_a_pod_what_the_webhook_makes_of_it(
    admin: client.Client, installed: dict[str, str], case: str
) -> None:
    by_webhook, by_policy = (create(admin, DONE[case], installed[mode]) for mode in ("webhook", "policy"))
    assert manifests.has_sidecar(by_webhook)
    assert comparable(by_policy) == comparable(by_webhook)


@pytest.mark.parametrize("case", LEFT)
def test_a_pod_for_which_that_is_not_certain_is_left_as_it_is(
    admin: client.Client, installed: dict[str, str], case: str
) -> None:
    untouched, by_policy = (create(admin, LEFT[case], installed[mode]) for mode in ("neither", "policy"))
    assert comparable(by_policy) == comparable(untouched)


def test_who_applies_a_workload_that_the_policy_cannot_help_is_told(
    admin: client.Client, installed: dict[str, str]
) -> None:
    def warnings(pod: Object, kind: str = "") -> str:
        thing = (
            manifests.workload(kind, installed["policy"], pod)
            if kind
            else manifests.placed(dict(pod), installed["policy"])
        )
        return " ".join(admin.create(copy.deepcopy(thing), dry_run=True).warnings)

    for kind in ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"):
        assert "takeover: named-port" in warnings(LEFT["does not say how"], kind)
        assert "no sidecar" not in warnings(DONE["plain"], kind)
        assert "no sidecar" not in warnings(LEFT["does not ask"], kind)
    assert "mode policy does not decide" in warnings(copy.deepcopy(LEFT["is Triton"]))
    assert "no sidecar" not in warnings(copy.deepcopy(DONE["plain"]))


def test_without_its_parameters_the_policy_lets_pods_through_as_they_are(
    admin: client.Client, installed: dict[str, str]
) -> None:
    name, space = "pol-carpool-injector-policy", "pol-system"
    kept = admin.get("PodTemplate", name, space)
    admin.delete("PodTemplate", name, space)
    try:
        processes.eventually(
            lambda: not manifests.has_sidecar(create(admin, DONE["plain"], installed["policy"])),
            SETTLED_SECONDS, "the policy has no parameters",
        )  # fmt: skip
    finally:
        kept["metadata"].pop("resourceVersion")
        admin.create(kept)
    processes.eventually(
        lambda: manifests.has_sidecar(create(admin, DONE["plain"], installed["policy"])), SETTLED_SECONDS, "it has them"
    )


@pytest.mark.parametrize("mode", ["webhook", "policy"])
def test_a_sidecars_resources_are_changed_in_place(admin: client.Client, installed: dict[str, str], mode: str) -> None:
    """Without a resizePolicy a container is not restarted for that (NotRequired is the API's default)."""
    pod = manifests.placed(copy.deepcopy(DONE["burstable"]), installed[mode])
    stored = admin.create(pod).object
    assert "resizePolicy" not in manifests.sidecar(stored)
    more = {"requests": {"cpu": "200m"}, "limits": {"cpu": "2"}}
    change = {"spec": {"initContainers": [{"name": manifests.SIDECAR, "resources": more}]}}
    path = client.path_of("Pod", installed[mode], stored["metadata"]["name"])
    resized = admin.call("PATCH", f"{path}/resize", change, "application/strategic-merge-patch+json").object
    assert manifests.sidecar(resized)["resources"]["limits"]["cpu"] == "2"
    assert manifests.status(resized) == manifests.status(stored)
