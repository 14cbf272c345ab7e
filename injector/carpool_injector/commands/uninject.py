"""`carpool-injector uninject`: manifests as they were before `inject`."""

from __future__ import annotations

import functools

import click

from carpool_injector.commands import manifest_files, usage
from carpool_injector.objects import manifests

_HELP = """Take the sidecar out of manifests again: files, directories or standard input ("-", or nothing).

InferenceServices and Knative Services lose the label that asks for it. What was injected and uninjected is what it was,
to the byte, with few exceptions, all of which mean the same: where `inject` had to change them, aliases stay written
out, empty lists and maps and keys that only repeat what << brings in are left out, and values in an unusual notation
(0x1F40, escapes, tags, several lines) are written plainly. KServe's batcher annotation comes back as the last one.

The exit status is that of `inject`.
"""
_output = functools.partial(usage.option, heading="Where it goes")


@click.command("uninject", cls=usage.Command, help=_HELP)
@click.argument("names", nargs=-1, metavar="[FILE|DIRECTORY|-]...")
@_output("--in-place", "-i", is_flag=True, help="Change the files themselves, each as a whole or not at all.")
@_output("--diff", is_flag=True, help="Show what would change instead of the result; not with --in-place.")
@_output("--check", is_flag=True, help="Write nothing; exit with 1 if anything would change, for CI.")
def command(names: tuple[str, ...], in_place: bool, diff: bool, check: bool) -> int:
    output = manifest_files.Output(in_place, check, diff)
    return manifest_files.finish(manifest_files.change(names, manifests.uninject), output)
