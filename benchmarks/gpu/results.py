"""The figures of runs as JSON: written after each section, and those of several runs put together.

A file has the facts of its run (machine, GPU, versions, command, date) and its sections by name. Sections of several
files are one set: of a section that is in two, the one that was read last counts. Each keeps the facts of its own run.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import command_line, machine, report
from benchmarks.gpu import gauges, systems

PROGRAM = "benchmarks.gpu"
_PLACES = re.compile(r" --(json|out) \S+")  # options that change no figure
_PACKAGES = ("transformers", "tokenizers", "numpy", "nvidia-ml-py", "httptools", "orjson")


class NotResults(ValueError):
    """A file that has no figures of this program; `str()` says which and why."""


@dataclass(frozen=True)
class Section:
    """The figures of one section, by its name, and the facts of the run that they are from."""

    name: str
    content: dict[str, Any]
    facts: dict[str, Any]

    @property
    def kind(self) -> str:
        """What was measured, without of which model: `policy` of `policy-minilm`."""
        return self.name.partition("-")[0]


def facts(gpu: gauges.Gpu, device: str, cores: systems.Cores, load: str) -> dict[str, Any]:
    """Everything that the figures of a run depend on."""
    here = machine.describe()
    here["packages"] |= versions(_PACKAGES)
    return {
        "command": command_line.as_typed(PROGRAM),
        **machine.provenance(),
        "machine": here,
        "device": device,
        "gpu": gpu.facts(),
        "pinned": cores.is_pinned,
        "load": load,
    }


def versions(names: Sequence[str]) -> dict[str, str]:
    """Of those packages that are installed."""
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def write(file: pathlib.Path, sections: Sequence[Section], run: dict[str, Any]) -> None:
    """The sections of one run."""
    report.write(file, {"facts": run, "sections": {section.name: section.content for section in sections}})


def read(files: Sequence[pathlib.Path]) -> list[Section]:
    """All sections of these files, in the order of their first appearance. Raises `NotResults`."""
    found: dict[str, Section] = {}
    for file in files:
        try:
            content = json.loads(file.read_text())
            run, sections = content["facts"], content["sections"]
            pairs = [(str(name), dict(section)) for name, section in sections.items()]
        except OSError as error:
            raise NotResults(f"{file} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise NotResults(f"{file} has no figures: allowed is what `python -m {PROGRAM}` wrote") from None
        for name, section in pairs:
            found[name] = Section(name, section, run)
    return list(found.values())


def heading(run: dict[str, Any]) -> str:
    """Where, when and with what, in a line of Markdown."""
    here, gpu = run["machine"], run["gpu"]
    # Of a tree with changes the commit says nothing.
    commit = f", {run['commit'][:12]}" if run["commit"] and not run["uncommitted_changes"] else ""
    command = _PLACES.sub("", run["command"])
    names = ("torch", "transformers", "aiohttp", "uvloop", "msgspec")
    packages = ", ".join(f"{name} {here['packages'][name]}" for name in names if name in here["packages"])
    card = f"{gpu['name']}, driver {gpu['driver']}, CUDA {gpu['cuda']}; " if gpu else "no GPU; "
    pinned = "processes pinned" if run["pinned"] else "nothing pinned"
    where = f"{card}{here['cpu']}, {here['usable_cores']} cores, {pinned}; Python {here['python']}, {packages}"
    return f"`{command}`, {run['date']}{commit}; {where}; load by {run['load']}."
