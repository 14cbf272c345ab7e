"""What callers can make the webhook log: little, however much they send, and nothing of a pod."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from carpool_injector.core import model, refusals
from carpool_injector.objects import review
from carpool_injector.webhook import connections, metrics, reviewing, server, service
from tests.injector import reviews

BODY = json.dumps(reviews.asking()).encode()


async def fails(_: review.Request) -> review.Answer:
    raise KeyError("a bug")


async def malformed(_: review.Request) -> review.Answer:
    raise refusals.Malformed("spec.containers.0.env: must be a list, not 's3cr3t'")


async def answered(handler: server.Handler, sent: bytes, times: int = 20) -> list[str]:
    """The first lines of the answers to so many connections that send this."""
    found = []
    async with reviews.serving(server.Server({"/mutate": handler}, metrics.Metrics(), list)) as endpoint:
        port = int(endpoint.url.rpartition(":")[2])
        for _ in range(times):
            reader, writer = await asyncio.open_connection("localhost", port, ssl=endpoint.tls)
            writer.write(sent)
            found.append((await reader.readline()).decode().strip())
            writer.transport.abort()
    return found


def request(*headers: str, body: bytes = BODY) -> bytes:
    lines = ("POST /mutate HTTP/1.1", "Host: x", "Content-Type: application/json", *headers, "", "")
    return "\r\n".join(lines).encode() + body


LENGTH = f"Content-Length: {len(BODY)}"
SENT = {
    "a body that is not compressed as it says": (request("Content-Encoding: gzip", LENGTH), 415),
    "a body of unknown coding": (request("Content-Encoding: acme", LENGTH), 415),
    "what is no HTTP": (b"\x00\x01 s3cr3t\r\n\r\n", 400),
    "a header that is none": (request("Authorization s3cr3t", LENGTH), 400),
    "a broken chunk": (request("Transfer-Encoding: chunked", body=b"s3cr3t\r\n"), 400),
    "a path of somebody else": (request(LENGTH).replace(b"/mutate", b"/s3cr3t"), 404),
}


@pytest.mark.parametrize("kind", SENT)
async def test_what_a_caller_gets_wrong_is_its_own_error_and_told_once(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent, status = SENT[kind]
    assert {line.split()[1] for line in await answered(fails, sent)} == {str(status)}
    assert len(caplog.records) <= 2
    assert not [record for record in caplog.records if record.exc_info]
    assert "s3cr3t" not in caplog.text


async def test_a_bug_that_callers_can_repeat_is_told_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    assert {line.split()[1] for line in await answered(fails, request(LENGTH))} == {"500"}
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]


async def test_the_text_about_a_malformed_pod_is_for_its_owner_and_not_for_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert {line.split()[1] for line in await answered(malformed, request(LENGTH))} == {"400"}
    assert [record.getMessage() for record in caplog.records] == [
        "a review was not answered: what was sent is malformed"
    ]


async def test_refused_pods_are_told_of_seldom_and_with_short_names(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pod = {**reviews.POD, "metadata": {"labels": {"fate": "refused"}}}
    known = reviews.Known({"models": model.Namespace("models")})
    reviewer = reviewing.Reviewer(
        reviews.inject, lambda _: review.Verdict(review.Answer(), "fine"), known, metrics.Metrics()
    )
    for _ in range(200):
        await reviewer.mutate(reviews.request(pod, uid="u" * 100_000, name="n" * 100_000))
    assert 1 <= len(caplog.records) < 50
    assert max(len(str(value)) for value in caplog.records[0].facts.values()) == 260  # type: ignore[attr-defined]


@pytest.mark.looptime
async def test_events_that_cannot_be_written_are_told_of_seldom(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def create_event(self, namespace: str, owner: model.Object, reason: str, message: str) -> None:
            raise ConnectionError("no API server")

    told = reviewing.Events(Broken(), metrics.Metrics(), asyncio.get_running_loop().time)
    delivering = asyncio.create_task(told.deliver())
    outcome = model.Outcome({}, reviews.ASKED, refusal=reviews.REFUSAL)
    for number in range(100):
        owner = {"apiVersion": "v1", "kind": "Job", "name": "j", "uid": str(number), "controller": True}
        told.tell(review.Request("1", "CREATE", "Pod", object={"metadata": {"ownerReferences": [owner]}}), outcome)
    await asyncio.sleep(60)
    delivering.cancel()
    assert len(caplog.records) == 1


async def test_what_fails_where_nobody_waits_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(service.error_handler())
    for _ in range(10):
        loop.call_exception_handler({"message": "a callback failed", "exception": ValueError("x")})
    assert [bool(record.exc_info) for record in caplog.records] == [True]


def test_the_log_of_the_http_server_keeps_tracebacks_of_bugs(caplog: pytest.LogCaptureFixture) -> None:
    log = connections.ServerLog(logging.getLogger("carpool.test"))
    for number in range(10):
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            log.exception("Unhandled exception of %s", number, exc_info=error)
    assert [(record.getMessage(), bool(record.exc_info)) for record in caplog.records] == [
        ("Unhandled exception of 0", True)
    ]
