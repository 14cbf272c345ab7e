"""The command line and the environment: one model, clear errors, and KServe's flags."""

from __future__ import annotations

import pytest

from sidecar import config


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


def test_defaults_are_the_documented_ones():
    chosen = config.load([])
    assert (chosen.max_batch_size, chosen.max_latency, chosen.timeout, chosen.max_in_flight) == (32, 500, 60, 1)
    assert (chosen.port, chosen.component_port, chosen.key_headers) == (9081, 8080, ("authorization", "content-type"))
    assert chosen.core_limits().max_latency == 0.5


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
    argv = [argument for argument in argv.split() if argument != "--enable-puller=false"]
    chosen = config.load(argv)
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
        (["--port", "70000"], "less than or equal to 65535"),
        (["--port", "9082"], "--port and --admin-port must differ; both are 9082"),
        (["--retry-statuses", "oops"], "'oops' is not 4xx, 5xx or a status from 400 to 599"),
        (["--max-body-bytes", "999999999"], "must not exceed --max-queue-bytes"),
        (["--quiet-period", "25"], "must be shorter than --grace-period"),
        (["--log-level", "loud"], "got 'loud': must be 'debug', 'info', 'warning' or 'error'"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["stray"], "unrecognized arguments: stray"),
        (["--max-batch", "4"], "unrecognized arguments: --max-batch 4"),
    ],
)
def test_bad_values_give_one_line_that_names_the_field_and_what_is_allowed(argv, words, capsys):
    assert words in refused(argv, capsys)


def test_environment_variables_work_and_flags_win(monkeypatch):
    monkeypatch.setenv("CARPOOL_MAX_BATCH_SIZE", "8")
    monkeypatch.setenv("CARPOOL_MAX_LATENCY", "7.5")
    monkeypatch.setenv("CARPOOL_KEY_HEADERS", "x-tenant, authorization")
    chosen = config.load(["--max-latency", "9"])
    assert (chosen.max_batch_size, chosen.max_latency) == (8, 9)
    assert chosen.key_headers == ("x-tenant", "authorization")


def test_a_bad_environment_variable_is_named(monkeypatch, capsys):
    monkeypatch.setenv("CARPOOL_TIMEOUT", "0")
    assert "--timeout (CARPOOL_TIMEOUT) got '0': must be greater than 0" in refused([], capsys)


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


def test_live_settings_can_be_changed_and_others_cannot():
    chosen = config.Settings()
    assert chosen.changed({"max_latency": 5}).max_latency == 5
    assert chosen.max_latency == 500
    with pytest.raises(ValueError, match="admin_port cannot be changed at run time; these can: max_batch_size"):
        chosen.changed({"admin_port": 1})
    with pytest.raises(ValueError, match=r"--timeout .* got 0: must be greater than 0"):
        chosen.changed({"timeout": 0})
