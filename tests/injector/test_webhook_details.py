"""The webhook's rim at its limits: the last byte that fits, the last reader that waits, the last thing remembered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from injector.core import errors, model
from injector.objects import review
from injector.webhook import events, memory, metrics, namespaces, reviewing, room, server
from tests.injector import reviews

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "11", "controller": True}


async def at_once(_: review.Request) -> review.Answer:
    return review.Answer()


def a_server(handler: server.Handler = at_once, **limits: Any) -> tuple[server.Server, metrics.Metrics]:
    counts = metrics.Metrics()
    return server.Server({"/mutate": handler}, counts, list, server.Limits(**limits)), counts


def sample(counts: metrics.Metrics, name: str, **labels: str) -> float | None:
    return counts.registry.get_sample_value(f"carpool_injector_{name}", labels)


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    yield body


# --- Room


def test_room_is_there_up_to_the_last_review_and_the_last_byte() -> None:
    place = room.Room(reviews=2, held_bytes=100)
    with place.take(40), place.take(60):
        assert (place.taken, place.taken_bytes) == (2, 100)
        with pytest.raises(room.Full, match="2 reviews are at work"), place.take(0):
            pass
    with place.take(100), pytest.raises(room.Full, match="100 bytes"), place.take(1):
        pass
    assert (place.taken, place.taken_bytes) == (0, 0)


# --- The server


@pytest.mark.parametrize("spare", [0, -1])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_may_have_exactly_as_many_bytes_as_are_allowed(spare: int, chunked: bool) -> None:
    body = json.dumps(reviews.asking()).encode()
    subject, _ = a_server(max_body_bytes=len(body) + spare)
    async with reviews.serving(subject) as endpoint:
        answer = await endpoint.post("/mutate", in_pieces(body) if chunked else body)
        assert answer.status == (413 if spare else 200)


async def test_a_body_of_unknown_length_holds_room_for_the_largest() -> None:
    seen: list[float | None] = []

    async def look(_: review.Request) -> review.Answer:
        seen.append(sample(counts, "held_bytes"))
        return review.Answer()

    subject, counts = a_server(look, max_body_bytes=50_000)
    async with reviews.serving(subject) as endpoint:
        await endpoint.post("/mutate", in_pieces(json.dumps(reviews.asking()).encode()))
    assert seen == [50_000]


@pytest.mark.parametrize(
    ("headers", "length", "status", "closes"),
    [
        ({"Content-Type": "text/yaml"}, 10, 415, True),
        ({"Content-Encoding": "gzip"}, 10, 415, True),
        ({}, 20_001, 413, True),
        ({}, 10, 400, False),
    ],
)
async def test_a_connection_whose_body_was_not_read_is_closed_and_any_other_kept(
    headers: dict[str, str], length: int, status: int, closes: bool
) -> None:
    subject, _ = a_server(max_body_bytes=20_000)
    async with reviews.serving(subject) as endpoint:
        answer = await endpoint.post("/mutate", b"x" * length, headers=headers)
        assert (answer.status, answer.headers.get("Connection") == "close") == (status, closes)


async def test_a_review_for_which_there_is_no_room_gets_503_on_a_connection_that_is_closed() -> None:
    subject, _ = a_server(max_concurrent=0)
    async with reviews.serving(subject) as endpoint:
        answer = await endpoint.post("/mutate", reviews.asking())
        assert (answer.status, answer.headers.get("Connection")) == (503, "close")


@pytest.mark.looptime
async def test_a_body_that_came_too_late_closes_its_connection() -> None:
    async def begun() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(1000)

    subject, _ = a_server()
    async with reviews.serving(subject) as endpoint:
        answer = await endpoint.post("/mutate?timeout=1m", begun())
        assert (answer.status, answer.headers.get("Connection")) == (408, "close")


async def test_readiness_is_counted_as_it_was_told() -> None:
    subject, counts = a_server()
    async with reviews.serving(subject) as endpoint:
        assert (await endpoint.get("/readyz"))[0] == 200
        assert sample(counts, "ready") == 1
        subject.draining = True
        assert (await endpoint.get("/readyz"))[0] == 503
        assert sample(counts, "ready") == 0


@pytest.mark.parametrize(("text", "seconds"), [("2m", 120), ("10s junk", None), ("x10s", None), ("1h", None)])
def test_a_duration_is_read_whole_or_not_at_all(text: str, seconds: float | None) -> None:
    assert server.seconds(text) == seconds


# --- Namespaces


class Source:
    """Watches that end by themselves, one list of changes each; reads that last."""

    def __init__(self, *watches: list[namespaces.Change], delay: float = 0.0) -> None:
        self.watches = [*watches]
        self.began: list[float] = []
        self.delay = delay

    async def watch_namespaces(self) -> AsyncIterator[namespaces.Change]:
        self.began.append(asyncio.get_running_loop().time())
        for change in self.watches.pop(0) if self.watches else []:
            yield change

    async def read_namespace(self, name: str) -> model.Namespace:
        await asyncio.sleep(self.delay)
        return model.Namespace(name)


SYNCED: namespaces.Change = ("SYNCED", "", {}, {})


async def followed(source: Source, seconds: float) -> namespaces.Namespaces:
    subject = namespaces.Namespaces(source, metrics.Metrics())
    task = asyncio.create_task(subject.follow())
    await asyncio.sleep(seconds)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return subject


@pytest.mark.looptime
async def test_a_cluster_without_namespaces_is_known_once_that_was_told() -> None:
    assert (await followed(Source([SYNCED]), 0.1)).missing() == ""


@pytest.mark.looptime
async def test_some_namespaces_are_not_all_of_them() -> None:
    assert (await followed(Source([("ADDED", "models", {}, {})]), 0.1)).missing() != ""


@pytest.mark.looptime
async def test_a_namespace_that_changed_before_all_were_told_is_kept() -> None:
    subject = await followed(Source([("MODIFIED", "models", {"a": "b"}, {}), SYNCED]), 0.1)
    assert (await subject.get("models")).labels == {"a": "b"}


@pytest.mark.looptime
async def test_the_pause_doubles_up_to_half_a_minute_and_begins_anew_after_a_watch_that_told_all() -> None:
    source = Source(*[[] for _ in range(8)], [SYNCED])
    await followed(source, 200)
    pauses = [round(after - before, 1) for before, after in zip(source.began, source.began[1:], strict=False)]
    assert pauses[:10] == [0.5, 1, 2, 4, 8, 16, 30, 30, 0.5, 1]


@pytest.mark.looptime
async def test_who_waits_for_a_turn_to_read_gives_up_in_the_same_time() -> None:
    subject = namespaces.Namespaces(Source(delay=1.5), metrics.Metrics(), read_timeout=2.0)
    began = asyncio.get_running_loop().time()
    asked = [subject.get(f"n{number}") for number in range(17)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each).__name__ for each in found] == ["Namespace"] * 16 + ["Unanswerable"]
    assert asyncio.get_running_loop().time() - began == pytest.approx(2.0, abs=0.1)


# --- Events


class Sink:
    def __init__(self) -> None:
        self.messages: list[str] = []

    async def create_event(self, namespace: str, owner: model.Object, reason: str, message: str) -> None:
        self.messages.append(f"{owner['uid']}: {message}")


class Teller:
    def __init__(self) -> None:
        self.now, self.sink, self.counts = 0.0, Sink(), metrics.Metrics()
        self.events = events.Events(self.sink, self.counts, lambda: self.now)

    def refuse(self, uid: str = "1", message: str = "no", owner: Any = OWNER, explicit: bool = True) -> None:
        pod = {**reviews.POD, "metadata": {"ownerReferences": [{**owner, "uid": uid}]}}
        decision = model.Decision(True, explicit, "somebody", "asked")
        refusal = errors.Refusal("code", message, "fix")
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


@pytest.mark.looptime
async def test_an_idle_connection_is_kept_for_longer_than_gos_client_keeps_it() -> None:
    subject, _ = a_server()
    async with reviews.serving(subject) as endpoint:
        host, _, port = endpoint.url.removeprefix("https://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=endpoint.tls)
        for _ in range(2):
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(95)
        writer.close()
        await writer.wait_closed()


async def test_what_is_said_of_a_namespace_that_cannot_be_read_is_short() -> None:
    class Broken(Source):
        async def read_namespace(self, name: str) -> model.Namespace:
            raise OSError("x" * 10_000)

    with pytest.raises(review.Unanswerable) as caught:
        await namespaces.Namespaces(Broken(), metrics.Metrics()).get("models")
    assert len(str(caught.value)) < 400


@pytest.mark.looptime
async def test_a_body_that_is_announced_as_too_large_is_not_waited_for() -> None:
    subject, _ = a_server()
    async with reviews.serving(subject) as endpoint:
        host, _, port = endpoint.url.removeprefix("https://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=endpoint.tls)
        head = "POST /mutate HTTP/1.1", "Host: x", "Content-Type: application/json", "Content-Length: 9999999999"
        writer.write("\r\n".join([*head, "", ""]).encode())
        assert b" 413 " in await reader.readline()
        await reader.read()
        writer.close()


@pytest.mark.looptime
@pytest.mark.parametrize(("size", "trimmed"), [(300_000, 1), (1_000, 0)])
async def test_memory_is_given_back_after_a_large_review(
    monkeypatch: pytest.MonkeyPatch, size: int, trimmed: int
) -> None:
    times: list[int] = []
    monkeypatch.setattr(memory, "_trim", lambda: times.append(1))
    subject, _ = a_server()
    padded = reviews.asking()
    padded["request"]["options"]["padding"] = "x" * size
    async with reviews.serving(subject) as endpoint:
        assert (await endpoint.post("/mutate", padded)).status == 200
        await asyncio.sleep(5)
    assert len(times) == trimmed
