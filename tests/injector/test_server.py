"""The webhook over real TLS connections: answers, errors and probes."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from carpool_injector.core import model
from carpool_injector.objects import review
from carpool_injector.webhook import connections, metrics, reviewing, server
from tests.injector import reviews

NAMESPACES = reviews.Known({"models": model.Namespace("models")})


def a_server(
    counts: metrics.Metrics | None = None, missing: Callable[[], list[str]] = list, **options: Any
) -> server.Server:
    """A server around the stand-in for the injector; everything that is validated is fine."""
    counts = counts or metrics.Metrics()
    reviewer = reviewing.Reviewer(
        reviews.inject, lambda request: review.Verdict(review.Answer(), "fine"), NAMESPACES, counts
    )
    handlers = {"/mutate": reviewer.mutate, "/validate": reviewer.validate}
    return server.Server(handlers, counts, missing, **options)


def pod(**labels: str) -> dict[str, Any]:
    return {**reviews.POD, "metadata": {"generateName": "iris-", "labels": labels}}


async def test_a_pod_comes_back_with_a_patch() -> None:
    async with reviews.serving(a_server()) as endpoint:
        answer = await endpoint.post("/mutate?timeout=10s", reviews.asking())
        assert answer.status == 200
        assert answer.content_type == "application/json"
        found = reviews.response(await answer.read())
        assert reviews.patched(reviews.POD, found)["spec"]["initContainers"][0]["image"] == "sidecar-for-models"


async def test_both_webhooks_answer_on_one_connection_that_stays_open() -> None:
    async with reviews.serving(a_server()) as endpoint:
        for path in ("/mutate", "/validate", "/mutate"):
            answer = await endpoint.post(path, reviews.asking())
            assert answer.status == 200
            assert answer.version == aiohttp.HttpVersion11
            assert "close" not in answer.headers.get("Connection", "")


async def status_of(endpoint: reviews.Endpoint, body: Any, **options: Any) -> tuple[int, str]:
    """Status and message of an error, which has to be a Kubernetes Status."""
    answer = await endpoint.post("/mutate", body, **options)
    found = json.loads(await answer.read())
    assert (found["kind"], found["apiVersion"], found["status"]) == ("Status", "v1", "Failure")
    assert found["code"] == answer.status
    return answer.status, found["message"]


async def test_what_is_no_review_gets_400_with_what_and_where() -> None:
    async with reviews.serving(a_server()) as endpoint:
        assert await status_of(endpoint, b"hello") == (
            400,
            "carpool-injector: the body: expected an AdmissionReview in JSON, but expected value at line 1 column 1",
        )
        status, message = await status_of(endpoint, {**reviews.asking(), "apiVersion": "admission.k8s.io/v1beta1"})
        assert (status, "v1beta1" in message) == (400, True)
        assert (await status_of(endpoint, b"[" * 100_000))[0] == 400
        assert (await status_of(endpoint, reviews.asking({"kind": "Pod", "apiVersion": "v1"})))[0] == 400


async def test_another_media_type_gets_415() -> None:
    async with reviews.serving(a_server()) as endpoint:
        status, message = await status_of(endpoint, reviews.asking(), headers={"Content-Type": "text/yaml"})
        assert (status, "application/json" in message) == (415, True)
        compressed = {"Content-Encoding": "gzip"}
        assert (await status_of(endpoint, b"x", headers=compressed))[0] == 415


async def test_a_charset_beside_the_media_type_is_no_trouble() -> None:
    async with reviews.serving(a_server()) as endpoint:
        headers = {"Content-Type": "application/json; charset=utf-8"}
        assert (await endpoint.post("/mutate", reviews.asking(), headers=headers)).status == 200


async def test_a_bug_is_500_with_a_traceback_in_the_log_and_never_a_denial(caplog: pytest.LogCaptureFixture) -> None:
    counts = metrics.Metrics()
    async with reviews.serving(a_server(counts)) as endpoint:
        status, message = await status_of(endpoint, reviews.asking(pod(fate="bug")))
    assert status == 500
    assert "allowed" not in message
    assert any(record.exc_info and record.levelno == logging.ERROR for record in caplog.records)
    assert counts.registry.get_sample_value("carpool_injector_errors_total", {"reason": "internal"}) == 1


async def test_a_namespace_that_cannot_be_read_is_500() -> None:
    async with reviews.serving(a_server()) as endpoint:
        status, message = await status_of(endpoint, reviews.asking(namespace="gone"))
        assert (status, "namespace 'gone' could not be read" in message) == (500, True)


async def test_other_paths_and_methods_are_not_found() -> None:
    async with reviews.serving(a_server()) as endpoint:
        assert (await endpoint.get("/mutate"))[0] == 405
        assert (await endpoint.get("/"))[0] == 404


async def test_readiness_says_what_is_missing() -> None:
    missing = ["no certificate yet", "the namespaces are not known yet"]
    async with reviews.serving(a_server(missing=lambda: missing)) as endpoint:
        assert await endpoint.get("/readyz") == (
            503,
            "not ready: no certificate yet\nnot ready: the namespaces are not known yet\n",
        )
        missing.clear()
        assert await endpoint.get("/readyz") == (200, "ok\n")
        assert await endpoint.get("/livez") == (200, "ok\n")


async def test_metrics_are_served_in_the_text_format() -> None:
    async with reviews.serving(a_server()) as endpoint:
        await endpoint.post("/mutate", reviews.asking())
        status, text = await endpoint.get("/metrics")
        assert status == 200
        assert 'carpool_injector_injections_total{mode="native",takeover="port-swap"} 1.0' in text


async def test_draining_turns_readiness_at_once_while_reviews_are_still_answered() -> None:
    subject = a_server()
    async with reviews.serving(subject) as endpoint:
        subject.draining = True
        assert await endpoint.get("/readyz") == (503, "not ready: shutting down\n")
        answer = await endpoint.post("/mutate", reviews.asking())
        assert answer.status == 200
        assert answer.headers["Connection"] == "close"


async def test_a_client_without_the_right_certificate_gets_403_but_may_ask_for_readiness() -> None:
    def why_unwelcome(certificate: object) -> str | None:
        return "the client showed no certificate" if certificate is None else None

    async with reviews.serving(a_server(why_unwelcome=why_unwelcome)) as endpoint:
        assert await status_of(endpoint, reviews.asking()) == (
            403,
            "carpool-injector: the client showed no certificate",
        )
        assert (await endpoint.get("/readyz"))[0] == 200


async def test_older_tls_is_not_spoken() -> None:
    async with reviews.serving(a_server()) as endpoint:
        assert endpoint.tls is not None
        endpoint.tls.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(aiohttp.ClientConnectorError):
            await endpoint.get("/livez")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("1m30s", 90), ("500ms", 0.5), ("1.5s", 1.5), ("", None), ("10", None), ("-1s", None), ("0s", None)],
)
def test_durations_are_read_as_go_writes_them(text: str, seconds: float | None) -> None:
    assert server.seconds(text) == seconds


async def test_what_is_being_answered_at_the_end_is_finished() -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: review.Request) -> review.Answer:
        entered.set()
        await go_on.wait()
        return review.Answer()

    subject = server.Server({"/mutate": slow}, metrics.Metrics(), list)
    tls, trusting = reviews.certificates()
    listener = connections.Listener(subject.reviews(), grace=10, most=100)
    port = await listener.open("127.0.0.1", 0, tls)
    async with aiohttp.ClientSession() as session:
        endpoint = reviews.Endpoint(session, f"https://localhost:{port}", trusting)
        asked = asyncio.create_task(endpoint.post("/mutate", reviews.asking()))
        await entered.wait()
        closing = asyncio.create_task(listener.close())
        await asyncio.sleep(0)
        go_on.set()
        assert (await asked).status == 200
        await closing
        with pytest.raises(aiohttp.ClientConnectorError):
            await endpoint.get("/livez")


@pytest.mark.looptime
async def test_what_cannot_be_finished_in_time_is_cut_off_and_counted() -> None:
    async def never(_: review.Request) -> review.Answer:
        await asyncio.Event().wait()
        return review.Answer()

    counts = metrics.Metrics()
    subject = server.Server({"/mutate": never}, counts, list)
    tls, trusting = reviews.certificates()
    listener = connections.Listener(subject.reviews(), grace=4.0, most=100)
    port = await listener.open("127.0.0.1", 0, tls)
    async with aiohttp.ClientSession() as session:
        endpoint = reviews.Endpoint(session, f"https://localhost:{port}", trusting)
        asked = asyncio.create_task(endpoint.post("/mutate", reviews.asking()))
        await reviews.until(lambda: counts.registry.get_sample_value("carpool_injector_reviews_in_flight") == 1)
        began = asyncio.get_running_loop().time()
        await listener.close()
        assert 3.9 <= asyncio.get_running_loop().time() - began < 6.0
        assert subject.cut_off == 1
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await asked
