"""A signal while a program starts or ends gets it a status that is meant, whatever it is doing, and a line at most."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.program import signalled

# By program: how it is run until it serves, and modules whose import takes time, the first of which comes early.
SERVING = {
    "carpool-sidecar": ("carpool_sidecar", [], ["asyncio", "carpool_sidecar.app.wiring"]),
    "carpool-injector": ("carpool_injector", ["serve", "--port=0"], ["click", "carpool_injector.webhook.service"]),
    "carpool-predictor": ("carpool_predictor", ["--port=0"], ["asyncio", "carpool_predictor.server"]),
}
MOMENTS = [(prog, moment) for prog, (_, _, modules) in SERVING.items() for moment in [*modules, "runner"]]
COMMANDS = [
    ("carpool_sidecar", ["plan"], "carpool_sidecar.planning.command"),
    ("carpool_injector", ["explain"], "carpool_injector.commands.explain"),
]


def run(number: str, moment: str, module: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, signalled.__file__, number, moment, module, *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 0)])
@pytest.mark.parametrize(("prog", "moment"), MOMENTS)
def test_a_signal_before_a_program_serves_ends_it_with_one_line(
    prog: str, moment: str, number: str, status: int
) -> None:
    module, arguments, _ = SERVING[prog]
    done = run(number, moment, module, arguments)
    assert (done.returncode, done.stderr) == (status, f"{prog}: {number} before it served: ends\n")


@pytest.mark.parametrize(("module", "arguments", "moment"), COMMANDS)
def test_a_command_that_is_interrupted_while_it_is_loaded_ends_with_130_and_no_word(
    module: str, arguments: list[str], moment: str
) -> None:
    done = run("SIGINT", moment, module, arguments)
    assert (done.returncode, done.stderr.strip()) == (130, "")


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("prog", SERVING)
def test_a_signal_while_python_ends_does_not_change_the_status_for_bad_settings(prog: str, number: str) -> None:
    module, arguments, _ = SERVING[prog]
    done = run(number, "end", module, [*arguments, "--port=no"])
    assert done.returncode == 2
    assert number not in done.stderr


def test_what_signals_need_at_the_start_is_loaded_before_what_takes_long() -> None:
    told = "import carpool.program.signals, sys; print({'asyncio', 'pydantic', 'logging'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", told], capture_output=True, text=True).stdout == "set()\n"
