"""Plain v2 requests: their models are asked about first, and their bodies may be JSON and binary."""

from __future__ import annotations

import asyncio
import gc
import json
import struct
import warnings
from typing import Any

import pytest

from carpool.scheduling import messages
from carpool_sidecar import drain, errors
from carpool_sidecar.batching import model_registry, routes
from carpool_sidecar.protocols import interface as codecs
from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.v2_http import codec
from tests.server.connection_bench import V1_ROUTE, Bench, OwnHandler, Transport, post, settle

INFER = b"/v2/models/m/infer"
BODY = b'{"id":"7","inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1.5,2]}]}'
TENSOR = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}


class Predictor:
    """Tells of its model `m` once it `may_tell`."""

    def __init__(self, info: models.ModelInfo) -> None:
        self.info = info
        self.may_tell = asyncio.Event()
        self.registry = model_registry.ModelRegistry(
            self.ask, lambda known: codec.Codec(known.info, known.avoid), True, asyncio.get_running_loop().time
        )

    async def ask(self, name: models.ModelName) -> models.ModelInfo:
        await self.may_tell.wait()
        if name.name != "m":
            raise errors.UpstreamStatus(404, b"")
        return self.info

    def bench(self, **chosen: Any) -> Bench:
        """With the sidecar's own handler."""
        bench = Bench(routes.Routes(V1_ROUTE, routes.Models(self.registry, None)), **chosen)  # type: ignore[arg-type]
        bench.handler = OwnHandler(bench)
        return bench


@pytest.fixture
async def predictor() -> Predictor:
    return Predictor(models.ModelInfo(max_batch_size=4))


def passed(bench: Bench) -> list[bytes]:
    """The bodies of what was passed on."""
    assert isinstance(bench.handler, OwnHandler)
    return [b"".join(asked.take()) for asked in bench.handler.passed]


def infer(body: bytes = BODY, *lines: bytes) -> bytes:
    return post(body, *lines, target=INFER)


async def told(predictor: Predictor, client: Transport) -> None:
    predictor.may_tell.set()
    for _ in range(5):
        await settle()
    assert client.is_reading()


def answer(bench: Bench) -> None:
    """The predictor gives the first call, which travelled alone, what it sent."""
    call = bench.driver.calls.pop(0)
    outgoing = call.tag.route.codec.merge("the-batch", call.tag.target, [messages.Part(call, 0, call.rows)])
    body = b"".join(outgoing.body).replace(b"inputs", b"outputs")
    found = outgoing.read(codecs.UpstreamResponse(body, {}))
    call.replier.answer([messages.Answer(call, [messages.Piece(0, "an-id", found.rows[0 : call.rows])])], found)


async def test_a_head_without_the_size_of_its_json_is_not_taken_for_one_that_has_it(predictor: Predictor) -> None:
    predictor.may_tell.set()
    bench = predictor.bench()
    client = bench.connect()
    client.send(infer())  # its model is known afterwards
    await told(predictor, client)
    request = infer(BODY).replace(b"application/json", b"image/png")
    sized = request.replace(
        b"\r\nContent-Length", b"\r\nInference-Header-Content-Length: %d\r\nContent-Length" % len(BODY)
    )
    bench.connect().send(sized)
    assert (bench.driver.submitted, passed(bench)) == (2, [])
    bench.connect().send(request)
    await settle()
    assert (bench.driver.submitted, len(passed(bench))) == (2, 1)


async def test_requests_wait_until_the_predictor_has_told_of_their_model_and_keep_their_order(
    predictor: Predictor,
) -> None:
    bench = predictor.bench()
    client = bench.connect()
    client.send(infer() + infer()[:30])
    client.send(infer()[30:])
    await settle()
    assert bench.driver.calls == []
    await told(predictor, client)
    for _ in range(2):
        assert [call.payload.row_count for call in bench.driver.calls] == [1]
        assert bench.driver.calls[0].max_batch_size == 4
        answer(bench)
        await settle()
    assert client.statuses == [200, 200]
    assert client.received.count(b'"id":"7"') == 2
    await predictor.registry.close()


async def test_an_answer_has_the_predictors_words_and_the_batchs_id_in_a_header(predictor: Predictor) -> None:
    bench = predictor.bench()
    client = bench.connect()
    client.send(infer())
    await told(predictor, client)
    answer(bench)
    head, _, body = client.received.partition(b"\r\n\r\n")
    assert b"carpool-batch-id: an-id" in head
    assert b"Content-Type: application/json" in head
    assert b"Content-Length: %d" % len(body) in head
    assert json.loads(body)["outputs"][0]["data"] == [1.5, 2]
    assert bench.metrics.requests.labels("batched", 200).value == 1


async def test_the_same_connection_is_recognised_whatever_the_size_of_the_json_before_the_tensors(
    predictor: Predictor,
) -> None:
    bench = predictor.bench()
    client = bench.connect()
    predictor.may_tell.set()
    for number in (1, 23, 456):
        header = json.dumps({"id": str(number), "inputs": [TENSOR]}).encode()
        size = b"Inference-Header-Content-Length: %d" % len(header)
        client.send(infer(header + struct.pack("<2f", 1, number), size))
        await told(predictor, client)
        [call] = bench.driver.calls
        assert call.tag.json_size == len(header)
        assert call.payload.row_count == 1
        answer(bench)
    assert passed(bench) == []
    assert client.statuses == [200, 200, 200]


