"""Events for the owners of pods: told seldom, and never in the way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from carpool_injector.core import model
from carpool_injector.webhook import metrics, reviewing
from tests.injector import reviews

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "11", "controller": True}
NAMED = {key: OWNER[key] for key in ("apiVersion", "kind", "name", "uid")}


class Sink:
    """Keeps what was written; fails or hangs when it is told to."""

    def __init__(self) -> None:
        self.written: list[tuple[str, Any, str, str]] = []
        self.error: Exception | None = None
        self.delay = 0.0

    async def create_event(self, namespace: str, owner: model.Object, reason: str, message: str) -> None:
        await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        self.written.append((namespace, owner, reason, message))


class Delivery:
    """Events in front of a sink, with a clock in the test's hand."""

    def __init__(self) -> None:
        self.sink = Sink()
        self.counts = metrics.Metrics()
        self.now = 0.0
        self.events = reviewing.Events(self.sink, self.counts, lambda: self.now)

    def refuse(self, owner: Any = OWNER, fate: str = "refused", **members: Any) -> None:
        metadata = {"labels": {"fate": fate, "carpool.dev/inject": "true"}, "ownerReferences": [owner]}
        request = reviews.request({**reviews.POD, "metadata": metadata}, **members)
        self.events.tell(request, reviews.inject(request.object or {}, model.Namespace("models")))

    def count(self, result: str) -> float:
        return self.counts.registry.get_sample_value("carpool_injector_events_total", {"result": result}) or 0.0

    @contextlib.asynccontextmanager
    async def delivering(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.events.deliver())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.mark.looptime
async def test_the_owner_is_told_why_and_what_to_do() -> None:
    subject = Delivery()
    subject.refuse()
    async with subject.delivering():
        await asyncio.sleep(1)
    namespace, owner, reason, message = subject.sink.written[0]
    assert (namespace, owner, reason) == ("models", NAMED, "CarpoolSidecarRefused")
    assert message.endswith("the app's port cannot be moved; set carpool.dev/app-port-arg")
    assert subject.count("sent") == 1


@pytest.mark.looptime
async def test_the_same_is_told_again_only_after_a_while_and_to_each_owner() -> None:
    subject = Delivery()
    async with subject.delivering():
        for _ in range(5):
            subject.refuse()
        subject.refuse({**OWNER, "uid": "12"})
        subject.now = 601.0
        subject.refuse()
        await asyncio.sleep(5)
    assert [owner["uid"] for _, owner, _, _ in subject.sink.written] == ["11", "12", "11"]
    assert subject.count("repeated") == 4


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("owner", "fate", "members"),
    [
        (OWNER, "refused", {"dryRun": True}),
        (OWNER, "injected", {}),
        (OWNER, "skipped", {}),
        (OWNER, "unconcerned", {}),
        ({**OWNER, "controller": False}, "refused", {}),
        ({"kind": "ReplicaSet", "controller": True}, "refused", {}),
        ({**OWNER, "name": 5}, "refused", {}),
        ("ReplicaSet", "refused", {}),
    ],
)
async def test_nobody_is_told_of_a_dry_run_of_what_went_well_or_without_an_owner(
    owner: Any, fate: str, members: dict[str, Any]
) -> None:
    subject = Delivery()
    async with subject.delivering():
        subject.refuse(owner, fate, **members)
        await asyncio.sleep(5)
    assert subject.sink.written == []


@pytest.mark.looptime
async def test_ten_a_second_at_most() -> None:
    subject = Delivery()
    async with subject.delivering():
        for number in range(100):
            subject.refuse({**OWNER, "uid": str(number)})
        await asyncio.sleep(2)
        assert 18 <= len(subject.sink.written) <= 22


async def test_what_the_queue_cannot_hold_is_dropped_without_waiting() -> None:
    subject = Delivery()
    for number in range(1000):
        subject.refuse({**OWNER, "uid": str(number)})
    assert subject.count("dropped") == 1000 - 256


@pytest.mark.looptime
async def test_an_event_that_fails_or_hangs_is_given_up_and_the_next_one_follows() -> None:
    subject = Delivery()
    async with subject.delivering():
        subject.sink.error = OSError("forbidden")
        subject.refuse()
        await asyncio.sleep(1)
        subject.sink.error, subject.sink.delay = None, 1000.0
        subject.refuse({**OWNER, "uid": "12"})
        await asyncio.sleep(6)
        subject.sink.delay = 0.0
        subject.refuse({**OWNER, "uid": "13"})
        await asyncio.sleep(1)
    assert [owner["uid"] for _, owner, _, _ in subject.sink.written] == ["13"]
    assert subject.count("failed") == 2
