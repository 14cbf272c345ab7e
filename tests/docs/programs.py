"""Programs in the documents: the Python of a page, section by section, as a reader would put it into a file and run it.

The blocks between two headings are one program. A block of `text` after them shows all that the program prints; `…`
stands for what differs from run to run.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

STAND_INS = pathlib.Path(__file__).with_name("stand_ins")
_FENCE = re.compile(r"```(\w*)")


@dataclasses.dataclass(frozen=True)
class Program:
    """`source` stands on the lines that it has in the page, so that a traceback names them.

    `printed` is None if the page does not show it.
    """

    page: pathlib.Path
    heading: str
    source: str
    printed: str | None

    @property
    def needs(self) -> set[str]:
        """The packages that it imports."""
        nodes = list(ast.walk(ast.parse(self.source)))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
        return {name.partition(".")[0] for name in names}


def of(page: pathlib.Path) -> Iterator[Program]:
    """Every program of a page, in its order."""
    heading, fence = "", ""
    lines: list[str] = []
    source, printed = [], []
    shown = False
    for number, line in enumerate([*page.read_text().splitlines(), "# end"], start=1):
        if fence:
            if line.strip() == "```":
                if fence == "python":
                    source += [""] * (number - len(lines) - 1 - len(source)) + lines
                elif fence == "text" and source:
                    shown = True
                    printed += lines
                fence = ""
            else:
                lines.append(line)
        elif (opened := _FENCE.fullmatch(line)) is not None:
            fence, lines = opened[1] or "none", []
        elif line.startswith("#"):
            if source:
                output = "\n".join(printed) if shown else None
                yield Program(page, heading, "\n".join(source) + "\n", output)
            heading, source, printed, shown = line.lstrip("# "), [], [], False


def run(source: str, folder: pathlib.Path) -> str:
    """What the program prints. It runs in an interpreter of its own, where a warning is an error.

    Raises AssertionError if it ends with an error or says anything to stderr, and `subprocess.TimeoutExpired` if it
    takes a minute.
    """
    script = folder / "program.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": str(STAND_INS)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def is_shown(printed: str, shown: str) -> bool:
    """Whether a program printed what the page shows, `…` being anything."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split("…"))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None
