"""Reads the journey's page as commands, in the order in which a reader copies them, by the heading of their step."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).with_name("README.md")
ROOT = Path(__file__).parents[3]
# A step of the project's README.
FIRST_TEN_MINUTES = "The first ten minutes in a cluster"
STEP_SECONDS = 300.0

_HEADING = re.compile(r"^## (?P<heading>.+)$", re.MULTILINE)
_COMMANDS = re.compile(r"^```sh\n(?P<commands>.*?)^```$", re.MULTILINE | re.DOTALL)


class Step(NamedTuple):
    """One heading of the page and the commands below it; "" where there are none."""

    heading: str
    commands: str


class Failed(Exception):
    """A step's commands did not end well. The message has them, and all that they printed."""


def steps(page: Path = PAGE) -> list[Step]:
    """The steps of a page, in order; with several blocks of commands below a heading they are one step."""
    parts = _HEADING.split(page.read_text())[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [Step(heading, "".join(_COMMANDS.findall(text))) for heading, text in pairs]


class Shell:
    """Runs steps as one shell does: from the repository's root, with the variables that earlier steps exported."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment` is what the reader has exported before the first step."""
        self._environment = {**environment}

    def run(self, step: Step) -> str:
        """What the step prints. Raises Failed where one of its commands fails, or after 5 minutes."""
        with tempfile.NamedTemporaryFile("r") as exported:
            script = f"set -eu -o pipefail\n{step.commands}\nenv -0 > {exported.name}\n"
            command = ["timeout", f"{STEP_SECONDS:g}", "bash", "-c", script]
            done = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True)
            if done.returncode:
                raise Failed(
                    f"## {step.heading}: status {done.returncode}\n{step.commands}\n{done.stdout}{done.stderr}"
                )
            self._environment = dict(pair.split("=", 1) for pair in exported.read().split("\0") if pair)
        return done.stdout + done.stderr


def environment_with(folders: str, **more: str) -> dict[str, str]:
    """This process's environment with folders in front of PATH, and more variables."""
    return {**os.environ, "PATH": f"{folders}:{os.environ['PATH']}", **more}
