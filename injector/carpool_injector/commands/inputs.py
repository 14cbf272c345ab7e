"""What subcommands read and write: options about the cluster, and manifest files.

All files are read and changed before the first one is written. A file is replaced as a whole or not at all.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import difflib
import functools
import os
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click

from carpool_injector import cli, config_file
from carpool_injector.core import model, refusals, surroundings
from carpool_injector.core.config import Config
from carpool_injector.documents import editing, reading
from carpool_injector.objects import manifests, workloads

_Command = TypeVar("_Command", bound=Callable[..., Any])
_option = functools.partial(cli.option, heading="What the cluster would know")

_OPTIONS = (
    _option(
        "--config",
        metavar="FILE",
        variable=True,
        help="The admin's configuration, as `serve` has it. Without: the defaults.",
    ),
    _option(
        "--namespace", "-n", default="default", metavar="NAME", help="Namespace of objects that name none themselves."
    ),
    _option(
        "--namespace-labels",
        multiple=True,
        metavar="KEY=VALUE",
        help="A label that the namespace has, beside those of a Namespace in the files; may be repeated.",
    ),
    _option(
        "--namespace-annotations",
        multiple=True,
        metavar="KEY=VALUE",
        help="An annotation that the namespace has, likewise; may be repeated.",
    ),
    _option(
        "--kubernetes-version",
        variable=True,
        default="1.33",
        metavar="X.Y",
        help="The oldest version among API server and nodes: native sidecars need 1.29, their named ports 1.33.",
    ),
)


def options(command: _Command) -> _Command:
    """Adds the options, which `injector` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def injector(
    config: str | None,
    namespace: str,
    namespace_labels: Iterable[str],
    namespace_annotations: Iterable[str],
    kubernetes_version: str,
    **wanted: Any,
) -> manifests.Injector:
    """The injector as the options describe it. Raises cli.Problem and click.BadParameter."""
    with cli.told(refusals.BadConfig):
        chosen = config_file.load(Path(config)) if config else Config()
    labels = pairs(namespace_labels, "--namespace-labels")
    annotations = pairs(namespace_annotations, "--namespace-annotations")
    parts = kubernetes_version.removeprefix("v").split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdecimal() for part in parts[:2]):
        raise click.BadParameter(
            f"{kubernetes_version!r} is no version such as 1.33", param_hint="--kubernetes-version"
        )
    version = (int(parts[0]), int(parts[1]))
    in_force = model.Namespace(namespace, labels, annotations)
    return manifests.Injector(chosen, in_force, model.Capabilities.of(version, version), **wanted)


def pairs(values: Iterable[str], option: str) -> dict[str, str]:
    """KEY=VALUE as a mapping. Raises click.BadParameter."""
    found = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} must be KEY=VALUE", param_hint=option)
        found[key] = rest
    return found


_COLOURS = {"injected": "green", "opted in": "green", "removed": "green", "refused": "red", "skipped": "yellow"}


@dataclass(frozen=True, slots=True)
class Work:
    """A file, what it says afterwards, and what became of its objects."""

    file: File
    text: str
    reports: tuple[manifests.Report, ...]

    @property
    def is_changed(self) -> bool:
        return self.text != self.file.text


@dataclass(frozen=True, slots=True)
class Output:
    """Where results go: into the files, nowhere (only the exit status tells), as differences, or to standard output.

    `diff` shows what would change, and so does not go with `in_place`: raises click.UsageError.
    """

    in_place: bool = False
    check: bool = False
    diff: bool = False

    def __post_init__(self) -> None:
        if self.diff and self.in_place:
            raise click.UsageError("--diff only shows what would change: leave out --in-place, or --diff to change it")


def read_manifests(names: Sequence[str]) -> Iterator[tuple[File, list[reading.Document]]]:
    """The files, and the manifests in directories, with their documents; nothing named is "-". Raises Problem."""
    if not names and sys.stdin.isatty():
        raise cli.Problem('name files or directories, or pipe a manifest in ("-" reads what is typed)')
    with cli.told(Unusable, reading.Unreadable):
        for name in find(names or (STDIN,)):
            file = read_file(name, sys.stdin.buffer)
            yield file, reading.parse(file.text, file.name)


Read = Sequence[tuple["File", Sequence[reading.Document]]]
"""Files with their documents."""


def beside(injector: manifests.Injector, read: Read) -> manifests.Injector:
    """The injector that knows the Services and the Namespaces in these files."""
    things = [document.data for _, documents in read for document in documents]
    return dataclasses.replace(
        injector, around=tuple(workloads.of_kinds(things, surroundings.KINDS)), namespaces=workloads.namespaces(things)
    )


