"""The command line as a whole: what it loads, what it says when something is missing, and the flags of `serve`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click import testing

import carpool_injector
from carpool_injector import cli
from carpool_injector.commands import serve
from carpool_injector.webhook import options

COMMANDS = ("serve", "inject", "uninject", "explain", "check")
HEAVY = ("kubernetes", "aiohttp", "uvloop", "cryptography", "prometheus_client", "uvicorn")


def run(*args: str, **environment: str) -> testing.Result:
    return testing.CliRunner().invoke(cli.program, args, env=environment)


def python(code: str) -> subprocess.CompletedProcess[str]:
    root = Path(carpool_injector.__file__).parent.parent
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_shown_without_loading_a_web_server_or_the_kubernetes_client(command: str) -> None:
    code = f"""
import sys
from carpool_injector import cli
try:
    cli.program.main(["{command}", "--help"])
except SystemExit as end:
    loaded = [name for name in {HEAVY} if name in sys.modules]
    print(end.code, loaded)
"""
    result = python(code)
    assert result.stdout.splitlines()[-1] == "0 []", result.stderr


def test_manifests_are_injected_without_loading_them_either() -> None:
    code = f"""
import io, sys
from carpool_injector import cli
try:
    cli.program.main(["inject", "/dev/null"])
except SystemExit as end:
    print(end.code, [name for name in {HEAVY} if name in sys.modules])
"""
    assert python(code).stdout.splitlines()[-1] == "0 []"


def test_a_package_of_the_extra_that_is_missing_is_told_in_one_line() -> None:
    code = """
import sys
sys.modules["click"] = None
sys.argv = ["carpool-injector", "inject"]
from carpool_injector import __main__
__main__.main()
"""
    result = python(code)
    assert result.returncode == 2
    assert result.stderr == "carpool-injector: click is missing; run: pip install carpool-injector\n"


def test_no_command_shows_the_commands() -> None:
    result = run()
    assert result.exit_code == 2
    assert all(command in result.stderr for command in COMMANDS)


def test_version_and_unknown_commands() -> None:
    assert run("--version").stdout == f"carpool-injector {carpool_injector.__version__}\n"
    result = run("injekt")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "No such command 'injekt'" in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_stands_under_a_heading_with_its_help(command: str) -> None:
    context = cli.program.make_context("carpool-injector", [command], resilient_parsing=True)
    found = cli.program.get_command(context, command)
    assert found is not None
    for parameter in found.params:
        if parameter.param_type_name == "option":
            assert parameter.heading != "Other" or parameter.name == "output"  # type: ignore[attr-defined]
            assert parameter.help  # type: ignore[attr-defined]


def test_each_field_of_the_options_is_a_flag_with_the_same_default_and_a_variable() -> None:
    parameters = {parameter.name: parameter for parameter in serve.serve.params}
    for name in options.Options.model_fields:
        assert parameters[name].envvar == f"CARPOOL_INJECTOR_{name.upper()}"
    parsed = serve.serve.make_context("serve", []).params
    assert options.Options(**parsed) == options.Options()


def test_flags_win_over_variables_and_empty_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARPOOL_INJECTOR_PORT", "1")
    monkeypatch.setenv("CARPOOL_INJECTOR_METRICS_PORT", "")
    monkeypatch.setenv("CARPOOL_INJECTOR_EVENTS", "false")
    monkeypatch.setenv("CARPOOL_INJECTOR_CLIENT_NAMES", "a b")
    flags = ["--port", "2", "--certificates", "files", "--validating-webhook", "", "--quiet-period", "1.5"]
    chosen = options.Options(**serve.serve.make_context("serve", flags).params)
    assert (chosen.port, chosen.metrics_port, chosen.events, chosen.client_names) == (2, None, False, ("a", "b"))
    assert (chosen.certificates, chosen.validating_webhook, chosen.quiet_period) == ("files", None, 1.5)


def test_the_link_variable_of_a_service_named_carpool_injector_is_not_taken_for_a_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CARPOOL_INJECTOR_PORT", "tcp://10.0.0.7:443")
    assert options.Options(**serve.serve.make_context("serve", []).params) == options.Options()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--port", "70000"], "port is 70000, but must be 0 to 65535"),
        (["--port", "x"], "Invalid value for '--port' (env var: 'CARPOOL_INJECTOR_PORT'): 'x' is not a valid integer"),
        (["--tls-min-version", "1.1"], "'1.1' is not one of '1.2', '1.3'"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml: cannot be read"),
    ],
)
def test_settings_that_cannot_work_are_told_in_one_line_with_status_2(flags: list[str], problem: str) -> None:
    result = run("serve", *flags)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert result.stderr.startswith("carpool-injector serve: ")
    assert problem in result.stderr
