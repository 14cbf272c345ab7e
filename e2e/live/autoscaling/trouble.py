"""What goes wrong for users, made to happen: bursts that no queue holds, instances that a model fails on, bad pods."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from e2e.live import kubectl as kubectls
from e2e.live import traffic

POISON = "poison"
# In instances. A burst is more than these; what the sidecar holds by then is a batch at most.
QUEUE = 16
BURST, INSTANCES = 32, 4
MISTAKEN = "mistaken"
STOP_SECONDS = 60.0


def settings() -> tuple[tuple[str, ...], dict[str, str]]:
    """The predictor's arguments and the annotations of a pod that such callers get to."""
    return (f'--echo-poison="{POISON}"',), {"max_queue_instances": str(QUEUE)}


def bursts(caller: traffic.Caller, path: str) -> contextlib.AbstractContextManager[None]:
    """Inside the block one burst follows the other; one instance in each is poison."""
    good = [{"instances": [f"{number}-{each}" for each in range(INSTANCES)]} for number in range(BURST)]
    return again_and_again(lambda: caller.gather(path, [{"instances": [POISON]}, *good]))


def mistaken_pods(kubectl: kubectls.Kubectl) -> contextlib.AbstractContextManager[None]:
    """Inside the block a pod is made and taken away, over and over, that asks for a sidecar in words that are wrong."""

    def make_one() -> None:
        kubectl.apply([mistaken_pod()], check=False)
        kubectl.run("delete", "pod", MISTAKEN, "--ignore-not-found", "--force", "--wait=false", check=False)

    return again_and_again(make_one)


def mistaken_pod() -> dict[str, Any]:
    """No node is as it wants, so it never runs."""
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
    """Inside the block something is done in a thread, and when it is done, done again."""
    stopping = threading.Event()

    def repeat() -> None:
        while not stopping.is_set():
            action()

    thread = threading.Thread(target=repeat, name="trouble", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(STOP_SECONDS)
