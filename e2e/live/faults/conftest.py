"""Fixtures of the faults: a predictor behind the ingress in a restricted namespace, load on it, and the figures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from e2e.cluster import clusters
from e2e.cluster import kubectl as kubectls
from e2e.live import releases
from e2e.live.faults import figures, predictors, watching

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="session")
def book(images_loaded: str) -> figures.Figures:
    """The file of the numbers."""
    return figures.Figures(images_loaded)


@pytest.fixture
def namespace_labels() -> dict[str, str]:
    """Restricted Pod Security."""
    return RESTRICTED


@pytest.fixture
def predictor(kubectl: kubectls.Kubectl, carpool: releases.Release) -> predictors.Predictor:
    """A Deployment of two pods with the sidecar, a Service and an Ingress; ready."""
    kubectl.apply([*predictors.way_in(kubectl.namespace), predictors.deployment()])
    return predictors.ready(kubectl)


@pytest.fixture
def watch(cluster: clusters.Cluster, book: figures.Figures) -> watching.StartWatch:
    """Loads a host during a block, and keeps the numbers under the name of a situation."""

    @contextlib.contextmanager
    def start(situation: str, host: str, *, planned: bool = False) -> Iterator[watching.Watch]:
        with watching.watch(cluster.ingress, host) as seen:
            yield seen
        facts = {**seen.facts, "hey_requests": seen.hey.requests, "hey_failed": seen.hey.failed}
        book.add(situation, seen.report, planned=planned, recovery=seen.recovery, **facts)

    return start
