"""Generated pods that could exist: servers, platforms, meshes, probes, devices and settings in every combination."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from hypothesis import strategies as st

from carpool_injector import config_file
from carpool_injector.core import config, injection, model
from tests.injector import kserve_model, meshes, pods

Object = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Situation:
    """A pod and all that its injection depends on."""

    pod: Object
    namespace: model.Namespace
    capabilities: model.Capabilities
    config: config.Config

    def inject(self, pod: Object | None = None) -> model.Outcome:
        """What the injector makes of this pod, or of another one in the same situation."""
        return injection.inject(self.pod if pod is None else pod, self.config, self.namespace, self.capabilities)


SETTINGS: dict[str, st.SearchStrategy[str]] = {
    "max-batch-size": st.integers(1, 100_000).map(str),
    "max-latency": st.integers(0, 20_000).map(str),
    "timeout": st.integers(30, 600).map(str),
    "policy": st.sampled_from(["auto", "window", "adaptive"]),
    "kserve-errors": st.sampled_from(["true", "false"]),
    "key-headers": st.sampled_from(["", "authorization", "authorization,x-tenant"]),
    "forward-headers": st.sampled_from(["", "x-plan=first", "x-plan=first,x-user=joined"]),
    "answer-members": st.sampled_from(["", "model_name", "model_name,model-version"]),
    "log-level": st.sampled_from(["debug", "info"]),
    "resources-limits-memory": st.sampled_from(["512Mi", "2Gi", "1500000k"]),
    "resources-requests-cpu": st.sampled_from(["50m", "0.25", "1"]),
    "components": st.sampled_from(["predictor", "predictor,transformer"]),
    "sidecar-mode": st.sampled_from(["auto", "classic"]),
    "grpc-port": st.sampled_from(["off", "9000"]),
    "lists": st.sampled_from(
        [
            "",
            "mlflow",
            "tei-embed,ollama-embed",
            '{mine: {path: "**/embed", list: texts, answers: $}}',
            "mine:\n  extends: openai-embeddings\n  path: /embed  # ours\n",
        ]
    ),
    "upstream": st.sampled_from(["http", "triton-http", "triton-grpc"]),
}

GRPC_PORT = 9000
_NUMBERS = {"periodSeconds": 5, "failureThreshold": 4}


@st.composite
def probes(draw: st.DrawFn, port: int, names: list[str]) -> Object:
    """A probe on that port, by number or by one of the names, or one that has nothing to do with it."""
    reference = draw(st.sampled_from([port, *names]))
    return draw(
        st.sampled_from(
            [
                {"httpGet": {"path": "/ready", "port": reference}},
                {"httpGet": {"path": "/ready", "port": reference, "scheme": "HTTP"}, **_NUMBERS},
                {"tcpSocket": {"port": reference}, **_NUMBERS},
                {"grpc": {"port": GRPC_PORT}},
                {"exec": {"command": ["test", "-f", "/tmp/ready"]}},
                {"httpGet": {"path": "/healthz", "port": 9500}},
            ]
        )
    )


# A GPU, a slice of one, a place on one that is shared; of another maker.
DEVICES = ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "amd.com/gpu"]


@st.composite
def servers(draw: st.DrawFn) -> Object:
    """A model server's container, with or without declared ports (one may be for gRPC), probes, hooks, devices."""
    container = draw(st.sampled_from(pods.SERVERS))()
    port = 8000 if "vllm" in container["image"] else 8080
    names = []
    if port == 8000 or draw(st.booleans()):
        entry: Object = {"containerPort": port}
        if draw(st.booleans()):
            entry["name"], names = "http", ["http"]
        if draw(st.booleans()):
            entry["protocol"] = "TCP"
        container["ports"] = [entry]
        if draw(st.booleans()):
            container["ports"].append({"name": "metrics", "containerPort": 9500})
    if draw(st.booleans()):
        name = draw(st.sampled_from([None, "grpc", "h2c"]))
        entry = {"containerPort": GRPC_PORT, **({"name": name} if name else {})}
        container["ports"] = draw(st.permutations([*container.get("ports", []), entry]))
    for name in draw(st.sets(st.sampled_from(["readinessProbe", "livenessProbe", "startupProbe"]))):
        container[name] = draw(probes(port, names))
    if draw(st.integers(0, 3)) == 0:
        container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", "5"]}}}
    if draw(st.booleans()):
        container["resources"]["limits"] |= {draw(st.sampled_from(DEVICES)): "1"}
        container["resources"]["claims"] = [{"name": "gpu"}]
    return container


