"""What `carpool.dev/lists` may say: names of rules that are built into the sidecar, files of rules, or rules as YAML.

The sidecar reads the value when it starts and ends at once where it cannot; the pod would then never be ready. So all
that can be known before is checked here.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Sequence

from carpool_injector.core import list_form, plain_yaml

_MOST_YAML = 16 * 1024  # bytes; a rule has a few hundred, and one argument of a program at most 128 KiB (Linux)
_MOST_NAMES = 32
_FILE = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}){1,16}", re.ASCII)
WITH_QUERY = [name for name, fields in list_form.BUILT_IN.items() if "query" in fields]
"""The built-in rules of rerank requests, which can become pairs."""

_ALLOWED = (
    f"must be built-in rules ({', '.join(list_form.BUILT_IN)}) or absolute paths of mounted YAML files, "
    "comma-separated; or rules as YAML text"
)


def check(text: str) -> str:
    """The value, if the sidecar can use it; else a ValueError that says what is allowed."""
    if not text:
        return text  # none at all
    problem = _problem_of_yaml(text) if is_yaml(text) else next(_problems_of_names(text.split(",")), "")
    if problem:
        raise ValueError(problem)
    return text


def is_yaml(text: str) -> bool:
    """Whether a value is YAML itself, by which the sidecar tells it from names."""
    return "\n" in text.strip() or text.lstrip().startswith("{")


def files(text: str) -> list[str]:
    """The files that a value names."""
    return [] if is_yaml(text) else [each for each in text.split(",") if "/" in each]


def has_query(text: str) -> bool:
    """Whether a value that was checked has a rule of rerank requests, as far as it can be known: a file may."""
    if not is_yaml(text):
        return any(name in WITH_QUERY or "/" in name for name in text.split(","))
    found = plain_yaml.read(text)
    return any(fields.get("query") or fields.get("extends") in WITH_QUERY for fields in found.values())


def _problems_of_names(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if name not in list_form.BUILT_IN and not _FILE.fullmatch(name):
            nearest = difflib.get_close_matches(name[:64], list_form.BUILT_IN, n=1, cutoff=0.5)
            yield f"{_ALLOWED}{f'; did you mean {nearest[0]}?' if nearest else ''}"
    if len(names) > _MOST_NAMES:
        yield f"must name at most {_MOST_NAMES} rules and files"
    if len(set(names)) < len(names):
        yield "must name each rule and each file once"


@functools.lru_cache(maxsize=64)
def _problem_of_yaml(text: str) -> str:
    """What is wrong with rules as YAML, in words; kept, because both webhooks and every pod of a workload ask."""
    if len(text.encode("utf-8", "surrogatepass")) > _MOST_YAML:
        return f"must have at most {_MOST_YAML:,} bytes of YAML text; put longer rules into a file"
    try:
        found = plain_yaml.read(text)
    except ValueError as error:
        return f"must be YAML: {error}"
    return next(list_form.problems(found), "")
