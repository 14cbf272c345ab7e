"""The admin's configuration from decoded YAML, or from the file it lies in, with every problem told at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import yaml

from carpool_injector.core import pod_annotations, refusals
from carpool_injector.core.config import Config


class _Loader(yaml.SafeLoader):
    """PyYAML's, which the Kubernetes client has loaded anyway; but a key that comes twice is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands twice", node.start_mark)
        return dict(super().construct_mapping(node, deep))


def load(path: Path) -> Config:
    """Config from a YAML or JSON file.

    Raises `refusals.BadConfig` for a file that cannot be read, is no YAML, or has bad settings.
    """
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a safe one
    except OSError as error:
        raise refusals.BadConfig(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise refusals.BadConfig(f"{path}: is no YAML: {' '.join(str(error).split())}") from None
    if values is not None and not isinstance(values, dict):
        raise refusals.BadConfig(f"{path}: must be a mapping such as {{image: …}}, not {type(values).__name__}")
    try:
        return parse(values)
    except refusals.BadConfig as error:
        raise refusals.BadConfig(f"{path}: {error}") from None


def parse(values: Mapping[str, Any] | None) -> Config:
    """Config from decoded YAML or JSON; None (an empty file) gives the defaults.

    Raises `refusals.BadConfig`, which names every bad field.
    """
    try:
        config = Config.model_validate(values or {})
    except pydantic.ValidationError as error:
        raise refusals.BadConfig("; ".join(_problem(detail) for detail in error.errors(include_url=False))) from None
    problems = pod_annotations.problems_of_defaults(config)
    if problems:
        raise refusals.BadConfig("; ".join(problems))
    return config


def _problem(detail: Any) -> str:
    where = ".".join(map(str, detail["loc"]))
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    if detail["type"] == "extra_forbidden":
        return f"{where}: there is no such setting"
    if not where or not detail["loc"]:
        return str(message)
    return f"{where}: got {detail['input']!r}: {message}"
