"""The v2 protocol through the whole sidecar, over HTTP and gRPC, in front of the fake v2 server."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc.aio
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException as Refused

from e2e.triton import http_requests
from tests.app import v2_bench

# What the sidecar refuses although the server takes such liberties, and what it makes possible by splitting.
STRICTER = {"inputs twice", "a byte order mark", 'BYTES "\udcff"'}
POSSIBLE = {"33 rows"}
KNOWN = {asked.name: asked for asked in (*http_requests.RIGHT, *http_requests.ROUNDED, *http_requests.WRONG)}


@pytest.fixture
async def bench() -> AsyncIterator[v2_bench.Bench]:
    async with v2_bench.running() as running:
        yield running


def rows(model: str, *values: list[float], ident: str = "") -> http_requests.InferRequest:
    """Rows in JSON."""
    tensor = http_requests.rows([number for row in values for number in row], (len(values), len(values[0])))
    return http_requests.ask("", model, tensor, **({"id": ident} if ident else {}))


def in_binary(model: str, *values: float) -> http_requests.InferRequest:
    """One row, in and out in binary."""
    tensor = http_requests.rows(None, (1, len(values)), binary_data_size=4 * len(values))
    return http_requests.binary(
        "", model, http_requests.floats(*values), tensor, parameters={"binary_data_output": True}
    )


async def behind_a_first(bench: v2_bench.Bench, first: Awaitable[Any], *others: Awaitable[Any]) -> list[Any]:
    """The answers to the others, all of whom came while the first was at the server."""
    bench.fake.gate.clear()
    earlier = asyncio.ensure_future(first)
    await bench.fake.at_work(1)
    tasks = [asyncio.ensure_future(other) for other in others]
    await bench.queued(1 + len(tasks))
    bench.fake.gate.set()
    await earlier
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_requests_in_json_share_a_batch_and_keep_their_ids(bench: v2_bench.Bench) -> None:
    asked = [rows("identity", [number, 0.5], ident=f"n{number}") for number in range(6)]
    answers = await behind_a_first(bench, bench.ask(rows("identity", [7])), *map(bench.ask, asked))
    assert [answer.json["id"] for answer in answers] == [f"n{number}" for number in range(6)]
    assert [answer.json["outputs"][0]["data"] for answer in answers] == [[number, 0.5] for number in range(6)]
    assert bench.fake.batches == [1, 6]


async def test_json_and_binary_share_a_batch(bench: v2_bench.Bench) -> None:
    asked = [rows("identity", [1, 2]), in_binary("identity", 3, 4), rows("identity", [5, 6], [7, 8])]
    text, binary, two = await behind_a_first(bench, bench.ask(rows("identity", [7])), *map(bench.ask, asked))
    assert text.json["outputs"][0]["data"] == [1, 2]
    assert binary.binary == http_requests.floats(3, 4)
    assert two.json["outputs"][0]["shape"] == [2, 2]
    assert two.json["outputs"][0]["data"] == [5, 6, 7, 8]
    assert bench.fake.batches == [1, 4]


async def test_requests_over_grpc_share_a_batch_and_keep_their_ids(bench: v2_bench.Bench) -> None:
    asked = [bench.infer("identity", ("rows", [[n, 1]]), request_id=f"n{n}") for n in range(6)]
    answers = await behind_a_first(bench, bench.infer("identity", ("rows", [[7]])), *asked)
    assert [answer.get_response().id for answer in answers] == [f"n{number}" for number in range(6)]
    assert [answer.as_numpy("rows_out").tolist() for answer in answers] == [[[number, 1]] for number in range(6)]
    assert bench.fake.batches == [1, 6]


async def test_rows_of_different_widths_do_not_meet(bench: v2_bench.Bench) -> None:
    asked = [rows("identity", [1, 2]), rows("identity", [3]), rows("identity", [4, 5])]
    answers = await behind_a_first(bench, bench.ask(rows("identity", [7, 7, 7])), *map(bench.ask, asked))
    assert [answer.json["outputs"][0]["data"] for answer in answers] == [[1, 2], [3], [4, 5]]
    assert sorted(bench.fake.batches) == [1, 1, 2]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_request_larger_than_the_model_takes_is_split_and_rejoined(
    bench: v2_bench.Bench, protocol: str
) -> None:
    values = [[float(number), -1.0] for number in range(11)]
    if protocol == "http":
        outputs = (await bench.ask(rows("small", *values, ident="x"))).json["outputs"]
        assert outputs[0]["shape"] == [11, 2]
        assert outputs[0]["data"] == [number for row in values for number in row]
    else:
        answer = await bench.infer("small", ("rows", values))
        assert answer.as_numpy("rows_out").tolist() == values
    assert sorted(bench.fake.batches) == [3, 4, 4]


async def test_a_request_in_hundreds_of_batches_is_told_the_first_and_how_many_over_http(bench: v2_bench.Bench) -> None:
    values = [[float(number)] for number in range(16_000)]
    answer = await bench.ask(rows("identity", *values))
    assert answer.json["outputs"][0]["shape"] == [16_000, 1]
    uuid.UUID(answer.headers["carpool-batch-id"])
    assert answer.headers["carpool-batch-count"] == str(len(bench.fake.batches)) == "500"


async def test_a_call_in_hundreds_of_batches_is_told_the_first_and_how_many_over_grpc(bench: v2_bench.Bench) -> None:
    asked = pb.ModelInferRequest(model_name="identity")
    asked.inputs.add(name="rows", datatype="FP32", shape=[16_000, 1])
    asked.raw_input_contents.append(http_requests.floats(*range(16_000)))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{bench.sidecar.settings.grpc_port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(asked.SerializeToString())
        answer = pb.ModelInferResponse.FromString(await call)
        told = dict(await call.trailing_metadata())
    assert answer.raw_output_contents == asked.raw_input_contents
    uuid.UUID(told["carpool-batch-id"])
    assert told["carpool-batch-count"] == str(len(bench.fake.batches)) == "500"


class TestTheIdOfABatch:
    """Some models cannot answer without one, as KServe's Python server writes its request's id into the answer."""

    @pytest.mark.parametrize("without", [rows("identity", [1.0]), in_binary("identity", 1.0)], ids=["json", "binary"])
    async def test_over_http_is_its_own_and_each_caller_gets_back_what_it_sent(
        self, bench: v2_bench.Bench, without: http_requests.InferRequest
    ) -> None:
        with_id = rows("identity", [2.0], ident="mine")
        answers = await behind_a_first(
            bench, bench.ask(rows("identity", [7.0, 7.0])), bench.ask(without), bench.ask(with_id)
        )
        assert [answer.json.get("id") for answer in answers] == [None, "mine"]
        assert bench.fake.batches == [1, 2]
        assert {answer.headers["carpool-batch-id"] for answer in answers} == {bench.fake.questions[-1].id}

    async def test_over_grpc_is_its_own_and_each_caller_gets_back_what_it_sent(self, bench: v2_bench.Bench) -> None:
        asked = [bench.infer("identity", ("rows", [[1.0]]), request_id=ident) for ident in ("", "mine")]
        answers = await behind_a_first(bench, bench.infer("identity", ("rows", [[7.0, 7.0]])), *asked)
        assert [answer.get_response().id for answer in answers] == ["", "mine"]
        assert bench.fake.batches == [1, 2]
        uuid.UUID(bench.fake.questions[-1].id)

    async def test_is_not_given_to_a_request_that_travels_alone(self, bench: v2_bench.Bench) -> None:
        for ident in ("", "mine"):
            answer = await bench.ask(rows("identity", [1.0], ident=ident))
            assert (bench.fake.questions[-1].id, answer.json.get("id", "")) == (ident, ident)
            await bench.infer("identity", ("rows", [[1.0]]), request_id=ident)
            assert bench.fake.questions[-1].id == ident


class TestEachQuestion:
    @pytest.mark.parametrize("name", KNOWN)
    async def test_gets_from_the_sidecar_what_it_gets_from_the_server(self, bench: v2_bench.Bench, name: str) -> None:
        alone = await bench.ask(KNOWN[name], bench.fake.http)
        self.check(name, await bench.ask(KNOWN[name]), alone)

    async def test_gets_the_same_among_all_others(self, bench: v2_bench.Bench) -> None:
        alone = {name: await bench.ask(asked, bench.fake.http) for name, asked in KNOWN.items()}
        mixed = random.Random(1).sample(list(KNOWN), len(KNOWN))
        for name, answer in zip(mixed, await asyncio.gather(*(bench.ask(KNOWN[name]) for name in mixed)), strict=True):
            self.check(name, answer, alone[name])

    def check(self, name: str, ours: v2_bench.Answer, alone: v2_bench.Answer) -> None:
        if name in POSSIBLE:
            assert (alone.status, ours.status) == (400, 200), name
        elif alone.status != 200 or name in STRICTER:
            assert ours.status in (alone.status, 400), (name, ours)
            assert list(ours.json) == ["error"], (name, ours)
        else:
            assert ours.status == 200, (name, ours)
            # As text, since no number is equal to NaN.
            assert (str(_without_empty_id(ours.json)), ours.binary) == (str(alone.json), alone.binary), name


MISFITS = (
    "too few numbers", "too many numbers", "ragged rows", "a negative dimension", "a fraction for a dimension",
    "text for a dimension", "no shape", "no data", "data that is a number", "data that is text", "too few strings",
    "too many strings", "a string beyond the end", "half a length",
)  # fmt: skip
"""Of shapes and data that do not go together: some servers take these."""


class TestShapesAndDataThatDoNotGoTogether:
    @pytest.mark.parametrize("in_pieces", [False, True], ids=["whole", "in_pieces"])
    async def test_are_the_servers_to_refuse_over_http(self, in_pieces: bool) -> None:
        large = rows("identity", [1.5] * 200_000)
        one_less = large._replace(name="large", body=large.body.replace(b"200000", b"200001"))
        assert one_less.body != large.body
        async with v2_bench.running() as bench:
            for asked in (*(KNOWN[name] for name in MISFITS), one_less):
                alone = await bench.ask(asked, bench.fake.http)
                bench.fake.received.clear()
                ours = await bench.ask(asked, in_pieces=in_pieces)
                assert (ours.status, ours.json) == (alone.status, alone.json), asked.name
                infers = [each.body for each in bench.fake.received if each.path.endswith("/infer")]
                assert infers == [asked.body], asked.name
            assert await bench.metric('carpool_unbatched_total{reason="shape"}') == len(MISFITS) + 1

    @pytest.mark.parametrize(
        ("shape", "datatype", "raw"),
        [([-1, 2], "FP32", b"\0" * 8), ([2, 2], "FP32", b"\0" * 8), ([59], "BYTES", b"\2\0\0\0ab")],
    )
    async def test_are_the_servers_to_refuse_over_grpc(
        self, bench: v2_bench.Bench, shape: list[int], datatype: str, raw: bytes
    ) -> None:
        asked = pb.ModelInferRequest(model_name="identity", raw_input_contents=[raw])
        asked.inputs.add(name="rows", datatype=datatype, shape=shape)
        told = []
        for port in (bench.fake.grpc_port, bench.sidecar.settings.grpc_port):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(asked.SerializeToString())
                told.append((refused.value.code(), refused.value.details()))
        assert told[0] == told[1]
        assert bench.fake.received[-1].body == asked.SerializeToString()
        assert await bench.metric('carpool_unbatched_total{reason="shape"}') == 1


class TestCulprits:
    async def test_only_the_caller_of_the_marked_row_fails_over_http(self, bench: v2_bench.Bench) -> None:
        asked = [rows("marked", [666.0 if number == 3 else number]) for number in range(8)]
        answers = await behind_a_first(bench, bench.ask(rows("marked", [1])), *map(bench.ask, asked))
        assert [answer.status for answer in answers] == [200] * 3 + [500] + [200] * 4
        assert "a row is marked" in answers[3].json["error"]

    async def test_only_the_caller_of_the_marked_row_fails_over_grpc(self, bench: v2_bench.Bench) -> None:
        asked = [bench.infer("marked", ("rows", [[400.0 if number == 3 else number]])) for number in range(8)]
        answers = await behind_a_first(bench, bench.infer("marked", ("rows", [[1]])), *asked)
        assert [number for number, answer in enumerate(answers) if isinstance(answer, Refused)] == [3]
        assert answers[3].status() == "StatusCode.INVALID_ARGUMENT"
        assert answers[3].message() == "a row is refused"

    async def test_what_is_no_request_never_reaches_the_server(self, bench: v2_bench.Bench) -> None:
        for name in (
            "the body b'{'", "no datatype", "data in both", "binary data without the header",
            "less binary data than announced", "more binary data than announced", "JSON shorter than announced",
        ):  # fmt: skip
            assert (await bench.ask(KNOWN[name])).status == 400
        assert [each.path for each in bench.fake.received if each.path.endswith("/infer")] == []


class TestPassingThrough:
    @pytest.mark.parametrize(
        ("reason", "asked", "status"),
        [
            ("no_batch_dimension", http_requests.ask("", "unbatched", http_requests.rows([1, 2], (2,))), 200),
            ("sequence", http_requests.ask("", "identity", http_requests.rows(), parameters={"sequence_id": 5}), 200),
            ("shared_memory", KNOWN["a shared memory region that nobody registered"], 404),
        ],
        ids=lambda value: str(value),
    )
    async def test_it_is_counted_by_its_reason(
        self, bench: v2_bench.Bench, reason: str, asked: http_requests.InferRequest, status: int
    ) -> None:
        assert (await bench.ask(asked)).status == status
        assert await bench.metric(f'carpool_unbatched_total{{reason="{reason}"}}') == 1
        assert await bench.metric("carpool_batch_size_count") == 0

    async def test_the_body_goes_as_it_came(self, bench: v2_bench.Bench) -> None:
        asked = http_requests.ask("", "unbatched", http_requests.rows([1, 2], (2,)), id="x")
        await bench.ask(asked)
        (body,) = [each.body for each in bench.fake.received if each.path.endswith("/infer")]
        assert body == asked.body

    async def test_a_model_that_answers_one_row_for_all_is_found_out_before_anybody_is_wrong(
        self, bench: v2_bench.Bench
    ) -> None:
        asked = [rows("total", [number, 1], [number, 2]) for number in range(6)]
        answers = await behind_a_first(bench, bench.ask(rows("total", [7, 7])), *map(bench.ask, asked))
        assert [answer.json["outputs"][0]["data"] for answer in answers] == [[2 * number, 3] for number in range(6)]
        assert (await bench.ask(asked[1])).json["outputs"][0]["data"] == [2, 3]
        assert await bench.metric('carpool_unbatched_total{reason="outputs"}') >= 1

    async def test_streams_and_other_methods_of_grpc(self, bench: v2_bench.Bench) -> None:
        assert await bench.rpc.is_server_ready()
        assert not await bench.rpc.is_model_ready("nobody")
        assert (await bench.rpc.get_model_metadata("add_sub")).name == "add_sub"
        with pytest.raises(Refused, match="Request for unknown model: 'nobody' is not found"):
            await bench.rpc.get_model_config("nobody")


class TestV1:
    @pytest.fixture(params=["triton-http", "triton-grpc"])
    async def v1(self, request: pytest.FixtureRequest) -> AsyncIterator[v2_bench.Bench]:
        async with v2_bench.running(upstream=request.param) as running:
            yield running

    async def predict(self, bench: v2_bench.Bench, model: str, *instances: Any) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"}
        answer = await bench.post(f"/v1/models/{model}:predict", {"instances": instances}, headers)
        return answer.status, answer.json["predictions" if answer.status == 200 else "error"]

    async def test_instances_become_tensors_and_share_a_batch(self, v1: v2_bench.Bench) -> None:
        asked = [self.predict(v1, "identity", [number, 0.5]) for number in range(6)]
        answers = await behind_a_first(v1, self.predict(v1, "identity", [7]), *asked)
        assert answers == [(200, [[number, 0.5]]) for number in range(6)]
        assert v1.fake.batches == [1, 6]

    async def test_several_inputs(self, v1: v2_bench.Bench) -> None:
        predictions = [{"sum": [11, 22], "difference": [-9, -18]}]
        assert await self.predict(v1, "add_sub", {"b": [10, 20], "a": [1, 2]}) == (200, predictions)

    async def test_ragged_rows_are_refused_to_their_caller_alone(self, v1: v2_bench.Bench) -> None:
        asked = [self.predict(v1, "identity", [1, 2]), self.predict(v1, "identity", [1, 2], [3])]
        fine, ragged = await asyncio.gather(*asked)
        assert fine == (200, [[1, 2]])
        assert ragged[0] == 400
        assert "rows" in ragged[1]

    async def test_a_model_that_fails_tells_its_caller(self, v1: v2_bench.Bench) -> None:
        status, words = await self.predict(v1, "marked", [666])
        assert status == 500
        assert "a row is marked" in words


class TestTheServerAway:
    async def test_callers_are_told_and_served_again_when_it_is_back(self, bench: v2_bench.Bench) -> None:
        assert (await bench.ask(rows("identity", [1]))).status == 200
        await bench.fake.stop()
        assert (await bench.ask(rows("identity", [1]))).status == 502
        await bench.fake.start()
        assert (await bench.ask(rows("identity", [2]))).json["outputs"][0]["data"] == [2]

    async def test_callers_of_grpc_are_told(self, bench: v2_bench.Bench) -> None:
        await bench.infer("identity", ("rows", [[1]]))
        await bench.fake.stop()
        with pytest.raises(Refused) as refused:
            await bench.infer("identity", ("rows", [[1]]))
        assert refused.value.status() == "StatusCode.UNAVAILABLE"


async def test_a_drain_answers_everybody_that_was_accepted(bench: v2_bench.Bench) -> None:
    bench.fake.gate.clear()
    asked = [asyncio.ensure_future(bench.ask(rows("identity", [number]))) for number in range(4)]
    asked += [asyncio.ensure_future(bench.infer("identity", ("rows", [[number]]))) for number in range(4)]
    await bench.queued(8)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(0)
    bench.fake.gate.set()
    answers = await asyncio.gather(*asked)
    assert [answer.json["outputs"][0]["data"] for answer in answers[:4]] == [[number] for number in range(4)]
    assert [answer.as_numpy("rows_out").tolist() for answer in answers[4:]] == [[[number]] for number in range(4)]
    assert await draining is True


async def test_callers_of_grpc_who_come_until_the_end_of_a_drain_are_turned_away_and_never_refused() -> None:
    """They would send to another pod who find nobody here, but take a refusal for the answer."""
    async with v2_bench.running(quiet_period=0.3, grace_period=3) as bench:
        draining = asyncio.ensure_future(bench.sidecar.drain())
        served, words = 0, ""
        while not words:
            try:
                await bench.infer("identity", ("rows", [[1]]))
                served += 1
            except Refused as refused:
                words = refused.message()
        assert await draining is True
        assert served > 10
        assert "shutting down" not in words


def _without_empty_id(answer: dict[str, Any]) -> dict[str, Any]:
    """An id that says nothing comes back from the sidecar, and not from Triton."""
    return {name: value for name, value in answer.items() if (name, value) != ("id", "")}
