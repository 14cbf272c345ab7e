"""Flags and environment variables from one pydantic model, with a help page grouped by topic.

pydantic-settings parses. This module adds groups in `--help`, Go-style booleans (`--flag=false`, as KServe writes
them), and one line for bad values that names the field. Each program has a model of its own.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn, TypeVar

import pydantic
import pydantic_core
from pydantic_settings import BaseSettings, CliSettingsSource, NoDecode, SettingsConfigDict, SettingsError

Model = TypeVar("Model", bound=BaseSettings)

EXIT_USAGE = 2


def _split(value: Any) -> Any:
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def _ignore_service_link(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(("tcp://", "udp://", "sctp://")):
        raise pydantic_core.PydanticUseDefault
    return value


PortOrLink = Annotated[int, pydantic.BeforeValidator(_ignore_service_link)]
"""A port. In the namespace of a Service with the program's name Kubernetes sets NAME_PORT=tcp://… in every pod; such a
value is no port, so the default counts."""

CommaList = Annotated[tuple[str, ...], NoDecode, pydantic.BeforeValidator(_split)]
"""A list written `a,b,c` on the command line and in the environment."""


def config(prog: str, env_prefix: str) -> SettingsConfigDict:
    """The `model_config` that `load` expects."""
    return SettingsConfigDict(
        cli_prog_name=prog,
        env_prefix=env_prefix,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        populate_by_name=True,
        validate_default=True,
        extra="ignore",
    )


def field(group: str, description: str, default: Any, **constraints: Any) -> Any:
    """A settings field that appears under `group` in the help page."""
    return pydantic.Field(default, description=description, json_schema_extra={"group": group}, **constraints)


def load(model: type[Model], argv: Sequence[str], epilog: str = "") -> Model:
    """Read settings from `argv` first, then the environment, then the model's defaults.

    Prints one line on standard error and exits with status 2 when a value is bad or a flag is unknown.
    """
    prog = str(model.model_config["cli_prog_name"])
    parser = _GroupedParser(model, prog, epilog)
    source: CliSettingsSource[Any] = CliSettingsSource(
        model, root_parser=parser, add_argument_method=_GroupedParser.add_argument
    )
    try:
        return model(_cli_settings_source=source(args=_python_booleans(model, argv)))
    except pydantic.ValidationError as error:
        fail(prog, "; ".join(problems(model, error)))
    except SettingsError as error:
        fail(prog, f"{error}: {error.__cause__}" if error.__cause__ else str(error))


def fail(prog: str, problem: str) -> NoReturn:
    """Print what is wrong with the command line, in one line, and exit with status 2."""
    sys.stderr.write(f"{prog}: error: {problem} (see {prog} --help)\n")
    raise SystemExit(EXIT_USAGE)


def flag(name: str) -> str:
    """The command line flag of a field."""
    return "--" + name.replace("_", "-")


def variable(model: type[BaseSettings], name: str) -> str:
    """The environment variable of a field."""
    return f"{model.model_config['env_prefix']}{name}".upper()


def named(model: type[BaseSettings], name: str) -> str:
    """A field as messages name it: its flag, and its variable in brackets."""
    return f"{flag(name)} ({variable(model, name)})"


def problem_of(detail: Any) -> str:
    """What pydantic found, in the words `got VALUE: REASON`."""
    message = re.sub(r"^(Value error, |Input should be )", "", detail["msg"])
    reason = message if detail["type"] == "value_error" else f"must be {message}"
    return f"got {detail['input']!r}: {reason}"


def problems(model: type[BaseSettings], error: pydantic.ValidationError) -> list[str]:
    """One line for each bad field: its flag, its variable, what it got and what is allowed."""
    lines = []
    for detail in error.errors(include_url=False):
        if not detail["loc"]:  # a rule over several fields names them itself
            lines.append(detail["msg"].removeprefix("Value error, "))
            continue
        name = str(detail["loc"][0]).replace("-", "_")
        lines.append(f"{named(model, name)} {problem_of(detail)}")
    return lines


def _python_booleans(model: type[BaseSettings], argv: Sequence[str]) -> list[str]:
    """Rewrite `--flag=true|false` to `--flag` and `--no-flag` for the model's boolean fields."""
    booleans = {flag(name) for name, info in model.model_fields.items() if info.annotation is bool}
    rewritten = []
    for argument in argv:
        name, _, value = argument.partition("=")
        if name in booleans and value.lower() in ("true", "1"):
            argument = name
        elif name in booleans and value.lower() in ("false", "0"):
            argument = "--no-" + name.removeprefix("--")
        rewritten.append(argument)
    return rewritten


class _GroupedParser(argparse.ArgumentParser):
    """An argument parser that files each field of the model under the group the field names."""

    def __init__(self, model: type[BaseSettings], prog: str, epilog: str) -> None:
        self._model = model
        self._titles: dict[str, Any] = {}
        super().__init__(
            prog=prog,
            description=model.__doc__,
            epilog=epilog,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )

    def add_argument(self, *names: Any, **options: Any) -> Any:
        name = str(options.get("dest") or (names[0] if names else "")).lstrip("-").replace("-", "_")
        info = self._model.model_fields.get(name)
        extra = info.json_schema_extra if info is not None else None
        if not isinstance(extra, dict):
            return super().add_argument(*names, **options)
        title = str(extra["group"])
        if title not in self._titles:
            self._titles[title] = self.add_argument_group(title)
        if options.get("metavar"):
            options["metavar"] = _plain_type(str(options["metavar"]))
        text = re.sub(r"\(default: \((.*?),?\)\)", _plain_list, str(options.get("help", "")))
        options["help"] = f"{text} [{variable(self._model, name)}]"
        return self._titles[title].add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        fail(self.prog, message)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=110)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
        super().add_usage("%(prog)s [options]", [], [], prefix)


def _plain_list(default: re.Match[str]) -> str:
    return f"(default: {default[1].replace(chr(39), '').replace(', ', ',')})"


def _plain_type(metavar: str) -> str:
    """The type a person would name: no unions, no brackets."""
    names = {"int": "N", "float": "X", "str": "TEXT", "tuple[str,...]": "A,B"}
    return names.get(metavar, metavar)
