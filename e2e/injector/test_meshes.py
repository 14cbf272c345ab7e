"""Pods that Istio takes into its mesh, through a real API server, with Istio's webhook before ours and after it.

Istio's own program is not built here: the webhook is a model of it (tests/injector/istio_model.py), held to the
expected outputs of Istio's tests. What is real is the API server: the order of webhooks, who is called again, defaults.
"""

from __future__ import annotations

import functools
import json

import pytest

from e2e.cluster import client, control_plane
from e2e.injector import installation, manifests, other_webhooks, steps
from tests.injector import istio_model, kserve_model, pods

KSERVE = "inferenceservice.serving.kserve.io"
AFTER_US = "zzz-istio-sidecar-injector"


@pytest.mark.parametrize("name", [istio_model.NAME, AFTER_US])
@pytest.mark.parametrize("reinvoked", [False, True], ids=["never again", "again if needed"])
@pytest.mark.parametrize("native", [True, False], ids=["native", "classic"])
def test_istios_agent_asks_the_predictor_where_it_moved_and_the_sidecar(
    admin: client.Client,
    plane: control_plane.ControlPlane,
    shared: installation.Installation,
    new_namespace: steps.NewNamespace,
    name: str,
    reinvoked: bool,
    native: bool,
) -> None:
    namespace = new_namespace(shared.labels)
    mutate = functools.partial(istio_model.mutate, settings=istio_model.Settings(native=native))
    istio = other_webhooks.OtherWebhook(name, mutate, reinvoked=reinvoked)
    kserve = other_webhooks.OtherWebhook(KSERVE, kserve_model.mutate)
    with kserve.serve(plane, admin, shared.labels), istio.serve(plane, admin, shared.labels):
        stored = admin.create(manifests.placed(pods.kserve(pods.sklearn()), namespace), dry_run=True).object
    proxy = pods.container(stored, istio_model.PROXY)
    asked = json.loads(next(each["value"] for each in proxy["env"] if each["name"] == istio_model.PROBERS))
    sidecar = manifests.sidecar(stored)
    hook = pods.container(stored, "kserve-container")["lifecycle"]["preStop"]["httpGet"]
    moved = int(manifests.sidecar_flags(stored)["--component-port"])
    assert manifests.sidecar_flags(stored)["--port"] == "8080"
    assert asked["/app-health/kserve-container/readyz"]["tcpSocket"]["port"] == moved
    assert asked["/app-health/carpool/startupz"]["httpGet"]["path"] == "/livez"
    assert {sidecar[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")} == {
        15020
    }
    assert asked[hook["path"]]["httpGet"]["path"] == "/drained"
    assert sidecar.get("restartPolicy") == ("Always" if native else None)
