"""What runs during a fault: the checking client and hey, which load a predictor, and a loop that creates pods."""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import urllib3

from e2e.cluster import client
from e2e.injector import manifests
from e2e.live import checking, reports
from e2e.live.faults import hey, predictors

# Of the checking client: enough for batches to form, little enough that two cores are not the fault.
CALLERS, RATE = 8, 40.0
PAUSE_SECONDS = 0.2
# Statuses that requests may fail with during a fault: each says which server did not answer.
HONEST = {"502", "503", "504"}

_numbers = itertools.count(1)


class Watch:
    """A fault as callers see it. `load` runs during the block; `report`, `failed` and `hey` can be read after it."""

    def __init__(self, load: checking.Load, beside: hey.Hey) -> None:
        self.load = load
        self.facts: dict[str, Any] = {}
        self._beside = beside
        self._fault: float | None = None

    def mark(self) -> None:
        """Records that the fault happens now: the recovery begins here."""
        self._fault = self.load.now

    @property
    def report(self) -> reports.Report:
        return self.load.report

    @property
    def hey(self) -> hey.Count:
        return self._beside.count

    @property
    def recovery(self) -> float | None:
        """Seconds from the fault to the end of the last request that failed; None where no fault was marked."""
        return None if self._fault is None else self.report.recovery(self._fault)

    @property
    def failed(self) -> dict[str, int]:
        """All failed requests by kind, those of hey included."""
        counted = collections.Counter(self.report.failed)
        counted.update({f"{status} to hey": count for status, count in self.hey.statuses.items() if status != 200})
        counted.update({f"{words} to hey": count for words, count in self.hey.errors.items()})
        return dict(counted)

    def check_nothing_failed(self) -> None:
        """Every request got the answer to its question."""
        assert self.report.wrong == {}, str(self)
        assert self.failed == {}, str(self)

    def check_failures_are_honest(self) -> None:
        """No answer was wrong, and requests that failed got a status that says which server did not answer."""
        assert self.report.wrong == {}, str(self)
        assert set(self.report.failed) <= HONEST, str(self)

    def __str__(self) -> str:
        return f"{self.report}\nhey: {self.hey}"


@contextlib.contextmanager
def watch(ingress: str, host: str) -> Iterator[Watch]:
    """Loads a predictor while the block runs."""
    with (
        checking.load(ingress, host, predictors.PATH, callers=CALLERS, rate=RATE) as load,
        hey.running(ingress, host, predictors.PATH) as beside,
    ):
        yield Watch(load, beside)


# Of a situation ("pod deleted") and a host, with `planned=True` where no request may fail.
StartWatch = Callable[..., contextlib.AbstractContextManager[Watch]]


class PodCreator:
    """Creates pods that ask for the sidecar, one after the other, and reads what the API server stored.

    They are never scheduled, and deleted at once: admission is what they are for.
    """

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self.injected = 0
        self.missed = 0  # stored without the sidecar
        self.last_missed = 0.0  # when that was the last time, by time.monotonic
        self.refusals: collections.Counter[str] = collections.Counter()
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._stop = threading.Event()

    @property
    def refused(self) -> int:
        return sum(self.refusals.values())

    def run(self) -> None:
        """Runs until `stop`."""
        with contextlib.closing(client.Client(self._kubeconfig)) as admin:
            while not self._stop.wait(PAUSE_SECONDS):
                self._create_one(admin)

    def stop(self) -> None:
        self._stop.set()

    def wait_for(self, more: int, within: float) -> None:
        """Returns when so many more pods got the sidecar. Raises TimeoutError."""
        wanted, deadline = self.injected + more, time.monotonic() + within
        while self.injected < wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"not {more} more pods with the sidecar within {within:g} s: {self}")
            time.sleep(PAUSE_SECONDS)

    def _create_one(self, admin: client.Client) -> None:
        pod = asking_pod(self._namespace)
        try:
            stored = admin.create(pod).object
        except client.Refused as refused:
            self.refusals[refused.message] += 1
            return
        except (urllib3.exceptions.HTTPError, OSError) as unreachable:
            self.refusals[f"the API server: {type(unreachable).__name__}"] += 1
            return
        if manifests.has_sidecar(stored):
            self.injected += 1
        else:
            self.missed += 1
            self.last_missed = time.monotonic()
        with contextlib.suppress(client.Refused, urllib3.exceptions.HTTPError, OSError):
            admin.delete("Pod", pod["metadata"]["name"], self._namespace)

    def __str__(self) -> str:
        return f"{self.injected} pods with the sidecar, {self.missed} without, refused: {dict(self.refusals)}"


def asking_pod(namespace: str) -> client.Object:
    """A pod like those of the predictor that is never scheduled."""
    template = predictors.deployment()["spec"]["template"]
    metadata = {"name": f"asking-{next(_numbers)}", "namespace": namespace, "labels": {"carpool.dev/inject": "true"}}
    spec = {**template["spec"], "schedulingGates": [{"name": "e2e.carpool.dev/never"}]}
    del spec["topologySpreadConstraints"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@contextlib.contextmanager
def creating_pods(kubeconfig: Path, namespace: str) -> Iterator[PodCreator]:
    """Creates pods while the block runs."""
    creator = PodCreator(kubeconfig, namespace)
    with checking.in_thread(creator.run, creator.stop, client.TIMEOUT_SECONDS):
        yield creator
