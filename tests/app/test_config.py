"""The command line and the environment: one model, clear errors, and KServe's flags."""

from __future__ import annotations

import json
import math
import types
from pathlib import Path

import pytest

from carpool_sidecar import config
from carpool_sidecar.planning import probing


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    import os

    for name in [name for name in os.environ if name.startswith("CARPOOL_")]:
        monkeypatch.delenv(name)


def refused(argv, capsys) -> str:
    with pytest.raises(SystemExit) as caught:
        config.load(argv)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def probed(tmp_path, **others) -> str:
    """A file of `probe --json`."""
    found = probing.Probed(
        [probing.Measured(rows, (0.010 + 0.0001 * rows,) * 5, **others) for rows in (1, 2, 4, 8, 16, 32, 64)],
        probing.Limit(70, "status 500"),
    )
    file = tmp_path / "probe.json"
    file.write_text(json.dumps(probing.values(found)))
    return str(file)


def test_what_a_probe_found_is_applied(tmp_path):
    chosen = config.load(["--from-probe", probed(tmp_path)])
    assert (chosen.max_batch_size, chosen.enable_batcher, chosen.is_adaptive) == (64, True, True)


def test_a_size_that_is_given_counts_but_no_batch_is_as_large_as_one_that_failed(tmp_path):
    assert config.load(["--from-probe", probed(tmp_path), "--max-batch-size", "8"]).max_batch_size == 8
    chosen = config.load(["--from-probe", probed(tmp_path), "--max-batch-size", "500"])
    assert chosen.max_batch_size == 69
    assert chosen.changed({"max_batch_size": 100}).max_batch_size == 69


def test_the_file_of_a_probe_is_read_once(tmp_path):
    file = Path(probed(tmp_path))
    chosen = config.load(["--from-probe", str(file)])
    file.unlink()
    changed = chosen.changed({"max_latency": 6}).changed({"max_batch_size": 100})
    assert (changed.max_latency, changed.max_batch_size) == (6, 69)


@pytest.mark.parametrize("later", ["max_characters: 4", "", "no YAML: [", None])
def test_the_rules_in_force_stay_whatever_becomes_of_their_file(tmp_path, later):
    file = tmp_path / "rules.yaml"
    start = "it: {path: /x, list: texts, answers: out, %s}"
    file.write_text(start % "max_characters: 10")
    chosen = config.load(["--lists", str(file)])
    if later is None:
        file.unlink()
    else:
        file.write_text(start % later)
    changed = chosen.changed({"max_latency": 6}).changed({"max_batch_size": 100})
    assert (changed.max_latency, changed.max_batch_size, changed.lists) == (6, 100, (str(file),))
    assert changed.list_rules == chosen.list_rules
    assert changed.scheduler_limits.max_batch_cost == chosen.scheduler_limits.max_batch_cost < math.inf


def test_a_size_by_a_probe_is_named_as_such(tmp_path, capsys):
    argv = ["--from-probe", probed(tmp_path), "--max-batch-size", "128", "--allowed-batch-sizes", "8,128"]
    assert "must not exceed --max-batch-size (69 by --from-probe)" in refused(argv, capsys)


def test_nothing_is_batched_where_answers_in_a_batch_had_other_texts(tmp_path):
    assert config.load(["--from-probe", probed(tmp_path, others=1)]).enable_batcher is False


def test_what_the_doctor_printed_is_taken_as_well(tmp_path):
    inner = json.loads(Path(probed(tmp_path)).read_text())
    file = tmp_path / "doctor.json"
    file.write_text(json.dumps({"server": "Triton", "probe": inner}))
    assert config.load(["--from-probe", str(file)]).max_batch_size == 64


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "it is not what"),
        ("[]", "it is not what"),
        ('{"probe": null}', "it has no measurements"),
        ('{"probe": 5}', "it is not what"),
        ('{"sizes": [], "fails_from": 0, "steady": true}', "it has no measurements"),
        (" " * 2**20 + "{}", "it is larger than 1048576 bytes"),
        ('{"sizes": [], "fails_from": "8", "steady": true}', "it is not what"),
        ('{"sizes": [], "fails_from": true, "steady": true}', "it is not what"),
        ('{"sizes": [1], "fails_from": 8, "steady": true}', "it is not what"),
    ],
)
def test_a_file_that_no_probe_wrote_is_refused_with_its_name(tmp_path, capsys, text, words):
    file = tmp_path / "probe.json"
    if text is not None:
        file.write_text(text)
    printed = refused(["--from-probe", str(file)], capsys)
    assert "--from-probe" in printed
    assert str(file) in printed
    assert words in printed


