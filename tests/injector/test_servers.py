"""Recognised model servers: which they are, where they are told their port, and how they are moved to another one."""

from __future__ import annotations

import copy

import pytest

from carpool_injector.core import injection, model, pods, servers
from carpool_injector.core.config import Config

NOWHERE, CLUSTER = model.Namespace("ml"), model.Capabilities()


def pod(container, **annotations):
    chosen = {"carpool.dev/inject": "true"} | {f"carpool.dev/{k.replace('_', '-')}": v for k, v in annotations.items()}
    return {"metadata": {"annotations": chosen}, "spec": {"containers": [{"name": "app", **container}]}}


def moved(container, **annotations):
    outcome = injection.inject(pod(container, **annotations), Config(), NOWHERE, CLUSTER)
    assert outcome.plan is not None, str(outcome.refusal)
    assert outcome.plan.takeover == "port-swap"
    return outcome, outcome.pod["spec"]["containers"][0]


def refused(container, **annotations):
    outcome = injection.inject(pod(container, **annotations), Config(), NOWHERE, CLUSTER)
    assert outcome.result == "refused"
    return outcome.refusal


RECOGNISED = {
    "docker.io/tensorflow/serving:2.16": "TensorFlow Serving",
    "tensorflow/serving@sha256:" + "0" * 64: "TensorFlow Serving",
    "seldonio/mlserver:1.5.0": "MLServer",
    "kserve/sklearnserver:v0.15.0": "KServe's model server",
    "kserve/huggingfaceserver:latest-gpu": "KServe's model server",
    "registry.example:5000/kserve/xgbserver": "KServe's model server",
    "pytorch/torchserve-kfs:0.9.0": "TorchServe",
    "vllm/vllm-openai:v0.6.0": "vLLM",
    "carpool-predictor:0.1.0": "carpool-predictor",
}


@pytest.mark.parametrize(("image", "title"), RECOGNISED.items())
def test_a_server_is_recognised_by_its_image(image, title):
    assert servers.recognise(pods.Container(name="a", image=image)).title == title


@pytest.mark.parametrize(
    "image",
    ["my/serving:1", "postgres:16", "notensorflow/servings", "me/tritonserver-exporter", "tensorflow/tensorflow", ""],
)
def test_an_image_of_another_name_is_not_recognised(image):
    assert servers.recognise(pods.Container(name="a", image=image)) is None


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        (
            {"args": ["tritonserver", "--http-port=8000", "--allow-grpc=false"]},
            ["tritonserver", "--http-port=9083", "--allow-grpc=false"],
        ),
        (
            {"args": ["tritonserver", "--http-port", "8000", "--grpc-port", "8001"]},
            ["tritonserver", "--http-port", "9083", "--grpc-port", "9084"],
        ),
        (
            {"args": ["/opt/tritonserver/bin/tritonserver"]},
            ["/opt/tritonserver/bin/tritonserver", "--http-port=9083", "--grpc-port=9084"],
        ),
        (
            {"args": ["uvicorn", "app:app", "--host=::", "--port", "8000"]},
            ["uvicorn", "app:app", "--host=::", "--port", "9083"],
        ),
        ({"args": ["gunicorn", "-b", "0.0.0.0:8000", "app"]}, ["gunicorn", "-b", "0.0.0.0:9083", "app"]),
        ({"args": ["gunicorn", "--bind=[::]:8000", "app"]}, ["gunicorn", "--bind=[::]:9083", "app"]),
        ({"args": ["--http_port=8080"]}, ["--http_port=9083"]),
        ({"image": "kserve/huggingfaceserver:1", "args": ["--model_name=m"]}, ["--model_name=m", "--http_port=9083"]),
        (
            {"image": "vllm/vllm-openai:1", "args": ["--model", "m", "--port", "8000"]},
            ["--model", "m", "--port", "9083"],
        ),
        ({"image": "tensorflow/serving"}, ["--rest_api_port=9083"]),
    ],
)
def test_a_server_told_by_a_flag_is_moved_by_that_flag(container, expected):
    _, app = moved(container)
    assert app["args"] == expected


def test_a_flag_in_the_command_is_rewritten_there():
    _, app = moved({"command": ["uvicorn", "app:app", "--host=::", "--port=8000"]})
    assert app["command"] == ["uvicorn", "app:app", "--host=::", "--port=9083"]
    assert "args" not in app


@pytest.mark.parametrize(
    ("container", "name", "old"),
    [
        (
            {"image": "seldonio/mlserver:1", "env": [{"name": "MLSERVER_HTTP_PORT", "value": "8080"}]},
            "MLSERVER_HTTP_PORT",
            8080,
        ),
        ({"image": "carpool-predictor:1"}, "CARPOOL_PREDICTOR_PORT", 8080),
        ({"args": ["bentoml", "serve"]}, "BENTOML_PORT", 3000),
        ({"env": [{"name": "PORT", "value": "5000"}], "ports": [{"containerPort": 5000}]}, "PORT", 5000),
    ],
)
def test_a_server_told_by_a_variable_is_moved_by_that_variable(container, name, old):
    outcome, app = moved(container)
    assert [item for item in app["env"] if item["name"] == name] == [{"name": name, "value": "9083"}]
    assert (outcome.plan.listen_port, outcome.plan.app_port) == (old, 9083)


