"""Files of local clones, at the commit that is asked for, without a work tree: `git cat-file`, one process each."""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Iterable, Iterator

_SUFFIXES = (".yaml", ".yml", ".json")


class Missing(Exception):
    """A clone, a commit or a file is not there; the text says which."""


def find(folder: pathlib.Path, name: str) -> pathlib.Path:
    """The clone of a repository: `owner/name`, `owner+name` or `owner+name/repo` below the folder. Raises Missing."""
    for candidate in (folder / name, folder / name.replace("/", "+") / "repo", folder / name.replace("/", "+")):
        if candidate.is_dir():
            return candidate
    raise Missing(f"{name}: no clone in {folder}")


def head(clone: pathlib.Path) -> str:
    """The commit that is checked out, or would be. Raises Missing."""
    return _git(clone, "rev-parse", "HEAD").strip()


def manifests(clone: pathlib.Path, commit: str) -> list[str]:
    """Paths that end as manifests do. Raises Missing."""
    paths = _git(clone, "ls-tree", "-r", "-z", "--name-only", commit).split("\0")
    return sorted(path for path in paths if path.endswith(_SUFFIXES))


def contents(clone: pathlib.Path, commit: str, paths: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
    """What the files hold, in their order; None for one that the clone has not (a shallow one without large files)."""
    command = ["git", "-C", str(clone), "cat-file", "--batch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdin is None or process.stdout is None:
            raise Missing(f"{clone}: git answers nothing")
        for path in paths:
            process.stdin.write(f"{commit}:{path}\n".encode())
            process.stdin.flush()
            header = process.stdout.readline().split()
            if len(header) != 3 or header[1] != b"blob":
                yield path, None
                continue
            yield path, process.stdout.read(int(header[2]))
            process.stdout.read(1)
        process.stdin.close()


def _git(clone: pathlib.Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(clone), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"{clone}: {done.stderr.strip()}")
    return done.stdout
