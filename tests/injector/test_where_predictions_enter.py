"""Which container is the app and on which of its ports predictions enter, where a pod leaves room for doubt."""

from __future__ import annotations

from typing import Any

import pytest

from carpool_injector.core import injection, model, pods, refusals, servers, sites
from carpool_injector.core.config import Config
from carpool_injector.core.settings import Settings
from tests.injector import pods as sample_pods

Object = dict[str, Any]

UVICORN = {"name": "server", "args": ["uvicorn", "a:b", "--host=0.0.0.0", "--port=8000"]}
UNKNOWN = {"name": "server", "image": "acme/scorer:1"}


def pod(*containers: Object, **settings: str) -> Object:
    annotations = {f"carpool.dev/{key.replace('_', '-')}": value for key, value in settings.items()}
    return {
        "metadata": {"labels": {"carpool.dev/inject": "true"}, "annotations": annotations},
        "spec": {"containers": list(containers)},
    }


def site(given: Object, **settings: str) -> sites.Site:
    return sites.find(pods.read(given), Settings.model_validate({k.replace("_", "-"): v for k, v in settings.items()}))


def injected(given: Object, namespace: model.Namespace | None = None) -> model.Outcome:
    return injection.inject(given, Config(), namespace or model.Namespace("ml"), model.Capabilities())


def refusal(given: Object) -> refusals.Refusal:
    outcome = injected(given)
    assert outcome.refusal is not None, outcome.plan
    return outcome.refusal


# --- The container


def test_a_recognised_server_is_the_app_rather_than_the_only_one_that_declares_a_port():
    found = site(pod({"name": "exporter", "ports": [{"containerPort": 9100}]}, UVICORN))
    assert (found.container.name, found.port) == ("server", 8000)


def test_a_recognised_server_next_to_a_database_makes_the_pod_a_predictor():
    both = {"spec": {"containers": [{**UVICORN, "image": "acme/scorer:1"}, {"name": "cache", "image": "redis:7"}]}}
    outcome = injected(both, model.Namespace("ml", {"carpool.dev/inject": "enabled"}))
    assert outcome.result == "injected"


# --- The port


@pytest.mark.parametrize(
    "name", ["http-metrics", "http-prometheus", "http-probe", "http-healthz", "web-admin", "api-health"]
)
def test_a_port_for_scrapes_probes_or_admins_is_none_for_predictions(name):
    """cert-manager, kube-state-metrics and Knative's gateways have such names on the only port that speaks HTTP."""
    only = {**UNKNOWN, "ports": [{"containerPort": 9402, "name": name}]}
    assert refusal(pod(only)).code == "no-takeover"
    beside = {**UNKNOWN, "ports": [{"containerPort": 9402, "name": name}, {"containerPort": 8080, "name": "http"}]}
    assert site(pod(beside)).port == 8080
    assert site(pod(only), port=name).port == 9402, "whoever names it means it"


@pytest.mark.parametrize("name", ["http-memberlist", "http-gossip", "web-raft", "http-peer"])
def test_a_port_for_other_members_of_a_cluster_is_none_for_predictions(name):
    """Loki's pods have such a name beside http-metrics, at which callers ask, and grpc."""
    ports = [{"containerPort": 3100, "name": "http-metrics"}, {"containerPort": 9095, "name": "grpc"}]
    with_members = {**UNKNOWN, "ports": [*ports, {"containerPort": 7946, "name": name}]}
    assert refusal(pod(with_members)).code == "ambiguous-port"
    assert site(pod(with_members), port="http-metrics").port == 3100, "whoever names it means it"


@pytest.mark.parametrize("name", ["http", "http1", "web", "rest", "http-predict", "web-api"])
def test_of_several_ports_the_one_named_for_http_is_meant(name):
    ports = [{"containerPort": 9100, "name": "metrics"}, {"containerPort": 7000, "name": name}]
    assert site(pod({**UNKNOWN, "ports": ports})).port == 7000


@pytest.mark.parametrize("name", ["metrics", "httpx", None])
def test_of_several_ports_none_of_which_is_named_for_http_none_is_guessed(name):
    ports = [{"containerPort": 9100}, {"containerPort": 7000, **({"name": name} if name else {})}]
    assert refusal(pod({**UNKNOWN, "ports": ports})).code == "ambiguous-port"


