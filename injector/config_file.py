"""The admin's configuration from decoded YAML, or from the file it lies in, with every problem told at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from injector.core import errors, pod_annotations
from injector.core.config import Config


def load(path: Path) -> Config:
    """Config from a YAML or JSON file.

    Raises `errors.BadConfig` for a file that cannot be read, is no YAML, or has bad settings.
    """
    try:
        values = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise errors.BadConfig(f"{path}: cannot be read: {error.strerror}") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise errors.BadConfig(f"{path}: is no YAML: {' '.join(str(error).split())}") from None
    if values is not None and not isinstance(values, dict):
        raise errors.BadConfig(f"{path}: must be a mapping such as {{image: …}}, not {type(values).__name__}")
    try:
        return parse(values)
    except errors.BadConfig as error:
        raise errors.BadConfig(f"{path}: {error}") from None


def parse(values: Mapping[str, Any] | None) -> Config:
    """Config from decoded YAML or JSON; None (an empty file) gives the defaults.

    Raises `errors.BadConfig`, which names every bad field.
    """
    try:
        config = Config.model_validate(values or {})
    except pydantic.ValidationError as error:
        raise errors.BadConfig("; ".join(_problem(detail) for detail in error.errors(include_url=False))) from None
    problems = pod_annotations.problems_of_defaults(config)
    if problems:
        raise errors.BadConfig("; ".join(problems))
    return config


def _problem(detail: Any) -> str:
    where = ".".join(map(str, detail["loc"]))
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if detail["type"] == "extra_forbidden":
        return f"{where}: there is no such setting"
    if not where or not detail["loc"]:
        return str(message)
    return f"{where}: got {detail['input']!r}: {message}"