@st.composite
def predictor_pods(draw: st.DrawFn, modes: tuple[str, ...] = ("standard", "knative", "plain")) -> Object:
    """A pod as it reaches our webhook: before or after KServe's, within a mesh or not, opted in by itself."""
    container = draw(servers())
    settings = {f"carpool.dev/{key}": draw(SETTINGS[key]) for key in draw(st.sets(st.sampled_from(sorted(SETTINGS))))}
    port = draw(st.sampled_from([6379, 9081, 9082, 9083]))  # its own, or one that a sidecar or an agent might take
    cache = {"name": "feature-cache", "image": "redis:7.4", "ports": [{"containerPort": port}]}
    more = draw(st.sampled_from([[], [cache]]))
    batched, logged = pods.batched(16, 200), pods.logged()
    asked = draw(st.sampled_from([{}, pods.batched(), batched, logged, logged | batched]))
    mode = draw(st.sampled_from(modes))
    if mode == "plain":
        way = draw(st.sampled_from(["auto", "port-swap", "named-port", "none"]))
        settings |= {"carpool.dev/takeover": way} if draw(st.booleans()) else {}
        pod = pods.plain(container, *more, annotations=settings)
    else:
        make = pods.knative if mode == "knative" else pods.kserve
        pod = make(container, *more, annotations={**settings, **asked})
        if draw(st.booleans()):
            pod = kserve_model.mutate(pod, kserve_model.Settings(aggregate_metrics=draw(st.booleans())))
    mesh = draw(st.sampled_from([None, *meshes.ALL]))
    pod = mesh(pod) if mesh else pod
    return draw(decorated(pod))


@st.composite
def decorated(draw: st.DrawFn, pod: Object) -> Object:
    """The pod with what a sidecar has no business with: devices, tolerations, fields of the future, nulls."""
    extras = {
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        "runtimeClassName": "nvidia",
        "futurePodField": {"depth": [1, None, {"x": "y"}]},
        "volumes": None,
        "imagePullSecrets": [{"name": "registry"}],
        "securityContext": {"runAsNonRoot": True},
    }
    pod = copy.deepcopy(pod)
    pod["spec"]["terminationGracePeriodSeconds"] = draw(st.sampled_from([0, 1, 5, 30, 300, 3600]))
    for key in draw(st.sets(st.sampled_from(sorted(extras)))):
        pod["spec"].setdefault(key, copy.deepcopy(extras[key]))
    if draw(st.booleans()):
        for container in pod["spec"]["containers"]:
            container["futureContainerField"] = {"kept": True}
    if draw(st.booleans()):
        pod["spec"].setdefault("initContainers", None)
    return pod


configs: st.SearchStrategy[config.Config] = st.sampled_from(
    [
        {},
        {"resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}},
        {"image": "ghcr.io/acme/carpool-sidecar:1.0", "imagePullPolicy": "Always", "runAsUser": 1000},
        {"port": 9300, "adminPort": 9301, "defaults": {"max-batch-size": "4"}},
        {"sidecarMode": "classic", "kserveBatcher": "takeover"},
    ]
).map(config_file.parse)


@st.composite
def situations(draw: st.DrawFn, modes: tuple[str, ...] = ("standard", "knative", "plain")) -> Situation:
    """A pod that asks for the sidecar, in a cluster of some age."""
    capabilities = draw(
        st.sampled_from(
            [model.Capabilities(True, True), model.Capabilities(True, False), model.Capabilities(False, False)]
        )
    )
    return Situation(draw(predictor_pods(modes)), model.Namespace("models"), capabilities, draw(configs))
