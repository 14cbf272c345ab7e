"""`carpool-injector inject` and `uninject`: what the webhook does to pods, done to manifests, and taken back."""

from __future__ import annotations

import functools
from typing import Any

import click

from carpool_injector import cli
from carpool_injector.commands import inputs
from carpool_injector.core import model, pod_annotations
from carpool_injector.objects import manifests

_INJECT_HELP = """\
Put the sidecar into manifests: files, directories (with all below them) or standard input ("-", or nothing).

Every Pod, Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController, PodTemplate, Job, CronJob, Argo
Rollout and LeaderWorkerSet (its leaders), also in Lists, gets the sidecar unless it says carpool.dev/inject: "false".
InferenceServices, Knative Services and unknown kinds with a pod's template in spec.template get the label that asks the
webhook for it, as their pods are made elsewhere.

The result goes to standard output, what was done to standard error. Everything that need not change stays as it is, to
the byte: comments, order, quotes, blank lines, anchors. An alias is written out where it has to differ from its anchor.
JSON stays JSON. Between documents stands a line with ---, in JSON as well. Templates of Helm are rendered first:
helm template CHART | carpool-injector inject.

The exit status is 1 if an object was refused (it stays as it was) or, with --check, if anything would change; 2 if
something cannot be read.
"""
_what = functools.partial(cli.option, heading="What to do")
_output = functools.partial(cli.option, heading="Where it goes")


@click.command("inject", cls=cli.Command, help=_INJECT_HELP)
@click.argument("names", nargs=-1, metavar="[FILE|DIRECTORY|-]...")
@_what(
    "--annotate",
    multiple=True,
    metavar="KEY=VALUE",
    help="Add an annotation to the pods first, e.g. carpool.dev/max-batch-size=16; may be repeated.",
)
@_what("--opted-in-only", is_flag=True, help="As the webhook: leave alone what does not ask for the sidecar itself.")
@_what(
    "--without-webhook",
    is_flag=True,
    help="Declare the sidecar in InferenceServices, as their transformer-container, for clusters without the webhook.",
)
@_output("--in-place", "-i", is_flag=True, help="Change the files themselves, each as a whole or not at all.")
@_output("--diff", is_flag=True, help="Show what would change instead of the result; not with --in-place.")
@_output("--check", is_flag=True, help="Write nothing; exit with 1 if anything would change, for CI.")
@inputs.options
def inject(
    names: tuple[str, ...], annotate: tuple[str, ...], in_place: bool, diff: bool, check: bool, **given: Any
) -> int:
    output = inputs.Output(in_place, check, diff)
    wanted = inputs.injector(annotations=_annotations(annotate), **given)
    read = list(inputs.read_manifests(names))
    injector = inputs.beside(wanted, read)
    done = inputs.change(read, lambda thing: manifests.inject(thing, injector))
    nothing = "nothing in there asks for the sidecar"
    return inputs.finish(done, output, nothing, inputs.about_kustomizations(read))


def _annotations(values: tuple[str, ...]) -> dict[str, str]:
    found = inputs.pairs(values, "--annotate")
    unknown = [key for key in found if key not in pod_annotations.KNOWN]
    if unknown:
        hint = next(pod_annotations.unknown({unknown[0]: ""}), f"settings begin with {model.PREFIX}")
        raise click.BadParameter(f"{unknown[0]!r} is no setting: {hint}", param_hint="--annotate")
    return found


_NOT_THERE = "nothing in there has the sidecar"
_UNINJECT_HELP = """Take the sidecar out of manifests again: files, directories or standard input ("-", or nothing).

InferenceServices and Knative Services lose the label that asks for it. What was injected and uninjected is what it was,
to the byte, with few exceptions, all of which mean the same: where `inject` had to change them, aliases stay written
out, empty lists and maps and keys that only repeat what << brings in are left out, and values in an unusual notation
(0x1F40, escapes, tags, several lines) are written plainly. KServe's batcher annotation comes back as the last one.

The exit status is that of `inject`.
"""


@click.command("uninject", cls=cli.Command, help=_UNINJECT_HELP)
@click.argument("names", nargs=-1, metavar="[FILE|DIRECTORY|-]...")
@_output("--in-place", "-i", is_flag=True, help="Change the files themselves, each as a whole or not at all.")
@_output("--diff", is_flag=True, help="Show what would change instead of the result; not with --in-place.")
@_output("--check", is_flag=True, help="Write nothing; exit with 1 if anything would change, for CI.")
def uninject(names: tuple[str, ...], in_place: bool, diff: bool, check: bool) -> int:
    output = inputs.Output(in_place, check, diff)
    return inputs.finish(inputs.change(list(inputs.read_manifests(names)), manifests.uninject), output, _NOT_THERE)
