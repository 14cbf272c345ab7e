"""`carpool-injector explain`: the decision and the plan, in words."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import click

from carpool_injector import cli
from carpool_injector.commands import inputs
from carpool_injector.core import refusals
from carpool_injector.objects import explanation, kserve_pods, manifests, workloads

_HELP = """Say what the webhook will do to the pods of these manifests, and why: files, directories or standard input.

For InferenceServices it says what the manifest makes certain, and what it expects of the cluster. The exit status
is 1 if something asks for the sidecar and cannot have it, 2 if something cannot be read.
"""
_MODES: dict[str, kserve_pods.Mode] = {"standard": "Standard", "knative": "Knative"}
_RESULTS = {
    "injected": ("gets the sidecar", "green"),
    "refused": ("asks for the sidecar and cannot have it", "red"),
    "skipped": ("gets no sidecar", "yellow"),
    "unconcerned": ("gets no sidecar: nobody asks for it", None),
}
_DECIDES = click.style("  <- decides", bold=True)
_NOT_MEANT = set(refusals.Skip) - {refusals.Skip.SWITCHED_OFF, refusals.Skip.BAD_WORD}
_option = functools.partial(cli.option, heading="What to tell")


@click.command("explain", cls=cli.Command, help=_HELP)
@click.argument("names", nargs=-1, metavar="[FILE|DIRECTORY|-]...")
@_option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="For people or for programs.")
@inputs.options
@cli.option(
    "--kserve",
    type=click.Choice(list(_MODES)),
    heading="What the cluster would know",
    help="KServe's default mode, for InferenceServices that name none.",
)
def explain(names: tuple[str, ...], output: str, kserve: str | None, **given: Any) -> int:
    problems: list[str] = []
    found = list(_explanations(names, inputs.injector(**given), _MODES.get(kserve or ""), problems))
    if output == "json":
        text = json.dumps([{"file": file, **explanation.as_values(each)} for file, each in found], indent=2)
    else:
        text = "\n\n".join("\n".join(_lines(file, each)) for file, each in found)
    with cli.printing():
        if text or not problems:
            click.echo(text or "no object in there makes pods", color=cli.wants_colour())
    for problem in problems:
        click.echo(f"{click.get_current_context().command_path}: {problem}", err=True)
    return 2 if problems else int(any(each.result == "refused" for _, each in found))


def _explanations(
    names: tuple[str, ...], injector: manifests.Injector, mode: kserve_pods.Mode | None, problems: list[str]
) -> Iterator[tuple[str, explanation.Explanation]]:
    """Explanations with the names of their files. What cannot be read or is malformed is added to `problems`."""
    read = list(inputs.read_manifests(names, problems))
    injector = inputs.beside(injector, read)
    for file, documents in read:
        for thing in (thing for document in documents for thing in workloads.objects(document.data)):
            try:
                yield from [(file.name, each) for each in explanation.explain_all(thing, injector, mode)]
            except refusals.Malformed as error:
                name = workloads.describe(thing)
                problems.append(f"{file.name}: {name}: {str(error).removeprefix(f'{name}: ')}; mend the manifest")


def _lines(file: str, found: explanation.Explanation) -> Iterator[str]:
    words, colour = _RESULTS[found.result]
    name = click.style(found.name, bold=True)
    yield f"{name} (namespace {found.namespace}, {file}) {click.style(words, fg=colour)}"
    yield from _section("who asks", _decision(found))
    yield from _section("its pod", [*found.certain, *(f"expected: {text}" for text in found.expected)])
    yield from _section("how" if found.asked else "how, if it asked", _plan(found))
    yield from _section("its server", list(found.server))
    width = max((len(each.key) for each in found.settings), default=0)
    yield from _section("settings", [line for each in found.settings for line in _setting(each, width)])
    yield from _section(click.style("warnings", fg="yellow"), list(found.warnings))


def _decision(found: explanation.Explanation) -> list[str]:
    lines = []
    for number, row in enumerate(found.rows, 1):
        plain = row.found in ("", "yes", "no")
        lines.append(
            f"{number}. {(row.found if plain else 'bad') or '-':<3}  {row.source}{_DECIDES if row.decides else ''}"
        )
        lines += [] if plain else [f"        {row.found}"]
    if found.result == "skipped" and found.reason in _NOT_MEANT:
        lines.append(f"but this pod is left out: {refusals.Skip(found.reason).words} ({found.reason})")
    if found.result == "unconcerned":
        lines.append('to ask: label the pod carpool.dev/inject: "true" (of an InferenceService, itself)')
    return lines


def _plan(found: explanation.Explanation) -> list[str]:
    if found.refusal is not None:
        fix = [f"fix: {found.refusal.fix}"] if found.refusal.fix else []
        return [f"{click.style('not possible', fg='red')}: {found.refusal.message}", *fix]
    if found.plan is None:
        return []
    plan = found.plan
    kind = "a native sidecar (an init container that runs on)" if plan.native else "a container beside the app"
    ports = f"callers reach it on {plan.listen_port}, it reaches the app on {plan.app_port}"
    if plan.grpc_listen_port is not None:
        ports += f"; for gRPC: {plan.grpc_listen_port}, {plan.grpc_app_port}"
    steps = (f"- {step}" for step in plan.steps)
    return [f"{plan.takeover}: {kind}", f"{ports}; admin port {plan.admin_port}", *steps]


def _setting(each: explanation.Setting, width: int) -> Iterator[str]:
    """A line; of a value with several lines (rules as YAML) those come below."""
    lines = each.value.rstrip().splitlines()
    is_long = len(lines) > 1
    yield f"{each.key:<{width}}  {'YAML' if is_long else each.value.rstrip()}  (from {each.source})"
    yield from (f"  {line}" for line in lines if is_long)


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"  {title}:"
        yield from (f"    {line}" for line in lines)