def test_the_pods_owner_may_name_the_flag():
    _, app = moved({"args": ["serve", "--listen", "7000"], "ports": [{"containerPort": 7000}]}, app_port_arg="--listen")
    assert app["args"] == ["serve", "--listen", "9083"]


def test_the_pods_owner_may_name_the_variable():
    container = {"env": [{"name": "HTTP", "value": "7000"}], "ports": [{"containerPort": 7000}]}
    _, app = moved(container, app_port_env="HTTP")
    assert app["env"] == [{"name": "HTTP", "value": "9083"}]


def test_other_numbers_of_the_same_value_are_left_alone():
    args = ["tritonserver", "--http-port=8000", "--grpc-port=8001", "--model-repository=/8000", "--timeout", "8001"]
    _, app = moved({"args": args})
    assert app["args"] == ["tritonserver", "--http-port=9083", "--grpc-port=9084", *args[3:]]


def test_the_app_moves_past_ports_that_others_use():
    container = {
        "args": ["tritonserver", "--grpc-port=9083", "--metrics-port=9084"],
        "ports": [{"containerPort": 8000}],
    }
    given = pod(container)
    given["spec"]["containers"].append({"name": "x", "ports": [{"containerPort": 9085}]})
    outcome = injection.inject(given, Config(), NOWHERE, CLUSTER)
    assert outcome.plan.app_port == 9086


@pytest.mark.parametrize(
    ("container", "code", "told"),
    [
        (
            {"image": "pytorch/torchserve:1", "ports": [{"containerPort": 8080}]},
            "no-takeover",
            "TorchServe is not told its port by a plain flag or variable",
        ),
        (
            {"command": ["sh", "-c", "uvicorn app:app --host :: --port 8000"], "ports": [{"containerPort": 8000}]},
            "no-takeover",
            "not recognised",
        ),
        ({"args": ["tritonserver", "--http-port=$(PORT)"], "ports": [{"containerPort": 8000}]}, "no-takeover", ""),
        ({"image": "x/y"}, "no-port", "declares no port"),
        ({"image": "x/y", "ports": [{"containerPort": 1}, {"containerPort": 2}]}, "ambiguous-port", "1, 2"),
        ({"image": "x/y", "ports": [{"containerPort": 9000, "name": "h2c"}]}, "not-http", "gRPC or HTTP/2"),
        ({"image": "x/y", "ports": [{"containerPort": 9000, "protocol": "UDP"}]}, "no-port", ""),
    ],
)
def test_what_cannot_be_moved_for_certain_is_refused(container, code, told):
    refusal = refused(container)
    assert refusal.code == code
    assert told in refusal.message
    assert refusal.fix


def test_two_sayings_about_the_port_that_differ_are_refused():
    refusal = refused(
        {"args": ["uvicorn", "a:b", "--host=::", "--port=9000"], "ports": [{"containerPort": 8000}]},
        takeover="port-swap",
    )
    assert refusal.code == "port-mismatch"
    assert "argument --port says 9000" in refusal.message


FOR_CERTAIN = {
    "Uvicorn": ["uvicorn", "a:b"],
    "Gunicorn": ["/usr/local/bin/gunicorn", "a:b"],
    "Triton": ["/opt/nvidia/nvidia_entrypoint.sh", "tritonserver"],
    "vLLM": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
    "BentoML": ["tini", "-g", "--", "bentoml", "serve"],
    "FastAPI": ["uv", "run", "fastapi", "run", "main.py"],
    "KServe's model server": ["python", "-u", "-m", "sklearnserver"],
    "carpool-predictor": ["env", "A=b", "carpool-predictor"],
}


@pytest.mark.parametrize(("title", "command"), FOR_CERTAIN.items())
def test_a_server_is_recognised_by_the_program_that_is_run(title, command):
    assert servers.recognise(pods.Container(name="a", command=command)).title == title


@pytest.mark.parametrize(
    "container",
    [
        {"args": ["lm_eval", "--model", "vllm"]},
        {"command": ["python", "train.py", "--backend", "vllm"]},
        {"command": ["vllm", "bench", "serve", "--port", "8000"]},
        {"command": ["celery", "-A", "uvicorn", "worker"]},
        {"command": ["exporter", "--target", "gunicorn", "--bind", "0.0.0.0:9999"]},
        {"command": ["bentoml", "build"]},
        {"command": ["mlserver", "infer"]},
        {"command": ["sh", "-c", "uvicorn a:b"]},
        {"command": ["/usr/bin/env", "zsh", "-c", "uvicorn a:b"]},
        {"command": ["/entrypoint.sh", "uvicorn"]},
        {"command": ["/scripts/start.sh"], "image": "vllm/vllm-openai:1"},
        {"command": ["python3", "wrap.py"], "image": "vllm/vllm-openai:1"},
        {"command": ["ray", "start"], "image": "vllm/vllm-openai:1"},
        {"command": ["/run.sh"], "image": "tensorflow/serving"},
        {"args": ["perf_analyzer", "-m", "x"], "image": "nvcr.io/nvidia/tritonserver:1-sdk"},
    ],
)
def test_a_word_among_the_arguments_makes_no_server(container):
    assert servers.recognise(pods.Container(name="a", **container)) is None


