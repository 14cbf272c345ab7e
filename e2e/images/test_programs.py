"""The programs of the images, started as their containers start them."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import client, control_plane, processes
from e2e.images import conftest, container
from e2e.injector import installation
from tests import loopback

READY_SECONDS = 30.0
GRACE_SECONDS = 10.0

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: iris  # the best flower
spec:
  selector: {matchLabels: {app: iris}}
  template:
    metadata:
      labels: {app: iris, carpool.dev/inject: "true"}
    spec:
      containers:
        - name: kserve-container
          image: registry.example.com/iris:1
          command: [uvicorn, "app:app", --host, 0.0.0.0, --port, "8080"]
          ports: [{containerPort: 8080}]
"""


def url(port: int, path: str) -> str:
    return f"http://{control_plane.HOST}:{port}/{path}"


def predict(port: int, instances: list[Any]) -> dict[str, Any]:
    body = json.dumps({"instances": instances}).encode()
    asked = urllib.request.Request(url(port, "v1/models/echo:predict"), body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return dict(json.load(answer))


def start_predictor(start: conftest.Start, *more: str) -> tuple[container.Container, int]:
    """A ready predictor with the echo model, and its port."""
    port = loopback.free_port()
    predictor = start("predictor", ["--port", str(port), *more])
    predictor.wait_until_ready(lambda: processes.answers_ok(url(port, "readyz")), READY_SECONDS)
    return predictor, port


def start_sidecar(start: conftest.Start, predictor: int) -> tuple[container.Container, int, int]:
    """A ready sidecar in front of a predictor, its port and its admin port."""
    port, admin = loopback.free_ports(2)
    flags = {"port": port, "admin-port": admin, "component-port": predictor, "quiet-period": 0, "grace-period": 5}
    sidecar = start("sidecar", processes.flags(flags))
    sidecar.wait_until_ready(lambda: processes.answers_ok(url(admin, "readyz")), READY_SECONDS)
    return sidecar, port, admin


@pytest.mark.parametrize("part", ["sidecar", "injector", "predictor"])
def test_each_program_tells_its_flags(images: Mapping[str, container.Image], part: str, tmp_path: Path) -> None:
    ended = container.run(images[part], ["--help"], tmp_path)
    assert (ended.status, ended.errors) == (0, "")
    assert f"usage: carpool-{part}" in ended.output.lower()


@pytest.mark.parametrize("part", ["sidecar", "injector", "predictor"])
def test_each_program_runs_as_whatever_user_a_cluster_assigns(
    images: Mapping[str, container.Image], part: str, tmp_path: Path
) -> None:
    image = images[part]
    assigned = {**image.config, "config": {**image.config["config"], "User": "1000810000:0"}}
    ended = container.run(container.Image(part, image.root, assigned), ["--help"], tmp_path)
    assert (ended.status, ended.errors) == (0, "")


def test_a_request_travels_through_the_sidecar_to_the_predictor_and_back(start: conftest.Start) -> None:
    _, predictor = start_predictor(start)
    _, port, _ = start_sidecar(start, predictor)
    answer = predict(port, ["warm water", 9007199254740993])
    assert answer["predictions"] == ["warm water", 9007199254740993]
    assert answer["batchId"]


def test_the_hook_of_the_sidecars_pod_drains_it_from_inside(start: conftest.Start) -> None:
    _, predictor = start_predictor(start)
    sidecar, _, admin = start_sidecar(start, predictor)
    ended = sidecar.execute("carpool-sidecar", "drain", "--admin-port", str(admin))
    assert (ended.status, ended.errors) == (0, "")
    with urllib.request.urlopen(url(admin, "drain"), timeout=10) as state:
        assert json.load(state)["phase"] == "drained"


def test_sigterm_ends_sidecar_and_predictor_with_status_0_within_their_grace(start: conftest.Start) -> None:
    predictor, port = start_predictor(start, "--grace-period", "5")
    sidecar, _, _ = start_sidecar(start, port)
    began = time.monotonic()
    assert sidecar.terminate(GRACE_SECONDS) == 0
    assert predictor.terminate(GRACE_SECONDS) == 0
    assert time.monotonic() - began < GRACE_SECONDS


def test_the_sidecar_can_ask_for_readiness_over_grpc(images: Mapping[str, container.Image], tmp_path: Path) -> None:
    image = images["sidecar"]
    python = {**image.config, "config": {**image.config["config"], "Entrypoint": ["python", "-c"]}}
    program = "import grpc; grpc.insecure_channel('127.0.0.1:1').close(); print('grpc')"
    ended = container.run(container.Image("python", image.root, python), [program], tmp_path)
    assert (ended.status, ended.output) == (0, "grpc\n")


def test_the_sidecar_serves_grpc_and_makes_tensors(images: Mapping[str, container.Image], tmp_path: Path) -> None:
    image = images["sidecar"]
    python = {**image.config, "config": {**image.config["config"], "Entrypoint": ["python", "-c"]}}
    grpc = "carpool_sidecar.server.grpc.server, carpool_sidecar.protocols.v2_grpc.messages"
    program = f"import {grpc}, carpool_sidecar.protocols.tensors_from_v1; print('all there')"
    ended = container.run(container.Image("python", image.root, python), [program], tmp_path)
    assert (ended.status, ended.output) == (0, "all there\n"), ended.errors


def test_pods_are_planned_inside_the_sidecars_image(images: Mapping[str, container.Image], tmp_path: Path) -> None:
    words = ["plan", "--rate", "500", "--slo", "50", "--service", "10+0.5n"]
    ended = container.run(images["sidecar"], words, tmp_path)
    assert ended.status == 0, ended.errors
    assert "requests/s" in ended.output


def test_a_manifest_gets_the_sidecar_inside_the_injectors_image(
    images: Mapping[str, container.Image], tmp_path: Path
) -> None:
    ended = container.run(images["injector"], ["inject", "-"], tmp_path, stdin=DEPLOYMENT)
    assert ended.status == 0, ended.errors
    assert "image: carpool-sidecar:0.1.0" in ended.output
    assert "  name: iris  # the best flower\n" in ended.output


def kubeconfig_for_a_container(source: Path, folder: Path) -> Path:
    """A folder to mount at /config: the same kubeconfig with its certificates and keys, all readable there."""
    document = json.loads(source.read_text())
    folder.mkdir()
    for entry in (*document["clusters"], *document["users"]):
        told = entry.get("cluster") or entry["user"]
        for key in ("certificate-authority", "client-certificate", "client-key"):
            if key in told:
                (folder / key).write_bytes(Path(told[key]).read_bytes())
                told[key] = f"/config/{key}"
    (folder / "kubeconfig").write_text(json.dumps(document))
    return folder


@pytest.mark.usefixtures("images")  # first, so that no control plane is started where there are no images
def test_the_injector_becomes_ready_at_a_real_api_server_and_ends_with_status_0(
    plane: control_plane.ControlPlane, admin: client.Client, start: conftest.Start, tmp_path: Path
) -> None:
    installed = installation.Installation(admin, "image")
    port, metrics = loopback.free_ports(2)
    installed.install(port)
    try:
        flags = {
            "kubeconfig": "/config/kubeconfig",
            "host": control_plane.HOST,
            "port": port,
            "metrics-port": metrics,
            "namespace": installed.namespace,
            "service-name": installed.name,
            "secret-name": installed.secret,
            "mutating-webhook": installed.name,
            "validating-webhook": installed.name,
            "quiet-period": 0,
        }
        config = kubeconfig_for_a_container(plane.kubeconfig_of(installed.user), tmp_path / "config")
        injector = start("injector", ["serve", *processes.flags(flags)], {"/config": config})
        injector.wait_until_ready(lambda: processes.answers_ok(url(metrics, "readyz")), READY_SECONDS)
        assert all(installed.ca_bundles())
        assert injector.terminate(GRACE_SECONDS) == 0
    finally:
        installed.uninstall()


def test_the_sidecar_says_which_build_runs_and_can_run_as_python(
    images: Mapping[str, container.Image], tmp_path: Path
) -> None:
    image = images["sidecar"]
    has_compiled = any(image.root.rglob("compiled_*__mypyc.*.so"))
    ended = container.run(image, ["--version"], tmp_path)
    assert ended.output.strip().endswith("(compiled)" if has_compiled else "(python)"), ended
    pure = {**image.config["config"], "Env": [*image.config["config"]["Env"], "CARPOOL_PURE_PYTHON=1"]}
    as_python = container.run(
        container.Image("pure", image.root, {**image.config, "config": pure}), ["--version"], tmp_path
    )
    assert as_python.output.strip().endswith("(python)"), as_python
