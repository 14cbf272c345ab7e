"""Which program a container runs, as far as its command and arguments tell.

With a command it is the command's first word; without one the image's entrypoint runs, which is not seen here, and
arguments that begin with a word are taken for a program of their own, as entrypoints like tini and Triton's do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from carpool_injector.core import pods

_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "busybox"}
# Programs that run the words behind them, once their own flags are over.
_LAUNCHERS = {
    "tini", "dumb-init", "env", "exec", "nice", "nvidia_entrypoint.sh", "opentelemetry-instrument", "ddtrace-run",
    "newrelic-admin", "run-program",
}  # fmt: skip
_RUNNERS = {"uv", "poetry", "pipenv", "pdm", "hatch"}  # with the subcommand run
_PYTHON = re.compile(r"python[0-9.]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Invocation:
    """`program` without folders ("" where the image's entrypoint decides), and the first word behind it."""

    program: str
    subcommand: str
    is_shell: bool


def of(container: pods.Container) -> Invocation:
    """What the container runs."""
    words = _launched(list(container.words))
    if not container.command and (not words or words[0].startswith("-")):
        return Invocation("", "", False)
    if words and _PYTHON.fullmatch(_name(words[0])):
        words = _python(words[1:])
    program = _name(words[0]) if words else "?"
    subcommand = next((word for word in words[1:2] if not word.startswith("-")), "")
    is_shell = program in _SHELLS or program.endswith(".sh")
    return Invocation(program, subcommand, is_shell)


def _launched(words: list[str]) -> list[str]:
    """The words without launchers, their flags and their variables."""
    while words and _name(words[0]) in _LAUNCHERS | _RUNNERS:
        is_runner = _name(words[0]) in _RUNNERS
        words = words[1:]
        if is_runner and words and words[0] == "run":
            words = words[1:]
        while words and (words[0].startswith("-") or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=.*", words[0])):
            words = words[1:]
    return words


def _python(words: list[str]) -> list[str]:
    """The module of `-m`, or the script, and what follows."""
    for at, word in enumerate(words):
        if word == "-m":
            return words[at + 1 :]
        if not word.startswith("-") or word == "-c":
            return words[at:]
    return []


def _name(word: str) -> str:
    return word.rpartition("/")[2]