def change(read: Read, wanted: manifests.Change) -> list[Work]:
    """What becomes of each file. Raises Problem."""
    done = []
    for file, documents in read:
        results = [manifests.apply(document.data, wanted) for document in documents]
        with cli.told(reading.Unreadable):
            text = editing.edited(file.text, documents, [after for after, _ in results], file.name)
        done.append(Work(file, text, tuple(report for _, reports in results for report in reports)))
    return done


def finish(done: Sequence[Work], output: Output) -> int:
    """Write what is to be written, tell what was done, and return the exit status.

    1: something that was asked for was refused, or `check` found something to change.
    """
    _write(done, output)
    for work in done:
        for report in work.reports:
            _tell(work.file.name, report)
    counted = Counter(report.result for work in done for report in work.reports)
    summary = ", ".join(f"{number} {result}" for result, number in counted.items())
    _say(summary or "nothing to do: no object in there makes pods")
    if counted["refused"]:
        return 1
    return int(output.check and any(work.is_changed for work in done))


def _write(done: Sequence[Work], output: Output) -> None:
    if output.diff:
        with cli.printing():
            click.echo("".join(_difference(work) for work in done), nl=False)
    elif not output.check and not output.in_place:
        first = done[0].file if len(done) == 1 else File("", None, "")
        with cli.printing():
            sys.stdout.buffer.write(encoded(first, joined(work.text for work in done)))
    elif not output.check:
        with cli.told(Unusable):
            for work in done:
                if work.is_changed:
                    write_file(work.file, work.text)


def _difference(work: Work) -> str:
    before, after = work.file.text.splitlines(keepends=True), work.text.splitlines(keepends=True)
    lines = difflib.unified_diff(before, after, f"a/{work.file.name}", f"b/{work.file.name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _tell(name: str, report: manifests.Report) -> None:
    result = click.style(report.result, fg=_COLOURS.get(report.result), bold=report.result == "refused" or None)
    _say(f"{name}: {report.name}: {result}{f': {report.text}' if report.text else ''}")
    for warning in report.warnings:
        _say(f"  {click.style('warning', fg='yellow')}: {warning}")
    if report.fix:
        _say(f"  fix: {report.fix}")


def _say(line: str) -> None:
    click.echo(line, err=True, color=cli.wants_colour())


STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")
"""Of the files in a directory these are read."""


class Unusable(ValueError):
    """A file that cannot be found, read or written; the text says which one and why."""


@dataclass(frozen=True, slots=True)
class File:
    """A manifest's text, line ends as they are. `path` is None for what was piped in, `bom` what it began with."""

    name: str
    path: Path | None
    text: str
    bom: bool = False


def find(names: Iterable[str]) -> Iterator[str]:
    """Files as named, and the manifests in directories, below them too, in the order of their paths.

    Hidden files and directories inside of directories are left out. Raises Unusable for what is not there.
    """
    for name in names:
        if name == STDIN or not Path(name).is_dir():
            yield name
            continue
        found = [path for path in Path(name).rglob("*") if path.suffix in SUFFIXES and path.is_file()]
        shown = [path for path in found if not any(part.startswith(".") for part in path.relative_to(name).parts)]
        if not shown:
            raise Unusable(f"{name}: no manifest in this directory ({', '.join(SUFFIXES)})")
        yield from (str(path) for path in sorted(shown))


def read_file(name: str, stdin: BinaryIO) -> File:
    """The file of that name, "-" for what is piped in. Raises Unusable."""
    shown = "stdin" if name == STDIN else name
    try:
        content = stdin.read() if name == STDIN else Path(name).read_bytes()
    except OSError as error:
        raise Unusable(f"{name}: cannot be read: {error.strerror}") from None
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Unusable(f"{shown}:{line}: is not UTF-8; save it as UTF-8") from None
    return File(shown, None if name == STDIN else Path(name), text, content.startswith(codecs.BOM_UTF8))


def encoded(file: File, text: str) -> bytes:
    """The bytes of a file with this text in place of its own."""
    return (codecs.BOM_UTF8 if file.bom else b"") + text.encode()


def write_file(file: File, text: str) -> None:
    """Replace a file's text: nobody ever sees half of it, its mode stays, and a symbolic link keeps pointing at it.

    Raises Unusable.
    """
    if file.path is None:
        raise Unusable("what is piped in cannot be changed in place; leave --in-place out, or name files")
    path = file.path.resolve()
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as out:
                os.fchmod(handle, mode)
                out.write(encoded(file, text))
                out.flush()
                os.fsync(handle)
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            raise
    except OSError as error:
        raise Unusable(f"{file.name}: cannot be written: {error.strerror}") from None


def joined(texts: Iterable[str]) -> str:
    """Several manifests as one stream of documents."""
    result = ""
    for text in texts:
        if result and not result.endswith("\n"):
            result += "\n"
        divided = not result or text.startswith(("---", "%"))
        result += text if divided else f"---\n{text}"
    return result
