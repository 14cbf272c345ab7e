"""The sample Deployment behind the ingress with a slower model, a load on it, and trouble that tests cause on purpose.

Trouble is a burst that no queue holds, an instance that the model fails on, or a pod with a wrong annotation.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from e2e.cluster import clusters
from e2e.cluster import kubectl as kubectls
from e2e.live import checking, objects, questions, traffic
from e2e.live.autoscaling import expressions

Object = dict[str, Any]

# A call takes 200 ms and 5 ms for each instance: full batches of 32 make 89 instances a second. Two cores can ask that
# of several pods at once, and what a busy machine adds to a call is little beside it.
FIXED_MS, INSTANCE_MS, BATCH = 200, 5, 32
MEAN_INSTANCES = (1 + questions.MOST_INSTANCES) / 2
# More than wait at once while there are pods enough; a load with fewer callers than wait slows down with its pods.
CALLERS = 50
CAPACITY = BATCH / (FIXED_MS + INSTANCE_MS * BATCH) * 1000
PATH = "/v1/models/echo:predict"
POISON = "poison"
# In instances. A burst is more than these; what the sidecar holds by then is a batch at most.
QUEUE = 16
MISTAKEN = "mistaken"
STOP_SECONDS = 60.0
BURST, INSTANCES = 32, 4


def sample(name: str = expressions.SAMPLE, arguments: tuple[str, ...] = (), **annotations: str) -> list[Object]:
    """manifests/samples/deployment.yaml under a name, with that model, more arguments, and settings of the sidecar."""
    deployment, service, *_ = copy.deepcopy(expressions.load("deployment.yaml"))
    for labels in (
        deployment["spec"]["selector"]["matchLabels"],
        deployment["spec"]["template"]["metadata"]["labels"],
        service["spec"]["selector"],
    ):
        labels["app"] = name
    deployment["metadata"]["name"] = service["metadata"]["name"] = name
    template = deployment["spec"]["template"]
    model = [f"--echo-fixed-ms={FIXED_MS}", f"--echo-per-instance-ms={INSTANCE_MS}"]
    template["spec"]["containers"][0]["args"] = ["--models=echo", *model, *arguments]
    template["metadata"]["annotations"] |= settings(annotations)
    return [deployment, service]


def settings(values: Mapping[str, str]) -> dict[str, str]:
    """Annotations by the names that Python allows: max_queue_instances for carpool.dev/max-queue-instances."""
    return {f"carpool.dev/{name.replace('_', '-')}": value for name, value in values.items()}


def deploy(kubectl: kubectls.Kubectl, name: str, things: list[Object]) -> None:
    """Returns when all pods are ready, with sidecars."""
    kubectl.apply([*things, objects.way_in(name, kubectl.namespace)])
    kubectl.wait(f"deployment/{name}", "Available")


def load(
    cluster: clusters.Cluster, name: str, namespace: str, pods: float, callers: int = CALLERS
) -> contextlib.AbstractContextManager[checking.Load]:
    """A load through the ingress that would keep so many pods busy all the time."""
    rate = pods * CAPACITY / MEAN_INSTANCES
    return checking.load(cluster.ingress, objects.host(name, namespace), PATH, callers=callers, rate=rate)


def settings_for_trouble() -> tuple[tuple[str, ...], dict[str, str]]:
    """The predictor's arguments and the annotations of a pod that bursts with poison cause trouble in."""
    return (f'--echo-poison="{POISON}"',), {"max_queue_instances": str(QUEUE)}


def bursts(caller: traffic.Caller, path: str) -> contextlib.AbstractContextManager[None]:
    """Sends one burst after the other while the block runs; one instance in each is poison.

    Each time something else is beside it: a body that was found guilty once travels alone from then on, and no batch
    is sent in parts because of it.
    """
    good = [{"instances": [f"{number}-{each}" for each in range(INSTANCES)]} for number in range(BURST)]
    numbers = itertools.count()
    return again_and_again(lambda: caller.gather(path, [{"instances": [POISON, f"burst {next(numbers)}"]}, *good]))


def mistaken_pods(kubectl: kubectls.Kubectl) -> contextlib.AbstractContextManager[None]:
    """Makes and deletes a pod with a wrong annotation, again and again while the block runs."""

    def make_one() -> None:
        kubectl.apply([mistaken_pod()], check=False)
        kubectl.run("delete", "pod", MISTAKEN, "--ignore-not-found", "--force", "--wait=false", check=False)

    return again_and_again(make_one)


def mistaken_pod() -> dict[str, Any]:
    """A pod that asks for the sidecar with a wrong annotation, and for a node that does not exist, so it never runs."""
    labels, annotations = {"carpool.dev/inject": "true"}, {"carpool.dev/max-latency": "soon"}
    container = {"name": "server", "image": "none", "ports": [{"containerPort": 8080}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": MISTAKEN, "labels": labels, "annotations": annotations},
        "spec": {"containers": [container], "nodeSelector": {"carpool.dev/none": "such"}},
    }


@contextlib.contextmanager
def again_and_again(action: Callable[[], object]) -> Iterator[None]:
    """Repeats the action in a thread while the block runs."""
    stopping = threading.Event()

    def repeat() -> None:
        while not stopping.is_set():
            action()

    with checking.in_thread(repeat, stopping.set, STOP_SECONDS):
        yield
