"""Annotations: what is accepted becomes flags the sidecar starts with, and what is refused says what is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_injector import config_file
from carpool_injector.core import injection, model, pod_annotations, refusals
from carpool_injector.core.config import Amounts, Config
from carpool_injector.core.settings import Settings, SidecarSettings
from carpool_sidecar import config as sidecar_config
from tests.injector import pods

P = "carpool.dev/"
CONFIG = Config(channels={"canary": "registry.example/carpool:canary"})

NUMBERS = st.one_of(
    st.integers(-3, 10**7).map(str),
    st.floats(-1, 10**6, allow_nan=False).map(lambda value: f"{value:.3f}"),
    st.sampled_from(["0", "1", "0.001", "1024", "100000", "100001", "3600000", "86400", "86401", "1e3", "007"]),
)
WORDS = st.sampled_from(
    ["auto", "window", "adaptive", "none", "bytes", "length", "429", "4xx", "4xx,503", "5xx", "true", "false", "",
     "triton-http", "triton-grpc", "batch", "pass",
     "mlflow", "openai-embeddings,tei-embed", "{mine: {extends: hf-toolkit, list: $}}", "mine:\n  path: /a\n",
     "1,2,4,8", "1,2,64", "authorization,x-tenant", "host", "/v1/models/m", "/a?b=%20", "info", "json", "text"]
)  # fmt: skip
FLAGS = list(SidecarSettings.model_fields)


def read(**values: str) -> Settings:
    annotations = {P + name.replace("_", "-"): value for name, value in values.items()}
    return pod_annotations.read_settings([pod_annotations.Source(annotations)], CONFIG)


def problem(**values: str) -> str:
    with pytest.raises(refusals.BadSettings) as caught:
        read(**values)
    return str(caught.value)


@given(st.dictionaries(st.sampled_from(FLAGS), st.one_of(NUMBERS, WORDS), min_size=1, max_size=6))
def test_whatever_is_accepted_starts_the_sidecar(values):
    annotations = {P + name.replace("_", "-"): value for name, value in values.items()}
    app = {"name": "app", "args": ["uvicorn", "a:b", "--host=::"]}
    pod = {"metadata": {"annotations": {P + "inject": "true", **annotations}}, "spec": {"containers": [app]}}
    outcome = injection.inject(pod, CONFIG, model.Namespace("ml"), model.Capabilities())
    if outcome.plan is None:
        return
    loaded = sidecar_config.load(pods.expanded(outcome.pod["spec"]["initContainers"][0]["args"]))
    assert set(values) <= loaded.model_fields_set


@pytest.mark.parametrize("name", FLAGS)
def test_every_setting_that_becomes_a_flag_is_one_of_the_sidecars(name):
    assert name in sidecar_config.Settings.model_fields


def test_every_setting_of_the_sidecar_can_be_annotated_unless_the_takeover_decides_it():
    decided_here = {
        "port",
        "admin_host",
        "admin_port",
        "admin_write",
        "admin_token_file",
        "component_port",
        "grpc_port",
        "component_grpc_port",
        "enable_batcher",
    }
    assert set(sidecar_config.Settings.model_fields) - set(FLAGS) == decided_here


@given(st.sampled_from(sorted(set(Settings.model_fields) - {"lists"})), st.text(max_size=40))
def test_no_text_gets_through_that_a_container_could_be_made_of(name, value):
    try:
        settings = read(**{name: value})
    except refusals.BadSettings:
        return
    written = [getattr(settings, name), *(text for _, text in settings.flags())]
    assert [
        text for text in map(str, written) if not text.isascii() or any(c in text for c in '\n\r\t\0 {}"<>\\')
    ] == []


@pytest.mark.parametrize(
    "value",
    ["", " 8", "8 ", "+8", "-8", "8.0", "1e3", "٨", "８", "0", "100001", "9" * 400, "NaN", "0x10", "8\n", "1_000"],
)
def test_a_whole_number_is_plain_ascii_digits_within_its_range(value):
    assert problem(max_batch_size=value).endswith("must be a whole number from 1 to 100,000")


@pytest.mark.parametrize("value", ["", "-1", "NaN", "inf", "1e3", "0.0000001", "3600000.5", "50ms", "٥٠", ".5"])
def test_milliseconds_are_a_plain_number_without_unit(value):
    assert "must be a number of milliseconds from 0 to 3,600,000, without the unit" in problem(max_latency=value)


@pytest.mark.parametrize(
    "value", ["1Gi\n- name: evil", "1 Gi", "-1", "0", "1e3", "NaN", "1Gi\0", "1KiB", "١Gi", "1" * 13, "", "1Ei", "{}"]
)
def test_a_quantity_is_one_and_nothing_more(value):
    assert f"annotation {P}resources-limits-memory: got " in problem(resources_limits_memory=value)


def test_a_problem_names_key_value_and_source():
    source = pod_annotations.Source({P + "slo": "fast"}, "namespace ml")
    with pytest.raises(
        refusals.BadSettings, match=r"annotation carpool.dev/slo \(from namespace ml\): got 'fast': must be"
    ):
        pod_annotations.read_settings([source], CONFIG)


def test_all_problems_are_told_at_once():
    text = problem(max_batch_size="x", slo="y")
    assert "max-batch-size" in text
    assert "slo" in text


def test_a_long_value_is_cut_in_the_message():
    assert len(problem(policy="x" * 10_000)) < 200


def test_the_pods_own_annotation_wins_over_namespace_and_defaults():
    config = Config(defaults={"max-batch-size": "8", "slo": "100", "timeout": "9"})
    sources = [
        pod_annotations.defaults(config),
        pod_annotations.Source({P + "max-batch-size": "16", P + "slo": "200"}, "namespace ml"),
        pod_annotations.Source({P + "max-batch-size": "32"}),
    ]
    settings = pod_annotations.read_settings(sources, config)
    assert (settings.max_batch_size, settings.slo, settings.timeout) == (32, 200, 9)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"timeout": "0.4", "max_latency": "500"}, "must be longer than"),
        ({"timeout": "0.4", "policy": "window"}, "must be longer than"),
        ({"max_body_bytes": "300000000"}, "must not exceed carpool.dev/max-queue-bytes (268435456)"),
        ({"allowed_batch_sizes": "1,64"}, "must not exceed carpool.dev/max-batch-size (32)"),
        ({"max_batch_cost": "10"}, "needs carpool.dev/instance-cost"),
        ({"upstream": "triton-http", "lists": "mlflow"}, "lists must be openai-embeddings, or empty for none, where"),
        ({"upstream": "triton-grpc", "lists": "{a: {extends: mlflow}}"}, "carpool.dev/upstream is triton-grpc"),
        ({"upstream": "triton-http", "lists": "rerank"}, "lists must be openai-embeddings, or empty for none, where"),
        (
            {"upstream": "triton-http", "lists": "rerank,mlflow", "rerank_to": "v2"},
            "lists must be openai-embeddings or rerank or tei-rerank or nim-ranking, or empty for none, where",
        ),
        ({"rerank_to": "v2"}, "rerank-to needs a rule in carpool.dev/lists that has a query, such as rerank"),
        ({"rerank_to": "v2", "lists": "tei-embed"}, "rerank-to needs a rule in carpool.dev/lists that has a query"),
        ({"rerank_to": "v2", "lists": "{a: {extends: mlflow}}"}, "rerank-to needs a rule in carpool.dev/lists"),
        ({"rerank_to": "tei"}, "must be tei-predict, vllm-score, v1, v2, v1:MODEL or v2:MODEL"),
        ({"embeddings_output": "-x"}, "must be the name of an output of the model"),
        ({"resources_requests_cpu": "2", "resources_limits_cpu": "1"}, "must not exceed its limit"),
        ({"resources_limits_cpu": "5"}, "the admin allows at most 4"),
        ({"image_channel": "stable"}, "must be one of: canary"),
        ({"key_headers": "Host"}, "must not name host"),
        ({"priority_header": "Host"}, "must not name host"),
        ({"priority_header": "Authorization"}, "must not name authorization"),
        ({"priority_header": "carpool-timeout-ms"}, "must not name carpool-timeout-ms"),
        ({"priority_header": "grpc-timeout"}, "must not name grpc-timeout"),
        ({"priority_header": "x,y"}, "must be the name of one header"),
        ({"answer_members": "model_name,BatchID"}, "must not name batchid, which is each caller's own"),
        ({"answer_members": "model name"}, "must be names of members: letters, digits and _.-"),
        ({"answer_members": ",".join(f"m{n}" for n in range(17))}, "comma-separated, at most 16"),
        ({"answer_members": "a", "upstream": "triton-grpc"}, "answer-members needs carpool.dev/upstream http"),
        ({"forward_headers": "Grpc-Timeout=first"}, "must not name grpc-timeout"),
        ({"forward_headers": "inference-header-content-length=first"}, "must not name inference-header-content-length"),
        ({"forward_headers": "x-b=joined,X-A=first", "key_headers": "x-a"}, "must not name x-a, in which all requests"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(values, told):
    assert told in problem(**values)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("max-batchsize", "max-batch-size"),
        ("maxLatency", "max-latency"),
        ("max_batch_size", "max-batch-size"),
        ("injekt", "inject"),
        ("resource-limits-cpu", "resources-limits-cpu"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_one(key, nearest):
    assert list(pod_annotations.unknown({P + key: "1"})) == [
        f"annotation {P}{key} is unknown and has no effect; did you mean {P}{nearest}?"
    ]


def test_keys_of_others_and_our_own_status_are_no_unknown_keys():
    known = {
        P + "inject": "true",
        P + "status": "{}",
        P + "kserve-batcher": "leave",
        P + "slo": "1",
        "example.com/x": "1",
    }
    assert list(pod_annotations.unknown(known)) == []


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"imag": "x"}, "imag: there is no such setting"),
        ({"image": "a b"}, "image: got 'a b'"),
        ({"port": 9081, "adminPort": 9081}, "port and adminPort must differ"),
        ({"port": "9081"}, "port: got '9081'"),
        ({"sidecarMode": "both"}, "sidecarMode: got 'both'"),
        (
            {"resources": {"limits": {"cpu": "50m", "memory": "1Gi"}}},
            "requests.cpu (100m) must not exceed limits.cpu (50m)",
        ),
        ({"defaults": {"slo": "x"}}, "defaults: annotation carpool.dev/slo"),
        ({"defaults": {"sloo": "1"}}, "did you mean carpool.dev/slo?"),
        ({"channels": {"Canary!": "x"}}, "channels.Canary!"),
    ],
)
def test_a_bad_configuration_is_refused_with_the_field_named(values, told):
    with pytest.raises(refusals.BadConfig) as caught:
        config_file.parse(values)
    assert told in str(caught.value)


def test_an_empty_configuration_is_the_defaults():
    assert config_file.parse(None) == Config()


def test_configurations_that_differ_have_hashes_that_differ():
    assert Config().hash == Config().hash
    assert Config(max_resources=Amounts(cpu="8", memory="8Gi")).hash != Config().hash


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "is no YAML"),
        ("port: 1\nport: 2", "'port' stands twice"),
        ("- a", "must be a mapping"),
        ("image: a b", "image: got 'a b'"),
    ],
)
def test_a_bad_configuration_file_is_named_in_the_message(tmp_path, text, told):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(refusals.BadConfig) as caught:
        config_file.load(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert told in str(caught.value)


def test_a_missing_configuration_file_is_told(tmp_path):
    with pytest.raises(refusals.BadConfig, match="cannot be read: No such file"):
        config_file.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "means"), [("512", "512"), ("128m", "0.128"), ("100k", "100000"), ("0.5Mi", "524288")]
)
def test_memory_that_is_a_slip_of_the_unit_is_refused_with_what_it_means(text: str, means: str) -> None:
    said = problem(resources_limits_memory=text)
    assert f"must be 1Mi or more, such as 512Mi; this means {means} bytes" in said
    with pytest.raises(refusals.BadConfig, match="must be 1Mi or more"):
        config_file.parse({"resources": {"limits": {"cpu": "1", "memory": text}}})


@pytest.mark.parametrize("text", ["1Mi", "1048576", "128M", "0.5Gi"])
def test_memory_of_a_mebibyte_or_more_is_taken_in_any_unit(text: str) -> None:
    assert Amounts(cpu="1", memory=text).memory == text
