"""`carpool-injector`: the webhook, and the same work on manifests offline."""

from __future__ import annotations

import click

import carpool_injector
from carpool_injector.commands import usage

_HELP = """Put Carpool's batching sidecar in front of predictors on Kubernetes.

`serve` runs the webhook that does it to pods as they are created; the other commands do the same to manifests, say what
would happen and why, and look for what is wrong with a cluster.
"""

program = usage.Group(
    usage.PROG,
    modules={
        "serve": ("serve", "Run the webhook."),
        "inject": ("inject", "Put the sidecar into manifests."),
        "uninject": ("uninject", "Take it out again."),
        "explain": ("explain", "Say whether a pod gets the sidecar, how, and why not."),
        "check": ("check", "Look for what is wrong with the injector in a cluster."),
    },
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
click.version_option(carpool_injector.__version__, message="%(prog)s %(version)s")(program)