def test_a_flag_that_refers_to_a_variable_is_moved_by_the_variable():
    env = [{"name": "LISTEN", "value": "8000"}]
    _, app = moved(
        {"args": ["uvicorn", "a:b", "--host=::", "--port=$(LISTEN)"], "env": env, "ports": [{"containerPort": 8000}]}
    )
    assert app["args"][-1] == "--port=$(LISTEN)"
    assert app["env"] == [{"name": "LISTEN", "value": "9083"}]


def test_a_short_flag_joined_with_its_value_is_seen():
    _, app = moved({"args": ["bentoml", "serve", "-p3000"]})
    assert app["args"] == ["bentoml", "serve", "-p9083"]


@pytest.mark.parametrize(
    ("container", "annotations", "code"),
    [
        ({"args": ["vllm", "serve", "m", "--config", "/c.yaml"]}, {}, "no-port"),
        ({"args": ["uvicorn", "a:b", "--uds", "/s"], "ports": [{"containerPort": 8000}]}, {}, "loopback-only"),
        ({"args": ["uvicorn", "a:b", "--host", "127.0.0.1"]}, {}, "loopback-only"),
        ({"args": ["gunicorn", "-b", "127.0.0.1:8000"]}, {}, "loopback-only"),
        ({"args": ["uvicorn", "a:b", "--ssl-keyfile=k"]}, {}, "tls"),
        ({"args": ["uvicorn", "a:b"], "ports": [{"containerPort": 8000, "name": "https"}]}, {}, "tls"),
        ({"args": ["uvicorn", "a:b"], "readinessProbe": {"grpc": {"port": 8000}}}, {}, "not-http"),
        ({"args": ["sh", "-c", "x --at 7000"], "ports": [{"containerPort": 7000}]}, {"app_port_arg": "--at"}, ""),
        ({"args": ["x"], "ports": [{"containerPort": 7000}]}, {"app_port_env": "PATH"}, "no-takeover"),
        ({"image": "mysql", "ports": [{"containerPort": 3306, "name": "mysql"}]}, {}, "no-takeover"),
        ({"args": ["bentoml", "serve"], "ports": [{"containerPort": 80}, {"containerPort": 80, "name": "x"}]}, {},
         "ambiguous-port"),
        ({"args": ["uvicorn", "a:b", "--port=0"]}, {}, "no-port"),
        ({"args": ["uvicorn", "a:b", "--port=99999"]}, {}, "no-port"),
    ],
)  # fmt: skip
def test_what_would_not_be_reached_is_refused(container, annotations, code):
    assert refused(container, **annotations).code == (code or "no-takeover")


@pytest.mark.parametrize("helper", [{"name": "exporter", "ports": [{"containerPort": 9100, "name": "metrics"}]},
                                    {"name": "sql", "ports": [{"containerPort": 5432}]}])  # fmt: skip
def test_a_helper_that_declares_a_port_is_not_taken_for_the_app(helper):
    given = pod({"image": "my/app"})
    given["spec"]["containers"].append(helper)
    assert injection.inject(given, Config(), NOWHERE, CLUSTER).refusal.code == "ambiguous-container"


def test_a_port_in_a_variable_is_not_given_away():
    outcome, _ = moved({"args": ["uvicorn", "--host=::"], "env": [{"name": "METRICS_PORT", "value": "9083"}]})
    assert outcome.plan.app_port == 9084


def test_a_plain_pods_container_named_agent_may_be_the_app():
    given = pod({"args": ["uvicorn", "a:b", "--host=::"]})
    given["spec"]["containers"][0]["name"] = "agent"
    assert injection.inject(given, Config(), NOWHERE, CLUSTER).plan.container == "agent"


def test_the_pod_that_is_given_is_not_changed_when_another_way_is_taken():
    app = {"args": ["uvicorn", "--host=::"], "ports": [{"containerPort": 8000, "name": "http"}]}
    first = injection.inject(pod(app), Config(), NOWHERE, CLUSTER).pod
    first["metadata"]["annotations"]["carpool.dev/takeover"] = "named-port"
    kept = copy.deepcopy(first)
    assert injection.inject(first, Config(), NOWHERE, CLUSTER).plan.takeover == "named-port"
    assert first == kept


def test_a_variable_that_comes_from_elsewhere_is_not_overwritten():
    env = [{"name": "MLSERVER_HTTP_PORT", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]
    assert (
        refused({"image": "seldonio/mlserver:1", "env": env, "ports": [{"containerPort": 8080}]}).code == "no-takeover"
    )