def test_a_udp_port_of_the_same_number_is_not_the_one_whose_name_moves():
    ports = [
        {"containerPort": 7000, "protocol": "UDP", "name": "gossip"},
        {"containerPort": 7000, "protocol": "TCP", "name": "http"},
    ]
    outcome = injected(pod({**UNKNOWN, "ports": ports}))
    assert outcome.plan is not None
    assert outcome.plan.takeover == "named-port"
    assert [port["name"] for port in outcome.pod["spec"]["containers"][0]["ports"]] == ["gossip", "carpool-app"]
    assert outcome.pod["spec"]["initContainers"][0]["ports"][0]["name"] == "http"


@pytest.mark.parametrize("name", ["grpc", "h2c", "http2", "grpc-predict", "http2-web"])
def test_a_port_named_for_another_protocol_is_refused(name):
    refused = refusal(pod({**UNKNOWN, "ports": [{"containerPort": 7000, "name": name}]}))
    assert refused.code == "not-http"
    assert name in refused.message


def test_a_port_that_is_probed_by_https_is_refused_whether_the_probe_says_its_number_or_its_name():
    for port in (7000, "http"):
        container = {
            **UNKNOWN,
            "ports": [{"containerPort": 7000, "name": "http"}],
            "readinessProbe": {"httpGet": {"port": port, "scheme": "HTTPS"}},
        }
        assert refusal(pod(container)).code == "tls"


def test_a_probe_by_https_of_another_port_says_nothing_about_this_one():
    probe = {"httpGet": {"port": 7443, "scheme": "HTTPS"}}
    outcome = injected(pod({**UVICORN, "ports": [{"containerPort": 8000}], "livenessProbe": probe}))
    assert outcome.result == "injected"


def test_a_knative_pod_that_is_not_kserves_is_entered_by_number_so_moving_a_name_is_refused():
    given = sample_pods.knative(sample_pods.custom(), annotations={"carpool.dev/takeover": "named-port"})
    del given["metadata"]["labels"][sample_pods.ISVC]
    assert refusal(given).code == "no-takeover"


# --- How the server is told its port


def server_of(container: Object, **settings: str) -> tuple[str, str, int]:
    found = site(pod({"name": "server", **container}), **settings)
    assert found.server is not None
    assert found.setting is not None
    return found.server.title, str(found.setting), found.port


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "ash", "/bin/sh"])
def test_what_a_shell_starts_is_not_looked_into(shell):
    assert servers.recognise(pods.Container(name="a", command=(shell, "-c"), args=("uvicorn",))) is None


@pytest.mark.parametrize(
    ("image", "title"),
    [
        ("kserve/kserve-sklearnserver:v1", "KServe's model server"),
        ("kserve/lgbserver", "KServe's model server"),
        ("acme/tensorflow-serving:1", "TensorFlow Serving"),
        ("pytorch/torchserve:1", "TorchServe"),
    ],
)
def test_the_images_of_a_server_are_known_by_all_their_names(image, title):
    found = servers.recognise(pods.Container(name="a", image=image))
    assert found is not None
    assert found.title == title


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"args": ["uvicorn", "--host=::", "--port=1", "--port", "8000"]}, ("Uvicorn", "argument --port", 8000)),
        ({"args": ["uvicorn", "--host=::"]}, ("Uvicorn", "environment variable UVICORN_PORT", 8000)),
        ({"args": ["bentoml", "serve", "-p", "5000"]}, ("BentoML", "argument -p", 5000)),
        ({"args": ["gunicorn", "-b", ":5000"]}, ("Gunicorn", "argument -b", 5000)),
        ({"args": ["fastapi", "run", "--port", "5000"]}, ("FastAPI", "argument --port", 5000)),
        ({"image": "vllm/vllm-openai:1"}, ("vLLM", "argument --port", 8000)),
        ({"image": "kserve/huggingfaceserver:1"}, ("KServe's model server", "argument --http_port", 8080)),
        (
            {"image": "acme/own:1", "env": [{"name": "MLSERVER_HTTP_PORT", "value": "5000"}]},
            ("MLServer", "environment variable MLSERVER_HTTP_PORT", 5000),
        ),
        (
            {"args": ["uvicorn", "--host=::", "--port=8000"], "env": [{"name": "UVICORN_PORT", "value": "1"}]},
            ("Uvicorn", "argument --port", 8000),
        ),
        (
            {
                "args": ["uvicorn", "a:b", "--host=0.0.0.0", "--port=8000"],
                "env": [{"name": "PORT", "value": "8000"}],
                "ports": [{"containerPort": 8000}],
            },
            ("Uvicorn", "argument --port", 8000),
        ),
    ],
)
def test_each_server_is_told_its_port_in_its_own_way(container, expected):
    assert server_of(container) == expected


