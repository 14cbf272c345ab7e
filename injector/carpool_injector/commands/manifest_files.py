"""From the files a command is given to the files it leaves behind: read all, change all, and only then write."""

from __future__ import annotations

import difflib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from carpool_injector.commands import usage
from carpool_injector.documents import edits, files, syntax
from carpool_injector.objects import manifests

_COLOURS = {"injected": "green", "opted in": "green", "removed": "green", "refused": "red", "skipped": "yellow"}


@dataclass(frozen=True, slots=True)
class Work:
    """A file, what it says afterwards, and what became of its objects."""

    file: files.File
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


def read(names: Sequence[str]) -> Iterator[tuple[files.File, list[syntax.Document]]]:
    """The files, and the manifests in directories, with their documents; nothing named is "-". Raises Problem."""
    if not names and sys.stdin.isatty():
        raise usage.Problem('name files or directories, or pipe a manifest in ("-" reads what is typed)')
    with usage.told(files.Unusable, syntax.Unreadable):
        for name in files.find(names or (files.STDIN,)):
            file = files.read(name, sys.stdin.buffer)
            yield file, syntax.parse(file.text, file.name)


def change(names: Sequence[str], wanted: manifests.Change) -> list[Work]:
    """What becomes of each file. Raises Problem."""
    done = []
    for file, documents in read(names):
        results = [manifests.apply(document.data, wanted) for document in documents]
        with usage.told(syntax.Unreadable):
            text = edits.edited(file.text, documents, [after for after, _ in results], file.name)
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
        with usage.printing():
            click.echo("".join(_difference(work) for work in done), nl=False)
    elif not output.check and not output.in_place:
        first = done[0].file if len(done) == 1 else files.File("", None, "")
        with usage.printing():
            sys.stdout.buffer.write(files.encoded(first, files.joined(work.text for work in done)))
    elif not output.check:
        with usage.told(files.Unusable):
            for work in done:
                if work.is_changed:
                    files.write(work.file, work.text)


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
    click.echo(line, err=True, color=usage.wants_colour())
