"""`carpool-injector uninject`: manifests as they were before `inject`."""

from __future__ import annotations

import functools

import click

from injector.commands import manifest_files, usage
from injector.objects import manifests

_HELP = """Take the sidecar out of manifests again: files, directories or standard input ("-", or nothing).

InferenceServices and Knative Services lose the label that asks for it. What was injected and uninjected is what it was,
to the byte. The exit status is that of `inject`.
"""
_output = functools.partial(usage.option, heading="Where it goes")


@click.command("uninject", cls=usage.Command, help=_HELP)
@click.argument("names", nargs=-1, metavar="[FILE|DIRECTORY|-]...")
@_output("--in-place", "-i", is_flag=True, help="Change the files themselves, each as a whole or not at all.")
@_output("--diff", is_flag=True, help="Show what changes instead of the result.")
@_output("--check", is_flag=True, help="Write nothing; exit with 1 if anything would change, for CI.")
def command(names: tuple[str, ...], in_place: bool, diff: bool, check: bool) -> int:
    done = manifest_files.change(names, manifests.uninject)
    return manifest_files.finish(done, manifest_files.Output(in_place, check, diff))
