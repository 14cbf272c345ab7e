"""`carpool-injector check`: what is wrong with the injector in a cluster, and what to do about it."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import functools
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from carpool_injector import cli
from carpool_injector.diagnosis import places

if TYPE_CHECKING:
    from carpool_injector.diagnosis import findings

_HELP = """Look at a cluster for what keeps pods from getting the sidecar.

The injector is found by the labels of its chart, whatever its release is called. Nothing is changed: a sample pod is
created as a dry run only. For what the account may not read, the RBAC rule that it lacks is shown. The exit status is 1
if a check failed, 2 if there is no cluster to talk to.
"""
_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}
_cluster = functools.partial(cli.option, heading="Cluster", variable=True)
_place = functools.partial(cli.option, heading="Where things are", variable=True)

Diagnosis = dict[str, "list[findings.Finding]"]


@click.command("check", cls=cli.Command, help=_HELP)
@_cluster("--kubeconfig", metavar="FILE", help="Without: the pod's service account, else the usual places.")
@_cluster("--context", metavar="NAME", help="Context of the kubeconfig; without: its current one.")
@_place("--namespace", "-n", help="Namespace of the injector. Without: where it is found, else carpool-system.")
@_place("--service-name", "service", help="Its Service. Without: the one its webhooks call, else carpool-injector.")
@_place("--secret-name", "secret", help="Secret with its certificate. Without: the Service's name and -certificates.")
@_place("--mutating-webhook", "mutating", help="Its MutatingWebhookConfiguration. Without: the one that is found.")
@_place("--validating-webhook", "validating", help="Its ValidatingWebhookConfiguration. Without: named as its Service.")
@_place("--kserve-namespace", default=places.Place.kserve_namespace, help="Namespace of KServe's controller.")
@_place("--sample-namespace", default=places.Place.sample_namespace, help="Namespace for the sample pod (dry run).")
@cli.option("--output", "-o", type=click.Choice(["text", "json"]), default="text", help="For people or for programs.")
def check(kubeconfig: str | None, context: str | None, output: str, **place: Any) -> int:
    return tell(asyncio.run(_diagnose(kubeconfig, context, place)), output)


def tell(found: Diagnosis, output: str) -> int:
    """Prints the findings, and returns the exit status: 1 if one is "failed"."""
    text = json.dumps(_values(found), indent=2) if output == "json" else "\n".join(_lines(found))
    with cli.printing():
        click.echo(text, color=cli.wants_colour())
    return int(any(finding.verdict == "failed" for each in found.values() for finding in each))


async def _diagnose(kubeconfig: str | None, context: str | None, given: dict[str, str | None]) -> Diagnosis:
    from carpool_injector.api import calls, kube
    from carpool_injector.diagnosis import checks, cluster_state

    with cli.told(calls.Unconfigured):
        api = await kube.Kube.connect(kubeconfig, context)
    try:
        with cli.told(places.Ambiguous):
            place = await places.find(api, **given)
        now = datetime.datetime.now(datetime.UTC)
        return checks.run(await cluster_state.gather(api, place, now, cluster_state.shown_certificate))
    finally:
        await api.close()


def _values(found: Diagnosis) -> list[dict[str, Any]]:
    return [{"group": title, **dataclasses.asdict(each)} for title, findings_ in found.items() for each in findings_]


def _lines(found: Diagnosis) -> list[str]:
    lines = []
    for title, each in ((title, each) for title, each in found.items() if each):
        lines.append(click.style(title, bold=True))
        for finding in each:
            lines.append(f"  {click.style(f'{finding.verdict:<9}', fg=_COLOURS[finding.verdict])}{finding.text}")
            lines += [f"           -> {finding.fix}"] if finding.fix else []
    counted = Counter[str](finding.verdict for each in found.values() for finding in each)
    return [*lines, "", ", ".join(f"{counted[verdict]} {verdict}" for verdict in _COLOURS)]
