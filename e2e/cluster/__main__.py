"""`python -m e2e.cluster`: clusters to test in, and to look at by hand."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from e2e.cluster import (
    binaries,
    client,
    clusters,
    control_plane,
    gpus,
    ingress,
    kserve,
    processes,
    product_images,
    requirements,
)
from e2e.cluster import kubectl as kubectls

FAILURES = (
    clusters.Problem,
    kubectls.Failed,
    kubectls.NotInTime,
    binaries.BuildFailed,
    binaries.Unavailable,
    client.Refused,
    processes.ProcessFailed,
    OSError,  # a disk that is full, a folder that may not be written; and TimeoutError
)


class Group(click.Group):
    """Prints an expected failure as one message, without a traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except FAILURES as failed:
            raise click.ClickException(str(failed)) from failed


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--name", envvar="CARPOOL_CLUSTER", default=clusters.DEFAULT_NAME, help="Several may be up at a time.")
@click.pass_context
def main(context: click.Context, name: str) -> None:
    """Clusters to test in, made by kind: real nodes, an ingress controller, KServe's controller."""
    context.obj = clusters.Cluster(name)


def print_settings(cluster: clusters.Cluster) -> None:
    """What a shell needs to use the cluster, as commands for it."""
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    print(f"export PATH={binaries.folder_for_path()}:$PATH")
    print(f"export INGRESS={cluster.ingress}", flush=True)


@main.command()
@click.option("--bare", is_flag=True, help="Nodes alone: no ingress controller, no KServe.")
@click.pass_obj
def up(cluster: clusters.Cluster, bare: bool) -> None:
    """Brings the cluster up, if it is not, and prints how to use it."""
    if not cluster.is_up():
        if packages := requirements.missing_packages():
            binaries.say(f"this and `make cluster-images` need more than is here: apt-get install {' '.join(packages)}")
        if cost := requirements.cost():
            binaries.say(cost)
    cluster.up()
    if not bare:
        gpus.install(cluster)
        ingress.install(cluster)
        kserve.install(cluster)
    print_settings(cluster)
    click.echo("# kubectl get nodes; `make cluster-images` loads Carpool's images, `make cluster-down` removes it all")


@main.command()
@click.pass_obj
def down(cluster: clusters.Cluster) -> None:
    """Removes the cluster and every trace of it."""
    cluster.down()
    binaries.say(f"{cluster.name} is gone")


def running(cluster: clusters.Cluster) -> clusters.Cluster:
    if not cluster.is_up():
        raise clusters.Problem(f"no cluster {cluster.name} is up; `make cluster` brings it up")
    return cluster


@main.command()
@click.pass_obj
def env(cluster: clusters.Cluster) -> None:
    """Prints how to use the cluster, for `eval "$(python -m e2e.cluster env)"`."""
    print_settings(running(cluster))


@main.command()
@click.pass_obj
def images(cluster: clusters.Cluster) -> None:
    """Builds Carpool's images, where their sources changed, and loads them."""
    product_images.load(running(cluster))


@main.command()
@click.argument("archives", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def load(cluster: clusters.Cluster, archives: tuple[Path, ...]) -> None:
    """Loads images from archives (of `docker save`, `buildah push … docker-archive:FILE`)."""
    for archive in archives:
        running(cluster).load(archive)


@main.command("control-plane")
def control_plane_alone() -> None:
    """A control plane on loopback without nodes, until Ctrl-C. Needs no root."""
    # An exception, so that the clean-up runs. Ctrl-C too: a shell has background jobs ignore it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="carpool-e2e-") as folder, control_plane.running(Path(folder)) as plane:
        kserve.install_resource_definitions(client.Client(plane.kubeconfig))
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        binaries.say(f"logs are in {folder}; Ctrl-C ends it all")
        wait_for_interrupt(signal.pause)


@main.command("requirements")
@click.option("--packages", is_flag=True, help="Print the Debian packages to install, and nothing else.")
@click.option("--cost", is_flag=True, help="Print what has to be built first, and how long that takes; or nothing.")
def tell_requirements(packages: bool, cost: bool) -> None:
    """Says what this machine lacks to host a cluster, a reason on each line; status 1 if there is one."""
    if packages or cost:
        click.echo(" ".join(requirements.missing_packages()) if packages else requirements.cost())
        return
    reasons = requirements.missing()
    for reason in reasons:
        click.echo(reason)
    sys.exit(1 if reasons else 0)


def wait_for_interrupt(pause: Callable[[], object]) -> None:
    try:
        pause()
    except KeyboardInterrupt:
        binaries.say("stopping")


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m e2e.cluster"))
