"""What a container runs: the program, the words behind it, and what a shell's command line runs in turn.

Pure: a container's words in, programs out. Of a shell nothing is certain but what may be run there.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from carpool_injector.core import pods

_SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh", "fish"}
# Programs that run the words behind them: their options that have a value, and how many words else come first.
_LAUNCHERS: Mapping[str, tuple[str, int]] = {
    **dict.fromkeys(
        ("busybox", "catatonit", "nohup", "nvidia_entrypoint.sh", "opentelemetry-instrument", "ddtrace-run",
         "newrelic-admin", "run-program", "setsid", "time", "eval", "builtin", "command"),
        ("", 0),
    ),
    **dict.fromkeys(("npx", "bunx", "uvx"), ("-p --package --with --from --python --index-url --env-file", 0)),
    **dict.fromkeys(("gosu", "su-exec", "s6-setuidgid"), ("", 1)),
    "tini": ("-p -e", 0),
    "dumb-init": ("-r --rewrite", 0),
    "env": ("-u --unset -C --chdir", 0),
    "exec": ("-a", 0),
    "nice": ("-n --adjustment", 0),
    "ionice": ("-c -n --class --classdata", 0),
    "chrt": ("", 1),
    "taskset": ("", 1),
    "timeout": ("-k -s --kill-after --signal", 1),
    "stdbuf": ("-i -o -e --input --output --error", 0),
    "numactl": ("-N -m -C -i -p --cpunodebind --membind --physcpubind --interleave --preferred", 0),
    "strace": ("-e -o -s -u -E -a -O -S -P", 0),
    "setpriv": ("--reuid --regid --groups --inh-caps --bounding-set --ambient-caps --securebits", 0),
    "runuser": ("-u --user -g --group", 0),
}  # fmt: skip
# Likewise with the subcommand run.
_RUNNERS: Mapping[str, str] = {
    "uv": "--with --with-editable --with-requirements --project --directory --python -p --extra --group --env-file "
          "--package --index --index-url --default-index",
    "poetry": "-C --directory -P --project",
    "pipenv": "",
    "pdm": "-p --project",
    "hatch": "-e --env",
    "rye": "--pyproject",
    "pipx": "--spec --python --index-url --pip-args",
    **dict.fromkeys(("conda", "mamba", "micromamba"), "-n --name -p --prefix --cwd"),
}  # fmt: skip
_PYTHON = re.compile(r"python[0-9.]*", re.ASCII)
_OPTION_OF_PYTHON = re.compile(r"-[A-Zabd-ln-z]*?([mcXW])(.*)", re.ASCII | re.DOTALL)  # that end with a value
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.ASCII | re.DOTALL)
_ENDS_OF_COMMANDS = re.compile(r"(&&|\|\||[;|\n]|(?<!>)&(?!>)|^[\s({]+|\s[({]\s)")
_KEYWORDS = {"if", "then", "else", "elif", "while", "until", "do", "!"}
_OPENING, _CLOSING = {"if", "while", "until", "for", "case", "select"}, {"fi", "done", "esac"}
_TESTS = {"[", "[[", "test"}
_PARAMETER = re.compile(r'"?\$(?:\{([0-9@*])\}|([0-9@*]))"?', re.ASCII)
_DEEPEST = 4  # shells within shells
# So that a text that doubles a variable time and again stays small.
_LONGEST_VALUE, _MOST_REFERENCES = 512, 64
_LONGEST = 16 * 1024  # characters: a command line; splitting takes a second for each million
_MOST_COMMANDS = 512  # that are read of a shell's, one by one
_FARTHEST = 8  # words before a subcommand: a program's own options, some with a value


@dataclass(frozen=True, slots=True)
class Invocation:
    """`program` without folders ("" where the image's entrypoint decides), and the words behind it.

    `variables` are set in front of the program, past those of the container; None: to what is not known.
    """

    program: str
    behind: tuple[str, ...]
    is_shell: bool = False
    variables: Mapping[str, str | None] = field(default_factory=dict)

    def has_setting(self, name: str, container: pods.Container) -> bool:
        """Whether this program of the container is given a flag or a variable."""
        if not name.startswith("-"):
            return self.variables.get(name) is not None or container.has_variable(name)
        return any(word == name or word.startswith(f"{name}=") for word in (*self.behind, *container.words))

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
        variables: dict[str, str | None] = {}
        behind = _behind_launchers(words, variables)
        if not behind or behind[0].startswith("-") or "=" in behind[0]:
            return Invocation("", tuple(behind), variables=variables)
    return of_words(words)


def in_shell(container: pods.Container) -> Iterator[Invocation]:
    """What a shell that the container runs may run in turn, as far as its words tell.

    Nothing where it runs more commands than anybody writes there: it is not known then, as a script in a file is not.
    """
    try:
        found = list(itertools.islice(_in_shell(of(container), container, 0), _MOST_COMMANDS + 1))
    except _TooLong:
        return iter(())
    return iter(found if len(found) <= _MOST_COMMANDS else ())


class _TooLong(Exception):
    """A shell's text has too many commands."""


def _in_shell(run: Invocation, container: pods.Container, depth: int) -> Iterator[Invocation]:
    if not run.is_shell or depth == _DEEPEST:
        return
    text, words = _given_to_shell(run)
    if text:
        inner = _in_text(text, run.variables, container)
    else:
        found = of_words(words)
        inner = iter([replace(found, variables={**run.variables, **found.variables})] if words else [])
    for each in inner:
        yield each
        yield from _in_shell(each, container, depth + 1)


def _given_to_shell(run: Invocation) -> tuple[str, list[str]]:
    """The text that a shell runs, with its parameters in it; or the words behind its script, which may run them."""
    rest, has_text = list(run.behind), False
    if run.program in _SHELLS:
        while rest and rest[0][:1] in ("-", "+"):
            is_short = not rest[0].startswith("--")
            has_text = has_text or (is_short and "c" in rest[0])
            rest = rest[2 if is_short and rest[0].endswith("o") else 1 :]
        if has_text and rest:
            return _with_parameters(rest[0], rest[1:]), []
        rest = rest[1:]
    return (rest[0], []) if len(rest) == 1 and " " in rest[0] else ("", rest)


def _with_parameters(text: str, parameters: list[str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return shlex.join(parameters[1:] if name in "@*" else parameters[int(name) :][:1])

    is_short = text.count("$") * len(shlex.join(parameters)) < _LONGEST
    return _PARAMETER.sub(value, text) if is_short else text


def _in_text(text: str, given: Mapping[str, str | None], container: pods.Container) -> Iterator[Invocation]:
    """The programs of a shell's text, each with the variables that are exported before it."""
    exported, own = dict(given), dict(given)

    def short(value: str | None) -> str | None:
        return value if value is not None and len(value) <= _LONGEST_VALUE else None

    def known(name: str) -> str | None:
        return own[name] if name in own else short(container.variable(name))

    def as_options(name: str) -> str | None:
        value = known(name)
        return value if name in own or (value and value.startswith("-")) else None

    depth, may_be_skipped, before = 0, False, ""
    pieces = _ENDS_OF_COMMANDS.split(text.replace("\\\n", " "), maxsplit=_MOST_COMMANDS + 1)
    if len(pieces) > 2 * _MOST_COMMANDS + 1:
        raise _TooLong
    for part, end in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
        words = split(expanded(part, as_options, defaults=False) if part.count("$") < _MOST_REFERENCES else part)
        while words and words[0] in _KEYWORDS:
            depth += words[0] in _OPENING
            words = words[1:]
        if not words:
            continue
        depth += (words[0] in _OPENING) - (words[0] in _CLOSING)
        is_doubtful = depth > 0 or before == "||" or (before == "&&" and may_be_skipped)
        may_be_skipped, before = is_doubtful or words[0] in _TESTS, end
        exports = words[0] == "export"
        pairs = [(word, _ASSIGNMENT.fullmatch(word)) for word in words[exports:]]
        if not exports and not all(found for _, found in pairs):
            run = of_words(words, assigns=True)
            yield replace(run, variables={**exported, **run.variables})
            continue
        for word, found in pairs:
            name = found[1] if found else word
            if found:
                own[name] = None if is_doubtful or len(found[2]) > _LONGEST_VALUE else short(expanded(found[2], known))
            if name in own and (exports or own[name] is None or name in exported or container.has_variable(name)):
                exported[name] = own[name]


def expanded(text: str, variable: Callable[[str], str | None], defaults: bool = True) -> str:
    """With the variables that it refers to, as the kubelet or a shell would write them, as far as they are known.

    `defaults`: those that are not known have the value that stands beside them.
    """

    def value(found: re.Match[str]) -> str:
        known = variable(found[1] or found[2] or found[4])
        if known is None or (found[3] and not known):
            return found[3] if defaults and found[3] is not None else found[0]
        return known

    return re.sub(r"\$(?:\((\w+)\)|\{(\w+)(?::?-([^}]*))?\}|(\w+))", value, text, flags=re.ASCII)


def split(text: str) -> list[str]:
    """Words as a shell would split them; by blanks where a quote is not closed, or the text is a long script."""
    if len(text) > _LONGEST:
        return text.split()
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def of_words(words: Sequence[str], assigns: bool = False) -> Invocation:
    """What a command line runs; `assigns`: variables may be set in front, as in a shell."""
    variables: dict[str, str | None] = {}
    rest = _behind_launchers(words, variables, assigns)
    if rest and _PYTHON.fullmatch(_file_name(rest[0])):
        rest = _behind_python(rest[1:])
    program = _file_name(rest[0]) if rest else "?"
    is_shell = program in _SHELLS or program.endswith(".sh")
    return Invocation(program, tuple(rest[1:]), is_shell, variables)


def _behind_launchers(words: Sequence[str], variables: dict[str, str | None], assigns: bool = False) -> list[str]:
    """The words without launchers, their options and the `variables` that are set there.

    They begin with a launcher where it is not certain what it runs.
    """
    rest = list(words)
    while rest:
        if assigns and (found := _ASSIGNMENT.fullmatch(rest[0])):
            variables[found[1]] = found[2]
            rest = rest[1:]
            continue
        name = _file_name(rest[0])
        behind = _behind_launcher(name, rest[1:])
        if behind is None:
            break
        rest, assigns, options = behind, name == "env", rest[1 : len(rest) - len(behind)]
        variables.update((each, None) for each in _unset(options) if assigns)
    return rest


def _unset(options: Sequence[str]) -> Iterator[str]:
    """The variables that options of env take away."""
    for at, word in enumerate(options):
        found = re.fullmatch(r"(?:--unset=|-u)(.+)", word)
        yield from [found[1]] if found else options[at + 1 : at + 2] if word in ("-u", "--unset") else ()


def _behind_launcher(name: str, words: list[str]) -> list[str] | None:
    if name in _RUNNERS:
        valued = _RUNNERS[name].split()
        rest = _behind_options(words, valued)
        return _behind_options(rest[1:], valued) if rest[:1] == ["run"] else None
    if name not in _LAUNCHERS or (name == "command" and words[:1] in (["-v"], ["-V"])):
        return None
    if name == "env" and words[:1] in (["-S"], ["--split-string"]):
        return [*split(" ".join(words[1:2])), *words[2:]]
    if name == "env" and words[:1] in (["-i"], ["-"], ["--ignore-environment"]):
        return None  # whose program does not see what the container is given
    options, operands = _LAUNCHERS[name]
    return _behind_options(words, options.split())[operands:]


def _behind_options(words: list[str], valued: Sequence[str]) -> list[str]:
    """The words behind options, of which these have a value in the next word."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            return words[at + 1 :]
        at += 2 if words[at] in valued else 1
    return words[at:]


def _behind_python(words: list[str]) -> list[str]:
    """The module of `-m`, or the script, and what follows."""
    at = 0
    while at < len(words):
        found = _OPTION_OF_PYTHON.fullmatch(words[at])
        if found and found[1] == "m":
            return [*([found[2]] if found[2] else []), *words[at + 1 :]]
        if not words[at].startswith("-") or (found and found[1] == "c"):
            return words[at:]
        at += 2 if found and not found[2] else 1
    return []


def _file_name(word: str) -> str:
    return word.rpartition("/")[2]
