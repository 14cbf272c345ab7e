"""What a container runs: the program, the words behind it, and what a shell's command line runs in turn.

Pure: a container's words in, programs out. Of a shell nothing is certain but what may be run there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from carpool_injector.core import pods

_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "busybox"}
# Programs that run the words behind them, once their own flags are over.
_LAUNCHERS = {
    "tini", "dumb-init", "env", "exec", "nice", "nohup", "nvidia_entrypoint.sh", "opentelemetry-instrument",
    "ddtrace-run", "newrelic-admin", "run-program", "npx", "bunx",
}  # fmt: skip
_RUNNERS = {"uv", "poetry", "pipenv", "pdm", "hatch"}  # with the subcommand run
_PYTHON = re.compile(r"python[0-9.]*", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.ASCII | re.DOTALL)
_ENDS_OF_COMMANDS = re.compile(r"&&|\|\||[;|&\n]|^[\s({]+|\s[({]\s")
_LONGEST = 16 * 1024  # characters: a command line; splitting takes a second for each million
_FARTHEST = 8  # words before a subcommand: a program's own options, some with a value


@dataclass(frozen=True, slots=True)
class Invocation:
    """`program` without folders ("" where the image's entrypoint decides), and the words behind it.

    `variables` are set in front of the program, past those of the container.
    """

    program: str
    behind: tuple[str, ...]
    is_shell: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)

    def has_subcommand(self, words: str) -> bool:
        """Whether these words, with blanks between them, come first behind the program's own options."""
        wanted = tuple(words.split())
        for at in range(min(len(self.behind), _FARTHEST)):
            if self.behind[at : at + len(wanted)] == wanted:
                return True
            if not self.behind[at].startswith("-") and not (at and self.behind[at - 1].startswith("-")):
                return False
        return False


def of(container: pods.Container) -> Invocation:
    """What the container runs."""
    words = container.words
    if not container.command:
        behind = _behind_launchers(words, {})
        if not behind or behind[0].startswith("-") or "=" in behind[0]:
            return Invocation("", tuple(behind))
    return _invocation(words)


def in_shell(container: pods.Container) -> Iterator[Invocation]:
    """What a shell that the container runs may run in turn, as far as its words tell."""
    run = of(container)
    if not run.is_shell:
        return
    for text in run.behind:
        for part in _ENDS_OF_COMMANDS.split(text.replace("\\\n", " ")):
            words = split(part)
            if words:
                yield _invocation(words, assigns=True)


def split(text: str) -> list[str]:
    """Words as a shell would split them; by blanks where a quote is not closed, or the text is a long script."""
    if len(text) > _LONGEST:
        return text.split()
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _invocation(words: Sequence[str], assigns: bool = False) -> Invocation:
    variables: dict[str, str] = {}
    rest = _behind_launchers(words, variables, assigns)
    if rest and _PYTHON.fullmatch(_file_name(rest[0])):
        rest = _behind_python(rest[1:])
    program = _file_name(rest[0]) if rest else "?"
    is_shell = program in _SHELLS or program.endswith(".sh")
    return Invocation(program, tuple(rest[1:]), is_shell, variables)


def _behind_launchers(words: Sequence[str], variables: dict[str, str], assigns: bool = False) -> list[str]:
    """The words without launchers, their flags and the `variables` that are set there; `assigns`: in a shell."""
    rest = list(words)
    while rest:
        name = _file_name(rest[0])
        if assigns and (found := _ASSIGNMENT.fullmatch(rest[0])):
            variables[found[1]] = found[2]
            rest = rest[1:]
        elif name in _LAUNCHERS | _RUNNERS:
            assigns = True
            rest = rest[1:]
            if name in _RUNNERS and rest and rest[0] == "run":
                rest = rest[1:]
            while rest and rest[0].startswith("-"):
                rest = rest[1:]
        else:
            break
    return rest


def _behind_python(words: list[str]) -> list[str]:
    """The module of `-m`, or the script, and what follows."""
    for at, word in enumerate(words):
        if word == "-m":
            return words[at + 1 :]
        if not word.startswith("-") or word == "-c":
            return words[at:]
    return []


def _file_name(word: str) -> str:
    return word.rpartition("/")[2]
