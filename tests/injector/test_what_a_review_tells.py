"""What a review leaves behind beside its answer: events, told once and remembered for a while, and the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import pytest

from carpool_injector.core import model, refusals
from carpool_injector.objects import review
from carpool_injector.webhook import metrics, reviewing
from tests.injector import reviews
from tests.injector.metric_samples import sample

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "11", "controller": True}


# --- Events


class Sink:
    def __init__(self) -> None:
        self.messages: list[str] = []

    async def create_event(self, namespace: str, owner: model.Object, reason: str, message: str) -> None:
        self.messages.append(f"{owner['uid']}: {message}")


class Teller:
    def __init__(self) -> None:
        self.now, self.sink, self.counts = 0.0, Sink(), metrics.Metrics()
        self.events = reviewing.Events(self.sink, self.counts, lambda: self.now)

    def refuse(self, uid: str = "1", message: str = "no", owner: Any = OWNER, explicit: bool = True) -> None:
        pod = {**reviews.POD, "metadata": {"ownerReferences": [{**owner, "uid": uid}]}}
        decision = model.Decision(True, explicit, "somebody", "asked")
        refusal = refusals.Refusal("code", message, "fix")
        self.events.tell(reviews.request(pod), model.Outcome(pod, decision, refusal=refusal))

    def repeated(self) -> float:
        return sample(self.counts, "events_total", result="repeated") or 0.0

    async def told(self) -> list[str]:
        task = asyncio.create_task(self.events.deliver())
        await asyncio.sleep(1000)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return self.sink.messages


def test_the_same_is_told_again_after_ten_minutes_to_the_second() -> None:
    subject = Teller()
    for now, repeated in ((0.0, 0), (599.9, 1), (600.0, 1), (1199.9, 2)):
        subject.now = now
        subject.refuse()
        assert subject.repeated() == repeated


def test_the_last_1024_are_remembered_the_oldest_telling_forgotten_first() -> None:
    subject = Teller()
    for number in range(1024):
        subject.refuse(str(number))
    subject.refuse("0")
    assert subject.repeated() == 1
    subject.now = 600.0
    subject.refuse("0")  # told anew: now the youngest
    subject.refuse("new")
    subject.refuse("0")
    assert subject.repeated() == 2
    subject.now = 0.0
    subject.refuse("2")
    assert subject.repeated() == 3
    subject.refuse("1")
    assert subject.repeated() == 3


@pytest.mark.looptime
async def test_each_reason_is_told_and_a_long_one_cut() -> None:
    subject = Teller()
    subject.refuse(message="a")
    subject.refuse(message="b" * 5000)
    told = await subject.told()
    assert len(told) == 2
    assert len(told[1].removeprefix("1: ")) == 1024


@pytest.mark.looptime
async def test_an_owner_with_an_empty_name_or_a_wish_of_the_namespace_is_not_told() -> None:
    subject = Teller()
    subject.refuse(owner={**OWNER, "name": ""})
    subject.refuse(explicit=False)
    assert await subject.told() == []


# --- Reviewing


@pytest.mark.parametrize(
    ("result", "level", "logged"),
    [("denied", logging.INFO, 1), ("fine", logging.INFO, 0), ("fine", logging.DEBUG, 1)],
)
async def test_what_is_denied_is_logged_and_what_is_fine_only_for_debugging(
    caplog: pytest.LogCaptureFixture, result: str, level: int, logged: int
) -> None:
    caplog.set_level(level, "carpool.injector")
    verdict = review.Verdict(review.Answer(), result)
    subject = reviewing.Reviewer(reviews.inject, lambda _: verdict, reviews.Known({}), metrics.Metrics())
    await subject.validate(reviews.request())
    wanted = logging.INFO if result == "denied" else logging.DEBUG
    assert [record.levelno for record in caplog.records if record.message == "reviewed"] == [wanted] * logged


async def test_only_a_new_pods_namespace_is_looked_up() -> None:
    subject = reviewing.Reviewer(
        reviews.inject, lambda _: review.Verdict(review.Answer(), "fine"), reviews.Known({}), metrics.Metrics()
    )
    assert (await subject.mutate(reviews.request(operation="UPDATE", old=reviews.POD))).patch == ()
    with pytest.raises(review.Unanswerable):
        await subject.mutate(reviews.request())


async def test_a_dry_run_is_told_to_nobody() -> None:
    told: list[str] = []
    subject = reviewing.Reviewer(
        reviews.inject, lambda _: review.Verdict(review.Answer(), "fine"),
        reviews.Known({"models": model.Namespace("models")}), metrics.Metrics(),
        tell=lambda request, outcome: told.append(request.uid),
    )  # fmt: skip
    await subject.mutate(reviews.request(dryRun=True))
    assert told == []
    await subject.mutate(reviews.request())
    assert len(told) == 1
