"""Options that `inject` and `explain` share: what the cluster would have known."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from carpool_injector import config_file
from carpool_injector.commands import usage
from carpool_injector.core import config, errors, model

_Command = TypeVar("_Command", bound=Callable[..., Any])
_option = functools.partial(usage.option, heading="What the cluster would know")

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
        help="A label that the namespace has, e.g. carpool.dev/inject=enabled; may be repeated.",
    ),
    _option(
        "--namespace-annotations",
        multiple=True,
        metavar="KEY=VALUE",
        help="An annotation that the namespace has; may be repeated.",
    ),
    _option(
        "--kubernetes-version",
        variable=True,
        default="1.33",
        metavar="X.Y",
        help="The oldest version among API server and nodes: native sidecars need 1.29, their named ports 1.32.",
    ),
)


def options(command: _Command) -> _Command:
    """Adds the options; read them with `read_config`, `read_namespace` and `read_capabilities`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_config(path: str | None) -> config.Config:
    """The admin's configuration. Raises usage.Problem."""
    with usage.told(errors.BadConfig):
        return config_file.load(Path(path)) if path else config.Config()


def read_namespace(name: str, labels: Iterable[str], annotations: Iterable[str]) -> model.Namespace:
    """The namespace as the options tell it. Raises click.BadParameter."""
    return model.Namespace(name, pairs(labels, "--namespace-labels"), pairs(annotations, "--namespace-annotations"))


def read_capabilities(version: str) -> model.Capabilities:
    """What a cluster of this version can do. Raises click.BadParameter."""
    parts = version.removeprefix("v").split(".")
    if len(parts) < 2 or not all(part.isascii() and part.isdecimal() for part in parts[:2]):
        raise click.BadParameter(f"{version!r} is no version such as 1.33", param_hint="--kubernetes-version")
    found = (int(parts[0]), int(parts[1]))
    return model.Capabilities.of(found, found)


def pairs(values: Iterable[str], option: str) -> dict[str, str]:
    """KEY=VALUE as a mapping. Raises click.BadParameter."""
    found = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} must be KEY=VALUE", param_hint=option)
        found[key] = rest
    return found