def test_defaults_are_the_documented_ones():
    chosen = config.load([])
    assert (chosen.max_batch_size, chosen.max_latency, chosen.timeout, chosen.max_in_flight) == (32, None, 60, None)
    assert (chosen.port, chosen.component_port, chosen.key_headers) == (9081, 8080, ("authorization", "content-type"))


@pytest.mark.parametrize(
    ("argv", "policy", "max_latency", "max_in_flight"),
    [
        ("", "adaptive", 0.5, 8),
        ("--max-latency 20", "window", 0.02, 8),
        ("--max-latency 0", "window", 0.0, 8),
        ("--enable-batcher", "window", 0.5, 8),
        ("--enable-batcher --max-batchsize 8", "window", 0.5, 8),
        ("--enable-batcher --max-latency 100", "window", 0.1, 8),
        ("--policy adaptive --max-latency 5", "adaptive", 0.005, 8),
        ("--policy adaptive --enable-batcher", "adaptive", 0.5, 8),
        ("--policy window", "window", 0.5, 8),
        ("--max-in-flight 2", "adaptive", 0.5, 2),
        ("--policy window --max-in-flight 3", "window", 0.5, 3),
    ],
)
def test_who_names_a_latency_gets_the_window_and_who_names_none_the_adaptive_policy(
    argv, policy, max_latency, max_in_flight
):
    chosen = config.load(argv.split())
    assert chosen.is_adaptive == (policy == "adaptive")
    assert chosen.scheduler_limits.max_latency == max_latency
    assert chosen.scheduler_limits.max_in_flight == max_in_flight
    assert chosen.scheduler_limits.learns_in_flight == (chosen.max_in_flight is None)


def test_a_latency_given_at_run_time_does_not_change_the_policy():
    assert config.load([]).changed({"max_latency": 5}).is_adaptive
    assert not config.load(["--max-latency", "5"]).changed({"max_latency": None}).is_adaptive


@pytest.mark.parametrize(
    "argv",
    [
        "--port 9081 --component-port 8081 --enable-batcher --max-batchsize 30 --max-latency 100",
        "--port=9081 --component-port=8081 --enable-batcher=true --max-batchsize=30 --max-latency=100",
        "--enable-batcher --max-batchsize 30 --max-latency 100 --component-port 8081 --probe-period 5",
        "--enable-batcher --max-batch-size 30 --max-latency 100 --component-port 8081 --enable-puller=false",
    ],
)
def test_flags_of_kserves_agent_work_as_they_do_there(argv):
    chosen = config.load(argv.split())
    assert (chosen.component_port, chosen.max_batch_size, chosen.max_latency) == (8081, 30, 100)
    assert chosen.enable_batcher


