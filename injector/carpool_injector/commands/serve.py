"""`carpool-injector serve`: the webhook's flags, made from the fields of `options.Options`."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import click

from carpool_injector import cli
from carpool_injector.core import refusals
from carpool_injector.webhook import options

# The first field of each group, and the heading in `--help`.
_HEADINGS = {
    "host": "What is served",
    "certificates": "TLS",
    "namespace": "The injector's own objects",
    "kubeconfig": "Cluster",
    "max_concurrent": "Limits",
    "quiet_period": "The way out",
    "log_level": "Logs",
}
_HELP = """Serve the webhook over TLS, until SIGTERM.

Flags win over variables. The exit status is 0 after a clean way out, 1 when something had to be cut off or could not
be had, 2 for bad settings.
"""


def _serve(**values: Any) -> int:
    chosen = options.Options(**values)
    problems = chosen.problems()
    if problems:
        raise cli.Problem("; ".join(problems))
    from carpool_injector.webhook import service

    with cli.told(refusals.BadConfig):
        return service.serve(chosen)


def _parameters() -> Iterator[cli.Option]:
    hints = typing.get_type_hints(options.Options)
    heading = ""
    for name, field in options.Options.model_fields.items():
        heading = _HEADINGS.get(name, heading)
        flag = "--" + name.replace("_", "-")
        yield cli.Option(
            [f"{flag}/--no-{flag[2:]}" if hints[name] is bool else flag, name],
            heading=heading,
            variable=True,
            help=field.description,
            default=field.default,
            **_kind(hints[name]),
        )


def _kind(hint: Any) -> dict[str, Any]:
    """What click has to know about a type of `Options`."""
    if hint is bool:
        return {}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"type": click.Choice(arguments)}
    if origin is tuple:
        return {"type": click.types.convert_type(arguments[0]), "multiple": True}
    if origin in (types.UnionType, typing.Union):
        inner = next(each for each in arguments if each is not type(None))
        return {"type": cli.Empty(click.types.convert_type(inner))}
    return {"type": click.types.convert_type(hint)}


serve = cli.Command("serve", callback=_serve, params=list(_parameters()), help=_HELP)
