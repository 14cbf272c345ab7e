"""The command line `carpool-injector`: the webhook, and the same work on manifests offline.

What all subcommands share is here: options in groups with their environment variables, and errors in one line with the
next step.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import click

import carpool_injector

PROG = "carpool-injector"
PREFIX = "CARPOOL_INJECTOR"
_SIGPIPE = 128 + 13
_LAST = "Other"  # heading of what has none
# Beside a Service named carpool-injector Kubernetes sets CARPOOL_INJECTOR_PORT to such a link in every pod.
_SERVICE_LINKS = ("tcp://", "udp://", "sctp://")
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Problem(click.ClickException):
    """An error that the caller can fix: one line of text, and the exit status 2."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.ctx = click.get_current_context(silent=True)


class Option(click.Option):
    """An option under a heading of `--help`; `variable`: it can be given as CARPOOL_INJECTOR_NAME as well."""

    def __init__(self, *names: Any, heading: str = _LAST, variable: bool = False, **rest: Any) -> None:
        super().__init__(*names, **{"show_default": True, **rest})
        self.heading = heading
        if variable:
            self.envvar = f"{PREFIX}_{max(self.opts, key=len)[2:].replace('-', '_').upper()}"
            self.show_envvar = True

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """An empty variable is one that is not set, unless empty is a value of this option; nor is a link."""
        found = os.environ.get(self.envvar) if isinstance(self.envvar, str) else None
        if found and found.startswith(_SERVICE_LINKS):
            return None
        return found if found or isinstance(self.type, Empty) else None


class Empty(click.ParamType[Any]):
    """A value that may be given empty, which means None."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self.inner, self.name = inner, inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if value in ("", None) else self.inner.convert(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return self.inner.get_metavar(param, ctx)


class Command(click.Command):
    """A subcommand whose help has its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                found.setdefault(getattr(parameter, "heading", _LAST), []).append(record)
        for heading in sorted(found, key=lambda heading: heading == _LAST):
            with formatter.section(heading):
                formatter.write_dl(found[heading])


class Group(click.Group):
    """Loads a subcommand's module when it is needed: `inject --help` has no use for a web server."""

    def __init__(self, *args: Any, modules: Mapping[str, tuple[str, str]], **rest: Any) -> None:
        super().__init__(*args, **rest)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        module = importlib.import_module(f"carpool_injector.commands.{self._modules[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._modules.items()])

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *_: Any, **rest: Any) -> NoReturn:
        """Runs a subcommand and exits: 0, 1 for a "no" as answer, 2 for an error the caller can fix, 130 for Ctrl-C."""
        try:
            status = super().main(args, prog_name or PROG, **{**rest, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            status = 2
        except click.Abort:
            status = 130
        except click.ClickException as error:
            context = getattr(error, "ctx", None)
            path = context.command_path if context else PROG
            hint = f"; see {path} --help" if isinstance(error, click.UsageError) else ""
            click.echo(f"{path}: {error.format_message().rstrip('.')}{hint}", err=True)
            status = error.exit_code if isinstance(error, Problem) else 2
        raise SystemExit(status if isinstance(status, int) else 0)


@contextmanager
def told(*kinds: type[Exception]) -> Iterator[None]:
    """Turns exceptions of these kinds into a Problem with their text: the caller can fix them."""
    try:
        yield
    except kinds as error:
        raise Problem(str(error)) from error


@contextmanager
def printing() -> Iterator[None]:
    """What is written to standard output inside has arrived at the end, or the command ends here.

    Raises Problem where it cannot be written. A pipe that nobody reads any more ends the command without a word, with
    the status that a shell gives for SIGPIPE.
    """
    if sys.stdout is None:
        raise Problem("standard output is closed; nothing was written")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up_stdout()
        raise click.exceptions.Exit(_SIGPIPE) from None
    except OSError as error:
        _give_up_stdout()
        raise Problem(f"standard output cannot be written: {error.strerror}") from None


def _give_up_stdout() -> None:
    """The interpreter writes what is left when it exits, and would complain once more."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def option(*names: str, **rest: Any) -> Callable[[_Command], _Command]:
    """An `Option`."""
    return click.option(*names, cls=Option, **rest)


def wants_colour() -> bool | None:
    """False where NO_COLOR is set (no-color.org); None leaves it to whether a terminal listens."""
    return False if os.environ.get("NO_COLOR") else None


_HELP = """Put Carpool's batching sidecar in front of predictors on Kubernetes.

`serve` runs the webhook that does it to pods as they are created; the other commands do the same to manifests, say what
would happen and why, and look for what is wrong with a cluster.
"""

program = Group(
    PROG,
    modules={
        "serve": ("serve", "Run the webhook."),
        "inject": ("inject", "Put the sidecar into manifests."),
        "uninject": ("inject", "Take it out again."),
        "explain": ("explain", "Say whether a pod gets the sidecar, how, and why not."),
        "check": ("check", "Look for what is wrong with the injector in a cluster."),
    },
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
click.version_option(carpool_injector.__version__, message="%(prog)s %(version)s")(program)