@pytest.mark.parametrize(
    "flag", ["--enable-puller", "--config-dir=/x", "--log-url=http://x", "--workers", "--namespace"]
)
def test_duties_of_kserves_agent_that_are_not_ours_are_refused_in_words(flag, capsys):
    assert "keep KServe's own agent image" in refused(["--enable-batcher", flag], capsys)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--max-batch-size", "0"], "--max-batch-size (CARPOOL_MAX_BATCH_SIZE) got '0': must be greater than"),
        (["--max-latency", "-1"], "--max-latency (CARPOOL_MAX_LATENCY) got '-1': must be greater than or equal to 0"),
        (["--max-latency", "soon"], "got 'soon': must be a valid number"),
        (["--max-latency", "nan"], "--max-latency"),
        (["--timeout", "1e-9"], "--timeout (CARPOOL_TIMEOUT) got '1e-9': must be greater than or equal to 0.01"),
        (["--slo", "0.5"], "--slo (CARPOOL_SLO) got '0.5': must be greater than or equal to 1"),
        (["--connect-timeout", "1e-9"], "got '1e-9': must be greater than or equal to 0.01"),
        (["--head-timeout", "1e-9"], "got '1e-9': must be greater than or equal to 0.1"),
        (["--keep-alive", "1e-9"], "got '1e-9': must be greater than or equal to 0.1"),
        (["--port", "70000"], "less than or equal to 65535"),
        (["--port", "9082"], "--port and --admin-port must differ; both are 9082"),
        (["--retry-statuses", "oops"], "'oops' is not 4xx, 5xx or a status from 400 to 599"),
        (["--max-body-bytes", "999999999"], "must not exceed --max-queue-bytes"),
        (["--allowed-batch-sizes", "4,2"], "got '4,2': '4,2' is not a list of ascending whole numbers from 1"),
        (["--allowed-batch-sizes", "8,64"], "--allowed-batch-sizes (8,64) must not exceed --max-batch-size (32)"),
        (["--max-batch-cost", "512"], "--max-batch-cost (512) needs --instance-cost bytes or length"),
        (["--instance-cost", "tokens"], "got 'tokens': must be 'none', 'bytes' or 'length'"),
        (["--policy", "window", "--timeout", "0.4"], "--timeout (0.4 s) must be longer than --max-latency (500.0 ms)"),
        (["--key-headers", "Content-Length"], "'Content-Length' belongs to a single message"),
        (["--key-headers", "a b"], "'a b' is not a header name"),
        (
            ["--forward-headers", "x-user"],
            "'x-user' does not say which value goes along: x-user=first or x-user=joined",
        ),
        (["--forward-headers", "x-user=last"], "'x-user=last' does not say which value goes along"),
        (["--forward-headers", "a b=first"], "'a b' is not a header name"),
        (
            ["--forward-headers", "Cookie=first"],
            "'Cookie' cannot go along with other callers' instances; --key-headers",
        ),
        (["--forward-headers", "Content-Length=first"], "'Content-Length' cannot go along"),
        (["--forward-headers", "Inference-Header-Content-Length=first"], "cannot go along"),
        (["--forward-headers", "grpc-timeout=first"], "'grpc-timeout' cannot go along with a batch over gRPC"),
        (["--forward-headers", "X-Key-Bin=joined"], "'X-Key-Bin' cannot go along with a batch over gRPC"),
        (["--forward-headers", "x!y=first"], "'x!y' cannot go along with a batch over gRPC"),
        (["--forward-headers", "x-a=first,X-A=joined"], "'X-A' is named twice, as first and as joined"),
        (
            ["--forward-headers", "x-a=first", "--key-headers", "X-A"],
            "--forward-headers names x-a, in which all requests of a batch agree by --key-headers",
        ),
        (["--answer-members", "model name"], "'model name' is no member: at most 64 letters, digits and _.-"),
        (["--answer-members", "Predictions"], "'Predictions' is each caller's own in a v1 answer"),
        (["--answer-members", "model_name,batchId"], "'batchId' is each caller's own in a v1 answer"),
        (["--answer-members", "message"], "'message' is each caller's own in a v1 answer"),
        (["--answer-members", ",".join(f"m{n}" for n in range(17))], "17 members are named; at most 16 are allowed"),
        (
            ["--answer-members", "model_name", "--upstream", "triton-http"],
            "--answer-members needs --upstream http: with triton-http the predictor gives no v1 answers",
        ),
        (["--quiet-period", "25"], "must be shorter than --grace-period"),
        (["--log-level", "loud"], "got 'loud': must be 'debug', 'info', 'warning' or 'error'"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["stray"], "unrecognized arguments: stray"),
        (["--max-batch", "4"], "unrecognized arguments: --max-batch 4"),
    ],
)
def test_bad_values_give_one_line_that_names_the_field_and_what_is_allowed(argv, words, capsys):
    assert words in refused(argv, capsys)


def test_what_a_batch_may_contain_reaches_the_core_in_its_units():
    argv = "--allowed-batch-sizes 1,4,16 --instance-cost length --max-batch-cost 512 --small-batch-threshold 2"
    found = config.load([*argv.split(), "--priority-ageing", "250", "--max-batch-bytes", "1000"]).scheduler_limits
    assert (found.allowed_sizes, found.max_batch_size) == ((1, 4, 16), 16)
    assert (found.max_batch_bytes, found.max_batch_cost) == (1000, 512)
    assert found.row_costs(types.SimpleNamespace(row_lengths=lambda start, stop: [start, stop]), 3, 5) == [3, 5]
    assert (found.small_batch_threshold, found.priority_ageing) == (2, 0.25)


def test_a_limit_of_zero_is_none_and_nothing_is_measured_for_it():
    found = config.load(["--max-batch-bytes", "0", "--instance-cost", "bytes"]).scheduler_limits
    assert (found.max_batch_bytes, found.max_batch_cost, found.row_costs) == (math.inf, math.inf, None)


def test_the_largest_request_may_fill_the_queue():
    chosen = config.load(["--max-body-bytes", "4096", "--max-queue-bytes", "4096"])
    assert chosen.max_body_bytes == chosen.max_queue_bytes == 4096


def test_any_request_that_is_let_in_by_default_makes_a_batch_no_larger_than_others():
    chosen = config.load([])
    assert chosen.max_batch_bytes == chosen.max_body_bytes


def test_environment_variables_work_and_flags_win(monkeypatch):
    monkeypatch.setenv("CARPOOL_MAX_BATCH_SIZE", "8")
    monkeypatch.setenv("CARPOOL_MAX_LATENCY", "7.5")
    monkeypatch.setenv("CARPOOL_KEY_HEADERS", "x-tenant, authorization")
    chosen = config.load(["--max-latency", "9"])
    assert (chosen.max_batch_size, chosen.max_latency) == (8, 9)
    assert chosen.key_headers == ("x-tenant", "authorization")