async def test_json_and_binary_callers_may_share_a_batch(predictor: Predictor) -> None:
    bench = predictor.bench()
    header = json.dumps({"inputs": [TENSOR]}).encode()
    size = b"Inference-Header-Content-Length: %d" % len(header)
    clients = [bench.connect(), bench.connect()]
    clients[0].send(infer())
    clients[1].send(infer(header + struct.pack("<2f", 1, 2), size))
    await told(predictor, clients[0])
    one, other = bench.driver.calls
    assert one.key == other.key


@pytest.mark.parametrize("target", [b"/v2/models/other/infer", INFER])
async def test_what_must_not_be_batched_is_left_to_who_answers_any_request(target: bytes) -> None:
    predictor = Predictor(models.ModelInfo(max_batch_size=0))
    bench = predictor.bench()
    client = bench.connect()
    client.send(post(BODY, target=target))
    await settle()
    assert passed(bench) == []
    await told(predictor, client)
    assert bench.driver.calls == []
    assert passed(bench) == [BODY]


async def test_a_model_whose_outputs_turn_out_to_be_uneven_is_batched_no_more(predictor: Predictor) -> None:
    bench = predictor.bench()
    client = bench.connect()
    client.send(infer())
    await told(predictor, client)
    answer(bench)
    (await predictor.registry.ask(models.ModelName("m"))).avoid()
    client.send(infer())
    await settle()
    assert bench.driver.calls == []
    assert passed(bench) == [BODY]
    await predictor.registry.close()


async def test_a_request_counts_as_accepted_while_its_model_is_asked_about(predictor: Predictor) -> None:
    bench = predictor.bench()
    client = bench.connect()
    client.send(infer())
    await settle()
    assert bench.life.active == 1
    bench.life.draining, bench.life.phase = True, drain.Phase.REFUSING
    await told(predictor, client)
    assert bench.life.active == 1
    bench.driver.refuse(errors.Draining())
    assert client.statuses == [503]
    assert bench.life.active == 0
    await predictor.registry.close()


async def test_a_client_that_leaves_while_its_model_is_asked_about_is_forgotten(predictor: Predictor) -> None:
    bench = predictor.bench()
    client = bench.connect()
    client.send(infer())
    await settle()
    client.leave()
    predictor.may_tell.set()
    for _ in range(5):
        await settle()
    assert bench.driver.calls == []
    assert bench.life.active == 0
    assert bench.connections == set()


async def test_a_client_that_leaves_at_once_leaves_no_work_behind_that_nobody_began(predictor: Predictor) -> None:
    bench = predictor.bench()
    with warnings.catch_warnings(record=True) as told_of:
        warnings.simplefilter("always")
        client = bench.connect()
        client.send(infer())
        client.leave()
        await settle()
        gc.collect()
    assert [str(each.message) for each in told_of] == []
    assert (bench.memory.held, bench.life.active) == (0, 0)


async def test_a_refused_v2_request_is_told_honestly_even_in_kserves_words(predictor: Predictor) -> None:
    bench = predictor.bench(kserve_errors=True)
    client = bench.connect()
    client.send(infer())
    await told(predictor, client)
    bench.driver.refuse(errors.UpstreamUnreachable())
    assert client.statuses == [502]
    assert client.received.endswith(b'{"error":"the predictor cannot be reached"}')


async def test_parts_of_a_split_request_that_do_not_go_together_are_a_broken_answer(predictor: Predictor) -> None:
    bench = predictor.bench()
    client = bench.connect()
    rows = b'{"inputs":[{"name":"x","shape":[2,1],"datatype":"FP32","data":[1,2]}]}'
    client.send(infer(rows))
    await told(predictor, client)
    call = bench.driver.calls.pop()
    pieces = []
    for number, width in enumerate((1, 2)):
        outgoing = call.tag.route.codec.merge("the-batch", call.tag.target, [messages.Part(call, number, number + 1)])
        answer = b'{"outputs":[{"name":"y","shape":[1,%d],"datatype":"FP32","data":[%b]}]}'
        found = outgoing.read(codecs.UpstreamResponse(answer % (width, b",".join([b"1"] * width)), {}))
        pieces.append(messages.Piece(number, f"batch-{number}", found.rows[0:1]))
    call.replier.answer([messages.Answer(call, pieces)], found)
    assert client.statuses == [502]
    assert b"do not go together" in client.received
    assert bench.life.active == 0


class Broken:
    """A form with a bug."""

    def render(self, shares: object) -> codecs.RenderedResponse:
        raise ZeroDivisionError("bug")


async def test_a_bug_in_writing_an_answer_is_told_as_such(predictor: Predictor) -> None:
    bench = predictor.bench()
    client = bench.connect()
    client.send(infer())
    await told(predictor, client)
    bench.driver.calls[0].response_format = Broken()
    answer(bench)
    assert client.statuses == [500]
    assert bench.life.active == 0
