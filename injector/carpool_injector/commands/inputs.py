"""What subcommands read and write: options about the cluster, and manifest files.

All files are read and changed before the first one is written. A file is replaced as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import os
import re
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
from carpool_injector.objects import manifests, other_kinds, overlays, workloads

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
    """A file, what it says afterwards, and what became of its objects. `has_pods`: some of them describe pods."""

    file: File
    text: str
    reports: tuple[manifests.Report, ...]
    has_pods: bool

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


def read_manifests(
    names: Sequence[str], problems: list[str] | None = None
) -> Iterator[tuple[File, list[reading.Node]]]:
    """The files, and the manifests in directories, with their documents; nothing named is "-".

    Raises Problem; with a list of `problems`, what is wrong with a file is added to it and the others are read.
    """
    if not names and sys.stdin.isatty():
        raise cli.Problem('name files or directories, or pipe a manifest in ("-" reads what is typed)')
    with cli.told(Unusable):
        found = list(find(names or (STDIN,)))
    for name in found:
        try:
            if _is_output(name):
                raise Unusable(f"{name}: the output goes to it as well, and the shell empties it first; use --in-place")
            file = read_file(name, sys.stdin.buffer)
            documents = reading.parse(file.text, file.name)
        except (Unusable, reading.Unreadable) as error:
            if problems is None:
                raise cli.Problem(str(error)) from error
            problems.append(str(error))
        else:
            yield file, documents


def _is_output(name: str) -> bool:
    """Whether standard output goes to this file."""
    with contextlib.suppress(OSError, ValueError):  # there is no such file, or no standard output
        found = os.stat(name)
        return stat.S_ISREG(found.st_mode) and os.path.samestat(found, os.fstat(sys.stdout.fileno()))
    return False


Read = Sequence[tuple["File", Sequence[reading.Node]]]
"""Files with their documents."""


def beside(injector: manifests.Injector, read: Read) -> manifests.Injector:
    """The injector that knows the Services, the Namespaces and the patches in these files."""
    sources = [overlays.Source(str(file.path or ""), [each.data for each in documents]) for file, documents in read]
    things = [content for source in sources for content in source.contents]
    laid, signs = overlays.read(sources, _resolved, _in_text)
    return dataclasses.replace(
        injector,
        around=tuple(workloads.of_kinds(things, surroundings.KINDS)),
        namespaces=workloads.namespaces(things),
        patches=laid,
        patch_signs=signs,
    )


def _resolved(path: str, beside: str) -> str:
    if not path:
        return ""
    return os.path.realpath(os.path.join(os.path.dirname(path), beside) if beside else path)


def _in_text(text: str) -> Sequence[Any]:
    try:
        return reading.contents(text, "a patch")
    except reading.Unreadable:  # which kustomize will tell of
        return ()


def about_kustomizations(read: Read) -> str:
    """A warning where some lay patches over objects, which may undo what is done to these in their own files."""
    names = [file.name for file, documents in read for each in documents if overlays.laid_over(each.data)]
    if not names:
        return ""
    rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"patches of {names[0]}{rest} are laid over objects later, and may undo what was done here: better render "
        "first, kubectl kustomize DIRECTORY | carpool-injector inject"
    )


def change(read: Read, wanted: manifests.Change) -> list[Work]:
    """What becomes of each file. Raises Problem."""
    done = []
    for file, documents in read:
        results = [manifests.apply(document.data, wanted) for document in documents]
        with cli.told(reading.Unreadable):
            text = editing.edited(file.text, documents, [after for after, _ in results], file.name)
        things = [thing for document in documents for thing in workloads.objects(document.data)]
        has_pods = any(map(other_kinds.concerns_pods, things))
        done.append(Work(file, text, tuple(report for _, reports in results for report in reports), has_pods))
    return done


def finish(done: Sequence[Work], output: Output, nothing: str, warning: str = "") -> int:
    """Write what is to be written, tell what was done, and return the exit status.

    `nothing` is why nothing was done to objects that describe pods, `warning` is for where something was injected.
    1: something that was asked for was refused, or `check` found something to change.
    """
    _write(done, output)
    for work in done:
        for report in work.reports:
            _tell(work.file.name, report)
    counted = Counter(report.result for work in done for report in work.reports)
    if warning and counted["injected"]:
        _say(f"{click.style('warning', fg='yellow')}: {warning}")
    summary = ", ".join(f"{number} {result}" for result, number in counted.items())
    _say(summary or f"nothing to do: {_why_nothing(done, nothing)}")
    if counted["refused"]:
        return 1
    return int(output.check and any(work.is_changed for work in done))


def _why_nothing(done: Sequence[Work], nothing: str) -> str:
    if any(work.has_pods for work in done):
        return nothing
    if any(work.file.text.strip() for work in done):
        return "no object in there makes pods"
    return "what was read is empty; output that goes to the same file empties it first, for which there is --in-place"


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
_BOM = "\ufeff"
# Where a document of a stream begins, and so where a file begins that was joined to others by kubectl or cat.
_DIVIDER = re.compile(r"(^---(?:[ \t][^\n]*)?\r?\n)", re.MULTILINE)
SUFFIXES = (".yaml", ".yml", ".json")
"""Of the files in a directory these are read."""


class Unusable(ValueError):
    """A file that cannot be found, read or written; the text says which one and why."""


@dataclass(frozen=True, slots=True)
class File:
    """A manifest's text, line ends as they are, without byte order marks: `marked` are the documents that have one.

    `path` is None for what was piped in. Documents are counted by the lines with `---` in front of them.
    """

    name: str
    path: Path | None
    text: str
    marked: frozenset[int] = frozenset()


_KUSTOMIZATION = "Kustomization"  # which kustomize reads as well as kustomization.yaml


def find(names: Iterable[str]) -> Iterator[str]:
    """Files as named, and the manifests in directories, below them too, in the order of their paths.

    Hidden files and directories inside of directories are left out. Raises Unusable for what is not there.
    """
    for name in names:
        if name == STDIN or not Path(name).is_dir():
            yield name
            continue
        is_manifest = (path for path in Path(name).rglob("*") if path.suffix in SUFFIXES or path.name == _KUSTOMIZATION)
        found = [path for path in is_manifest if path.is_file()]
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
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Unusable(f"{shown}:{line}: is not UTF-8; save it as UTF-8") from None
    parts = _DIVIDER.split(text.removeprefix(_BOM))  # text and dividers in turn
    marked = {number for number, part in enumerate(parts[::2]) if part.startswith(_BOM)}
    marked |= {0} if text.startswith(_BOM) else set()
    text = "".join(part.removeprefix(_BOM) for part in parts)
    return File(shown, None if name == STDIN else Path(name), text, frozenset(marked))


def encoded(file: File, text: str) -> bytes:
    """The bytes of a file with this text in place of its own."""
    parts = _DIVIDER.split(text)
    return "".join(
        _BOM * (number % 2 == 0 and number // 2 in file.marked) + part for number, part in enumerate(parts)
    ).encode()


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
