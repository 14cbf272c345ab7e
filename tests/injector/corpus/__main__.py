"""Runs explain and inject over the corpus: manifests of public repositories, in local clones, at the commits listed.

python -m tests.injector.corpus CLONES [--write]
    Say what crashes, what does not come back to the byte, how decisions are spread, and which of them are other than
    the list says. --write puts those into the list; what was judged keeps its judgement, marked where it changed.

python -m tests.injector.corpus CLONES --list OWNER/NAME ...
    Put these repositories into the list as their clones are: all their manifests with objects that make pods.

The exit status is 1 where something crashed, was changed, or is other than the list says.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys
from collections.abc import Iterator

from tests.injector.corpus import clones, listing, runs

_MOST = 60  # objects in a file: beyond it stand dumps for load tests
_OTHER_THAN_JUDGED = "JUDGED OTHERWISE: "


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clones", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--list", nargs="+", default=[], metavar="OWNER/NAME")
    given = parser.parse_args(words)
    try:
        repositories = listing.read(listing.LIST.read_text() if listing.LIST.exists() else "")
        if given.list:
            names = {repository.name: repository for repository in repositories}
            names |= {name: _chosen(given.clones, name) for name in given.list}
            listing.LIST.write_text(listing.write(names[name] for name in sorted(names, key=str.lower)))
            return 0
        return _compare(given.clones, repositories, given.write)
    except clones.Missing as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _chosen(folder: pathlib.Path, name: str) -> listing.Repository:
    clone = clones.find(folder, name)
    found = listing.Repository(name, clones.head(clone))
    paths = clones.manifests(clone, found.commit)
    for path, content in clones.contents(clone, found.commit, paths):
        if content is None or len(content) > runs.LARGEST or b"kind" not in content:
            continue
        result = runs.run(path, content)
        if 0 < len(result.entries) <= _MOST:
            found.files.append(listing.Listed(path, result.entries))
    return found


def _compare(folder: pathlib.Path, repositories: list[listing.Repository], write: bool) -> int:
    said = _Said()
    for repository in repositories:
        clone = clones.find(folder, repository.name)
        contents = clones.contents(clone, repository.commit, [file.path for file in repository.files])
        for file, (path, content) in zip(repository.files, contents, strict=True):
            if content is None:
                raise clones.Missing(f"{clone}: {repository.commit} has no file {path}")
            said.add(f"{repository.name} {path}", file, runs.run(path, content))
    if write:
        listing.LIST.write_text(listing.write(repositories))
    sys.stdout.write("".join(f"{line}\n" for line in said.lines()))
    return int(said.is_wrong)


class _Said:
    """Counts and collects what is told in the end. `add` brings the list up to date as it goes."""

    def __init__(self) -> None:
        self.files = 0
        self.decisions: collections.Counter[str] = collections.Counter()
        self.problems: list[str] = []
        self.differences: list[str] = []
        self.judged = 0

    @property
    def is_wrong(self) -> bool:
        return bool(self.problems or self.differences)

    def add(self, where: str, file: listing.Listed, result: runs.Result) -> None:
        self.files += 1
        self.problems += [f"{where}: crash\n{text}" for text in result.crashes]
        if result.unreadable or result.changed:
            self.problems.append(f"{where}: {result.unreadable or result.changed}")
        for at, entry in enumerate(result.entries):
            before = file.entries[at] if at < len(file.entries) else None
            self.decisions[_kind(entry.decision)] += 1
            if before is None or (before.name, before.decision) != (entry.name, entry.decision):
                self._differs(where, before, entry)
            elif before.judgement:
                entry.judgement = before.judgement
            self.judged += bool(entry.judgement)
        if len(file.entries) > len(result.entries):
            self.differences.append(f"{where}: {len(file.entries) - len(result.entries)} objects fewer than listed")
        file.entries = result.entries

    def _differs(self, where: str, before: listing.Entry | None, entry: listing.Entry) -> None:
        was = f"was {before.decision}" if before else "is not listed"
        judged = f" ({before.judgement})" if before and before.judgement else ""
        self.differences.append(f"{where}: {entry.name}: {entry.decision}; {was}{judged}")
        if before and before.judgement:
            said = before.judgement.removeprefix(_OTHER_THAN_JUDGED)
            entry.judgement = f"{_OTHER_THAN_JUDGED}{said}"

    def lines(self) -> Iterator[str]:
        yield f"{self.files} files, {sum(self.decisions.values())} objects, {self.judged} of them judged"
        for kind, number in self.decisions.most_common():
            yield f"{number:6} {kind}"
        for title, found in (("problems", self.problems), ("other than the list says", self.differences)):
            yield f"{len(found)} {title}"
            yield from (f"  {text}" for text in found)


def _kind(decision: str) -> str:
    """The decision without what differs from pod to pod."""
    return decision.partition(" of ")[0].partition(" beside ")[0].partition(": ")[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