@pytest.mark.parametrize("image", ["vllm/vllm-openai:1", "kserve/huggingfaceserver:1", "tensorflow/serving:2"])
def test_an_image_that_is_its_server_is_given_arguments_where_it_has_none(image):
    outcome = injected(pod({"name": "server", "image": image}))
    assert outcome.plan is not None, outcome.refusal
    assert outcome.plan.takeover == "port-swap"
    assert len(outcome.pod["spec"]["containers"][0]["args"]) == 1


def test_a_variable_port_that_is_none_of_the_declared_ports_does_not_tell_the_app_its_port():
    container = {
        **UNKNOWN,
        "env": [{"name": "PORT", "value": "9000"}],
        "ports": [{"containerPort": 7000, "name": "http"}],
    }
    outcome = injected(pod(container))
    assert outcome.plan is not None
    assert outcome.plan.takeover == "named-port"


TF, TF_PROGRAM = (
    {"name": "app", "image": "tensorflow/serving:2"},
    {"name": "app", "command": ["tensorflow_model_server"]},
)


@pytest.mark.parametrize(
    ("container", "is_off"),
    [
        ({**TF_PROGRAM, "args": ["--port=8500"], "ports": [{"containerPort": 8500}]}, True),
        ({**TF_PROGRAM, "args": ["--port", "9"], "ports": [{"containerPort": 9, "name": "http"}]}, True),
        ({**TF_PROGRAM, "args": ["--rest_api_port=8501"], "ports": [{"containerPort": 8500}]}, False),
        ({**TF, "ports": [{"containerPort": 8500}]}, False),
    ],
)
def test_the_port_for_calls_of_a_servers_own_grpc_is_refused_with_a_fix_that_leads_to_its_http(
    container: Object, is_off: bool
) -> None:
    refusal = injected(pod(container)).refusal
    assert refusal is not None
    assert refusal.code == "not-http"
    assert ("--rest_api_port" if is_off else 'carpool.dev/port: "8501"') in refusal.fix
    args = [*container.get("args", []), *(["--rest_api_port=8501"] if is_off else [])]
    followed = injected(pod({**container, **({"args": args} if args else {})}, port="8501"))
    assert followed.plan is not None, followed.refusal
    assert (followed.plan.takeover, followed.plan.listen_port) == ("port-swap", 8501)


APP = {
    "name": "app",
    "image": "acme/app:1",
    "env": [{"name": "PORT", "value": "8000"}],
    "ports": [{"containerPort": 8000}],
}
HELPERS = [
    {"name": "vault-agent", "image": "hashicorp/vault:1.20", "command": ["/bin/sh", "-ec"]},
    {"name": "any", "image": "mirror.example:5000/hashicorp/vault:1.20"},
    {"name": "gke-gcsfuse-sidecar", "image": "gke.gcr.io/gcs-fuse-csi-driver-sidecar-mounter:v1.4", "args": ["--v=5"]},
    {"name": "otc-container", "image": "acme/collector:1", "ports": [{"name": "otlp-http", "containerPort": 4318}]},
    {"name": "otel", "image": "otel/opentelemetry-collector-contrib@sha256:0", "ports": [{"containerPort": 4317}]},
    {"name": "csql-example-proxy", "image": "gcr.io/cloud-sql-connectors/cloud-sql-proxy:2.8",
     "ports": [{"name": "http", "containerPort": 9801}]},
    {"name": "login", "image": "quay.io/oauth2-proxy/oauth2-proxy:v7.9", "args": ["--http-address=0.0.0.0:4180"],
     "ports": [{"name": "http", "containerPort": 4180}]},
    {"name": "kube-rbac-proxy", "image": "registry.redhat.io/openshift4/ose-kube-rbac-proxy:v4.16",
     "ports": [{"name": "https", "containerPort": 8443}]},
]  # fmt: skip


@pytest.mark.parametrize("helper", HELPERS, ids=lambda each: str(each["image"]))
def test_containers_that_others_put_beside_an_app_are_not_taken_for_it(helper: Object) -> None:
    for containers in ((helper, APP), (APP, *HELPERS)):
        assert [each.name for each in pods.read(pod(*containers)).apps] == ["app"]


def test_a_pod_with_such_containers_is_injected_without_more_words() -> None:
    outcome = injected(pod(*HELPERS[:6], APP))
    assert outcome.plan is not None, outcome.refusal
    assert outcome.plan.container == "app"


def test_a_pod_of_such_a_container_alone_is_no_pod_without_an_app() -> None:
    assert [each.name for each in pods.read(pod(HELPERS[0])).apps] == ["vault-agent"]
    assert site(pod(HELPERS[6]), container="login").port == 4180