def test_members_of_answers_are_named_once_as_they_are_written():
    assert config.load(["--answer-members", "modelName,model_name, modelName"]).answer_members == (
        "modelName",
        "model_name",
    )


def test_forwarded_headers_are_kept_in_lower_case_and_each_once():
    chosen = config.load(["--forward-headers", "X-User=joined,x-plan=first,x-user=joined"])
    assert chosen.forwarded == (("x-user", True), ("x-plan", False))


def test_key_headers_are_kept_in_lower_case_and_each_once():
    chosen = config.load(["--key-headers", "X-Tenant,authorization,x-tenant"])
    assert chosen.key_headers == ("x-tenant", "authorization")


@pytest.mark.parametrize("name", ["MAX_BATCH_SIZE", "max-batchsize", "MAX_LATENCY", "PORT", "CARPOOL_MAX_BATCHSIZE"])
def test_other_programs_variables_are_not_read(name, monkeypatch):
    monkeypatch.setenv(name, "7")
    assert config.load([]) == config.Settings()
    assert config.load([]).max_batch_size == 32


def test_a_bad_environment_variable_is_named(monkeypatch, capsys):
    monkeypatch.setenv("CARPOOL_TIMEOUT", "0")
    assert "--timeout (CARPOOL_TIMEOUT) got '0': must be greater than or equal to 0.01" in refused([], capsys)


def test_the_link_variable_of_a_service_named_carpool_is_not_taken_for_a_port(monkeypatch):
    monkeypatch.setenv("CARPOOL_PORT", "tcp://10.0.0.7:80")
    assert config.load([]).port == 9081


def test_batching_can_be_switched_off_as_kserve_writes_it():
    assert config.load(["--enable-batcher=false"]).enable_batcher is False


def test_help_is_a_page_with_every_flag_its_variable_and_its_default(capsys):
    with pytest.raises(SystemExit) as caught:
        config.load(["--help"])
    assert caught.value.code == 0
    page = " ".join(capsys.readouterr().out.split())
    for name in config.Settings.model_fields:
        assert "--" + name.replace("_", "-") in page
        assert f"[CARPOOL_{name.upper()}]" in page
    assert "(default: authorization,content-type)" in page


def test_every_setting_says_what_it_is():
    for name, info in config.Settings.model_fields.items():
        assert info.description, name
        assert info.description.endswith("."), name
        assert not info.is_required(), name


def test_settings_for_experts_come_last():
    groups = [info.json_schema_extra["group"] for info in config.Settings.model_fields.values()]
    first = groups.index(config.EXPERTS)
    assert set(groups[first:]) == {config.EXPERTS}


def test_live_settings_can_be_changed_and_others_cannot():
    chosen = config.Settings()
    assert chosen.changed({"max_latency": 5}).max_latency == 5
    assert chosen.max_latency is None
    with pytest.raises(ValueError, match="admin_port cannot be changed at run time; these can: max_batch_size"):
        chosen.changed({"admin_port": 1})
    with pytest.raises(ValueError, match=r"--timeout .* got 0: must be greater than or equal to 0.01"):
        chosen.changed({"timeout": 0})


@pytest.mark.parametrize(
    ("argv", "clash"),
    [
        ("--grpc-port 9081", "--port and --grpc-port"),
        ("--grpc-port 9082", "--admin-port and --grpc-port"),
        ("--port 9082", "--port and --admin-port"),
    ],
)
def test_every_port_that_is_listened_on_is_another(argv, clash, capsys):
    assert clash in refused(argv.split(), capsys)


@pytest.mark.parametrize("upstream", ["triton-http", "triton-grpc"])
@pytest.mark.parametrize(
    ("lists", "others"),
    [
        ("tei-embed", "tei-embed"),
        ("openai-embeddings,mlflow,tei-embed", "mlflow, tei-embed"),
        ("{own: {extends: openai-embeddings}}", "own"),
        ("{openai-embeddings: {extends: openai-embeddings, path: /e}}", "openai-embeddings"),
    ],
)
def test_lists_that_cannot_become_tensors_are_refused_before_a_v2_predictor(upstream, lists, others, capsys):
    told = refused(["--upstream", upstream, "--lists", lists], capsys)
    assert f"--upstream {upstream} takes no rule of --lists but openai-embeddings as it is built in" in told
    assert f"given: {others} (see" in told
    assert config.load(["--upstream", upstream, "--lists", "openai-embeddings"]).upstream == upstream
    assert config.load(["--lists", lists]).upstream == "http"


def test_no_grpc_port_clashes_with_nothing():
    assert config.load(["--grpc-port", "0"]).grpc_port == 0
