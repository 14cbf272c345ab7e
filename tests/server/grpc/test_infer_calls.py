"""How calls are taken, and what each outcome becomes on its stream."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from carpool.runtime import driver as drivers
from carpool_sidecar import drain, errors
from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.v2_grpc import statuses
from carpool_sidecar.server.grpc import arrivals
from carpool_sidecar.server.http2 import headers, server_stream
from tests.protocols.v2_grpc.test_grpc_codec import request
from tests.server.grpc.fake_stream import FakeStream
from tests.server.grpc.site import INFER, Site, until

FIELDS = ((b"content-type", b"application/grpc"), (b"te", b"trailers"))


def opened(
    site: Site, *fields: tuple[bytes, bytes], method: str = "POST", path: str = INFER
) -> tuple[FakeStream, server_stream.Handler]:
    stream = FakeStream()
    return stream, site.service.open(stream, headers.Head(method, path, b"here", FIELDS + fields))


def asking(**words: Any) -> bytes:
    made = request(name="rows", model_name="identity", **words)
    return arrivals.frame((made.SerializeToString(),))


# One input, and one raw contents more.
TWO_RAW = arrivals.frame((request(name="rows", model_name="identity").SerializeToString() + b"\x3a\0",))


def asked(
    site: Site, body: bytes | None = None, *fields: tuple[bytes, bytes]
) -> tuple[FakeStream, server_stream.Handler]:
    stream, handler = opened(site, *fields)
    handler.data(asking() if body is None else body)
    handler.end()
    return stream, handler


class Submitted(drivers.Driver):
    """Stands for the driver: it does nothing but to note what it is asked."""

    def __init__(self) -> None:
        self.calls: list[calls.Call] = []
        self.cancelled: list[calls.Call] = []

    def submit(self, call: calls.Call) -> None:
        self.calls.append(call)

    def cancel(self, call: calls.Call) -> None:
        self.cancelled.append(call)


@pytest.fixture
async def submitted(site: Site) -> Submitted:
    """What a site would submit; its model is known."""
    stream, _ = asked(site)
    await stream.end()
    site.service.driver = Submitted()
    return site.service.driver


@pytest.mark.parametrize(
    ("method", "fields", "status"),
    [
        ("GET", (), b"405"),
        ("POST", ((b"content-type", b"application/json"),), b"415"),
        ("POST", ((b"content-type", b"application/grpc-web"),), b"415"),
        ("POST", ((b"content-type", b"application/grpc+" + b"x" * 200),), b"415"),
    ],
)
async def test_what_is_no_grpc_is_refused_in_http(site: Site, method, fields, status) -> None:
    stream, handler = opened(site, *fields, method=method)
    assert stream.trailers[b":status"] == status
    assert stream.over.is_set()
    handler.data(b"x")
    handler.end()
    handler.cancelled()
    assert site.life.active == 0


async def test_a_call_carries_what_counts_of_its_head(site: Site, submitted: Submitted) -> None:
    fields = (
        (b"authorization", b"me"), (b"grpc-timeout", b"2S"), (b"x-request-id", b"7"), (b"traceparent", b"t"),
        (b"tracestate", b"s"), (b"other", b"dropped"),
    )  # fmt: skip
    asked(site, None, *fields)
    (call,) = submitted.calls
    head = call.tag
    assert (head.target, head.headers) == (INFER, (("Authorization", "me"),))
    assert (head.request_id, head.traceparent, head.tracestate) == ("7", "t", "s")
    assert 1.9 < head.timeout <= 2.0
    assert call.size == len(asking()) - 5
    assert site.bodies.memory.held == 0


async def test_a_message_may_come_byte_by_byte_and_counts_as_memory_until_the_queue_has_it(site, submitted) -> None:
    stream, handler = opened(site)
    body = asking()
    for i in range(len(body)):
        handler.data(body[i : i + 1])
        assert site.bodies.memory.held in (i + 1, len(body) - 5)
    assert stream.granted == len(body)
    handler.end()
    assert site.bodies.memory.held == 0
    assert len(submitted.calls) == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.BadRequest("bad"), statuses.INVALID_ARGUMENT),
        (errors.PayloadTooLarge("large"), statuses.RESOURCE_EXHAUSTED),
        (errors.Overloaded("full"), statuses.RESOURCE_EXHAUSTED),
        (errors.Draining(), statuses.UNAVAILABLE),
        (errors.NotIsolated(), statuses.UNAVAILABLE),
        (errors.UpstreamUnreachable(), statuses.UNAVAILABLE),
        (errors.UpstreamClosed(), statuses.UNAVAILABLE),
        (errors.OutOfSockets(), statuses.UNAVAILABLE),
        (errors.DeadlineExceeded(), statuses.DEADLINE_EXCEEDED),
        (errors.UpstreamTimeout(), statuses.DEADLINE_EXCEEDED),
        (errors.UpstreamBroken(), statuses.INTERNAL),
        (errors.CarpoolError(), statuses.INTERNAL),
    ],
)
async def test_each_failure_has_its_status(site: Site, submitted: Submitted, error, code) -> None:
    stream, _ = asked(site)
    site.service.refuse(submitted.calls[0], error)
    assert stream.status == code
    assert stream.trailers[b":status"] == b"200"
    assert stream.trailers[b"grpc-message"] == str(error).encode()
    assert (b"grpc-retry-pushback-ms" in stream.trailers) is (error.retry_after is not None)
    assert site.life.active == 0


async def test_the_predictors_own_status_comes_with_its_words_and_metadata(site: Site, submitted: Submitted) -> None:
    stream, _ = asked(site)
    error = statuses.failure(statuses.DATA_LOSS, "lost", (("why", "so"), ("why-bin", b"\0")))
    site.service.refuse(submitted.calls[0], error)
    assert stream.status == statuses.DATA_LOSS
    assert (stream.trailers[b"grpc-message"], stream.trailers[b"why"], stream.trailers[b"why-bin"]) == (
        b"lost",
        b"so",
        b"AA",
    )


async def test_a_caller_who_leaves_is_taken_out_of_the_queue(site: Site, submitted: Submitted) -> None:
    _, handler = asked(site)
    handler.cancelled()
    assert submitted.cancelled == submitted.calls
    assert site.life.active == 0


async def test_a_caller_who_leaves_in_the_middle_of_its_message_leaves_nothing_behind(site: Site, submitted) -> None:
    _, handler = opened(site)
    handler.data(asking()[:20])
    assert site.bodies.memory.held == 20
    handler.cancelled()
    assert (site.bodies.memory.held, site.life.active, submitted.calls) == (0, 0, [])


async def test_a_caller_who_leaves_while_its_model_is_asked_about_is_not_submitted(site: Site) -> None:
    _, handler = asked(site)
    assert site.bodies.memory.held > 0
    handler.cancelled()
    await site.registry.ask(("identity", ""))
    assert (site.bodies.memory.held, site.life.active) == (0, 0)
    assert site.fake.questions == []


async def test_callers_of_a_model_that_is_not_known_yet_share_a_batch(site: Site) -> None:
    both = [asked(site, asking(id=name))[0] for name in "ab"]
    for stream in both:
        await stream.end()
    answers = [pb.ModelInferResponse.FromString(stream.messages[0]) for stream in both]
    assert [answer.id for answer in answers] == ["a", "b"]
    assert site.fake.batches == [2]
    assert both[0].trailers[b"carpool-batch-id"] == both[1].trailers[b"carpool-batch-id"] == b"batch-1"


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"", statuses.INTERNAL, b"none was sent"),
        (asking() * 2, statuses.INTERNAL, b"more were sent"),
        (asking()[:-1], statuses.INTERNAL, b"in the middle of a message"),
        (arrivals.frame((b"\xff",)), statuses.INVALID_ARGUMENT, b"not a valid ModelInferRequest"),
        (arrivals.frame((b"\x0a\x01\xff",)), statuses.INVALID_ARGUMENT, b"UTF-8"),
        (TWO_RAW, statuses.INVALID_ARGUMENT, b"raw contents; got 2"),
        (b"\0\x7f\xff\xff\xff", statuses.RESOURCE_EXHAUSTED, b"larger than the limit"),
    ],
)
async def test_a_bad_call_is_refused_once_with_what_is_wrong(site: Site, submitted, body, code, words) -> None:
    stream, handler = opened(site)
    if body:
        handler.data(body)
    handler.end()
    assert stream.status == code
    assert words in stream.trailers[b"grpc-message"]
    assert (submitted.calls, site.bodies.memory.held, site.life.active) == ([], 0, 0)
    handler.data(b"more")
    handler.end()


async def test_a_full_memory_refuses_what_comes(site: Site, submitted) -> None:
    site.bodies.memory.limit = 10
    stream, _ = asked(site)
    assert stream.status == statuses.RESOURCE_EXHAUSTED
    assert site.bodies.memory.held == 0


@pytest.mark.parametrize("body", [b"", asking()[:10], asking()], ids=["nothing", "a part", "all but the end"])
async def test_a_message_that_does_not_come_to_its_end_is_given_up(site: Site, submitted, body) -> None:
    site.service.close()
    site.bodies.read_timeout = 0.05
    stream, handler = opened(site)
    if body:
        handler.data(body)
    await stream.end()
    assert stream.status == statuses.DEADLINE_EXCEEDED
    assert (site.bodies.memory.held, site.life.active) == (0, 0)


async def test_a_message_that_comes_in_many_pieces_has_no_more_time_than_any(site: Site, submitted) -> None:
    site.service.close()
    site.bodies.read_timeout = 0.2
    stream, handler = opened(site)
    message, pieces = asking(), 0
    for at in range(len(message) - 1):
        if stream.over.is_set():
            break
        handler.data(message[at : at + 1])
        pieces += 1
        await asyncio.sleep(0.02)
    assert 3 <= pieces < len(message) - 1
    assert stream.status == statuses.DEADLINE_EXCEEDED
    assert (site.bodies.memory.held, site.life.active) == (0, 0)


@pytest.mark.parametrize("field", [(b"grpc-timeout", b"soon"), (b"x-request-id", b"\xff")])
async def test_a_head_that_cannot_be_read_is_refused(site: Site, field) -> None:
    stream, _ = opened(site, field)
    assert stream.status == statuses.INVALID_ARGUMENT
    assert site.life.active == 0


async def test_a_deadline_that_has_passed_is_told_at_once(site: Site, submitted) -> None:
    stream, _ = asked(site, None, (b"grpc-timeout", b"0S"))
    assert stream.status == statuses.DEADLINE_EXCEEDED
    assert submitted.calls == []


async def test_the_callers_deadline_ends_its_wait(site: Site) -> None:
    site.fake.gate.clear()
    stream, _ = asked(site, None, (b"grpc-timeout", b"200m"))
    await stream.end()
    assert stream.status == statuses.DEADLINE_EXCEEDED
    site.fake.gate.set()


async def test_nothing_is_taken_while_the_sidecar_drains(site: Site) -> None:
    site.life.phase = drain.Phase.REFUSING
    for path in (INFER, "/any.Service/Method"):
        stream, _ = opened(site, path=path)
        assert stream.status == statuses.UNAVAILABLE
    assert site.life.active == 0


async def test_a_request_that_must_travel_alone_is_passed_through_as_it_is(site: Site) -> None:
    made = request(name="rows", model_name="identity", id="me")
    made.parameters["sequence_id"].int64_param = 5
    stream, _ = asked(site, arrivals.frame((made.SerializeToString(),)))
    await stream.end()
    assert pb.ModelInferResponse.FromString(stream.messages[0]).id == "me"
    assert site.fake.received[-1].body == made.SerializeToString()
    assert 'carpool_unbatched_total{reason="sequence"} 1.0' in site.counters.render().decode()
    assert b"carpool-batch-id" not in stream.trailers
    assert (site.bodies.memory.held, site.life.active) == (0, 0)


async def test_a_caller_who_leaves_while_its_request_travels_alone_is_forgotten(site: Site) -> None:
    site.fake.gate.clear()
    made = request(name="rows", model_name="identity")
    made.parameters["sequence_id"].int64_param = 5
    _, handler = asked(site, arrivals.frame((made.SerializeToString(),)))
    await until(lambda: site.fake.busy == 1)
    handler.cancelled()
    await until(lambda: site.fake.busy == 0)
    assert site.life.active == 0
    site.fake.gate.set()


async def test_without_batching_everything_is_passed_through(site: Site) -> None:
    site.service.models = None
    stream, _ = asked(site)
    await stream.end()
    assert stream.status == statuses.OK
    assert site.counted("passthrough", "OK") == 1


async def test_a_request_like_the_one_before_is_not_batched_once_its_model_must_not_be(
    site: Site, submitted: Submitted
) -> None:
    asked(site)
    model = site.registry.get(models.ModelName("identity", ""))
    assert (len(submitted.calls), len(site.service.outlines)) == (1, 1)
    assert model is not None
    model.avoid()
    stream, _ = asked(site)
    await stream.end()
    assert (len(submitted.calls), stream.status) == (1, statuses.OK)  # it was passed through


async def test_a_request_like_the_one_before_is_refused_once_it_has_more_rows_than_the_queue(site: Site) -> None:
    body = asking(shape=(3, 2), data=bytes(24))
    stream, _ = asked(site, body)
    await stream.end()
    site.driver.change_limits(dataclasses.replace(site.limits, max_queue_instances=2))
    stream, _ = asked(site, body)
    await stream.end()
    assert stream.status == statuses.RESOURCE_EXHAUSTED
    assert site.bodies.memory.held == 0
