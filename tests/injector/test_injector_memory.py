"""No review leaves anything in memory for good."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import sys
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable

import pytest

from carpool_injector.core import config, injection, model, refusals
from carpool_injector.objects import review, validation
from carpool_injector.webhook import connections, metrics, reviewing
from tests.injector import pods, reviews


def test_memory_that_reference_cycles_keep_is_given_back_too() -> None:
    class Node:
        other: Node

    left, right = Node(), Node()
    left.other, right.other = right, left
    kept = weakref.ref(left)
    del left, right
    connections.give_back()
    assert kept() is None


# --- Nothing is kept of a review once it is answered -----------------------------------------------------------------

CONFIG = config.Config()
KINDS: dict[str, tuple[str, reviews.Object]] = {
    "injected": ("/mutate", pods.kserve(pods.sklearn())),
    "unconcerned": ("/mutate", {**pods.plain(pods.sklearn()), "metadata": {"name": "p"}}),
    "bad annotation": ("/mutate", pods.plain(pods.sklearn(), annotations={"carpool.dev/max-batch-size": "bad"})),
    "bad channel": ("/mutate", pods.plain(pods.sklearn(), annotations={"carpool.dev/image-channel": "x"})),
    "bad word": ("/mutate", pods.plain(pods.sklearn(), labels={"carpool.dev/inject": "yes"})),
    "unknown annotation": ("/mutate", pods.plain(pods.sklearn(), annotations={"carpool.dev/max-batch-sise": "3"})),
    "unknown server": ("/mutate", pods.plain(pods.custom())),
    "host network": ("/mutate", pods.plain(pods.sklearn(), hostNetwork=True)),
    "no pod": ("/mutate", {"kind": "Pod", "apiVersion": "v1", "spec": {"containers": [{"env": [3]}]}}),
    "denied": ("/validate", {}),
    "warned": ("/validate", {}),
}


def workload(pod: reviews.Object) -> reviews.Object:
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": template}}


KINDS["denied"] = ("/validate", workload(KINDS["bad annotation"][1]))
KINDS["warned"] = ("/validate", workload(KINDS["unknown annotation"][1]))


class NeverAsked:
    """The API behind Events, which are queued here and never delivered."""

    async def create_event(self, namespace: str, owner: model.Object, reason: str, message: str) -> None:
        raise AssertionError(f"an Event was delivered: {message}")


class Rim:
    """All of the webhook but sockets: bytes in, bytes out."""

    def __init__(self) -> None:
        counts = metrics.Metrics()
        rules = validation.Rules(self.inject, CONFIG)
        self.events = reviewing.Events(NeverAsked(), counts, asyncio.get_running_loop().time)
        known = reviews.Known({"models": model.Namespace("models")})
        reviewer = reviewing.Reviewer(
            self.inject, functools.partial(validation.validate, rules=rules), known, counts, self.events.tell
        )
        self.handlers = {"/mutate": reviewer.mutate, "/validate": reviewer.validate}

    @staticmethod
    def inject(pod: model.Object, namespace: model.Namespace) -> model.Outcome:
        return injection.inject(pod, CONFIG, namespace, model.Capabilities())

    async def answer(self, path: str, body: bytes) -> str:
        """What became of it, in a word or two."""
        try:
            asked = review.read(body)
            return review.write(asked.uid, await self.handlers[path](asked)).decode()
        except refusals.Malformed as error:
            return f"malformed: {error}"


async def growth(measure: Callable[[], int], times: int, work: Callable[[int], Awaitable[object]]) -> float:
    """What `measure` finds to be kept for each time that `work` is done, after that filled what is bounded."""
    for turn in range(-(times // 4), 0):
        await work(turn)
    gc.collect()
    before = measure()
    for turn in range(times):
        await work(turn)
    gc.collect()
    return (measure() - before) / times


@pytest.mark.parametrize("kind", [*KINDS, "no review"])
async def test_nothing_is_kept_of_a_review_whatever_came_of_it(kind: str) -> None:
    rim = Rim()
    path, thing = KINDS.get(kind, ("/mutate", reviews.POD))
    body = b'{"kind": "AdmissionReview"' if kind == "no review" else json.dumps(reviews.asking(thing)).encode()
    blocks = await growth(sys.getallocatedblocks, 150, lambda _: rim.answer(path, body))
    assert blocks < 10  # below it is noise; a single exception with its traceback and what that holds on to is dozens


async def test_the_kinds_of_reviews_above_come_to_what_they_are_called() -> None:
    rim = Rim()
    told = {
        kind: await rim.answer(path, json.dumps(reviews.asking(thing)).encode())
        for kind, (path, thing) in KINDS.items()
    }
    assert all('"patch"' in told[kind] for kind in ("injected", "unknown annotation"))
    assert "warnings" not in told["unconcerned"]
    assert all("warnings" in told[kind] for kind in ("bad annotation", "bad channel", "bad word", "unknown server"))
    assert "host" in told["host network"]
    assert told["no pod"].startswith("malformed: ")
    assert '"allowed": false' in told["denied"]
    assert '"allowed": true' in told["warned"]
    assert "did you mean" in told["warned"]


@pytest.mark.parametrize(("length", "times"), [(10, 6_000), (100_000, 400)])
async def test_what_waits_to_be_told_to_owners_is_bounded_in_number_and_in_size(length: int, times: int) -> None:
    told = Rim().events
    outcome = model.Outcome({}, reviews.ASKED, refusal=reviews.REFUSAL)
    assert outcome.result == "refused"

    async def refused(turn: int) -> None:
        uid = str(turn).rjust(length, "x")
        owner = {"apiVersion": "v1", "kind": "Job", "name": "j", "uid": uid, "controller": True}
        told.tell(review.Request("1", "CREATE", "Pod", object={"metadata": {"ownerReferences": [owner]}}), outcome)

    tracemalloc.start()
    try:
        assert await growth(lambda: tracemalloc.get_traced_memory()[0], times, refused) < 100
    finally:
        tracemalloc.stop()
