"""What callers and the predictor see when requests share a batch."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

from tests.app.conftest import PREDICT

pytestmark = pytest.mark.looptime


async def test_requests_that_arrive_together_share_one_call_and_one_batch_id(bench):
    answers = await bench.post_all(*(f'{{"instances":[{i},"{i}"]}}' for i in range(2)))
    assert bench.predictor.batches == [[b"0", b'"0"', b"1", b'"1"']]
    ids = set()
    for i, (status, body, headers) in enumerate(answers):
        assert status == 200
        assert headers["Content-Type"] == "application/json"
        assert "carpool-batch-count" not in headers
        answer = json.loads(body)
        assert list(answer) == ["message", "batchId", "predictions"]
        assert answer["message"] == ""
        assert answer["predictions"] == [i, str(i)]
        ids.add(answer["batchId"])
    assert uuid.UUID(ids.pop()).version == 4
    assert not ids


async def test_a_lone_request_is_answered_after_max_latency(bench):
    loop = asyncio.get_running_loop()
    started = loop.time()
    status, _body, _ = await bench.post('{"instances":[1]}')
    assert status == 200
    assert 0.5 <= loop.time() - started < 0.51


async def test_a_full_batch_does_not_wait(bench):
    loop = asyncio.get_running_loop()
    started = loop.time()
    await bench.post_all(*['{"instances":[1]}'] * 4)
    assert loop.time() - started < 0.1


async def test_kserves_own_case_four_requests_of_two_instances_get_equal_bodies(sidecar_of):
    """K11 of the conformance list: test/e2e/batcher of kserve/kserve with 32/5000."""
    bench = await sidecar_of(max_batch_size=32, max_latency=5000)
    body = '{"instances":[[6.8,2.8,4.8,1.4],[6.0,3.4,4.5,1.6]]}'
    answers = await bench.post_all(*[body] * 4)
    assert len({answer for _, answer, _ in answers}) == 1
    assert len(bench.predictor.seen) == 1


@pytest.mark.parametrize(
    "text", ["9007199254740993", "1.0", "1e400", '"\\u003c"', "-0.0", '"é"', '{"b":1,"a":[ 2 ]}', '"<>"']
)
async def test_numbers_and_strings_survive_byte_for_byte_in_both_directions(sidecar_of, text):
    bench = await sidecar_of(max_latency=0)
    _status, body, _ = await bench.post(f'{{"instances":[{text}]}}')
    assert bench.predictor.seen[0].body == f'{{"instances":[{text}]}}'.encode()
    assert body.endswith(f'"predictions":[{text}]}}'.encode())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"path": PREDICT}, {"path": "/v1/models/n:predict"}),
        ({"path": PREDICT}, {"path": "/v1/models/m/versions/3:predict"}),
        ({"path": PREDICT}, {"path": "/v1/models/m/labels/stable:predict"}),
        ({"path": PREDICT}, {"path": PREDICT + "?x=1"}),
        ({"headers": {"Authorization": "a"}}, {"headers": {"Authorization": "b"}}),
        ({"headers": {"Content-Type": "application/json"}}, {"headers": {"Content-Type": "text/plain"}}),
        ({"body": '{"instances":[1],"signature_name":"a"}'}, {"body": '{"instances":[1],"signature_name":"b"}'}),
        ({"body": '{"instances":[1]}'}, {"body": '{"inputs":[1]}'}),
    ],
)
async def test_requests_that_differ_in_what_the_predictor_sees_never_share_a_batch(bench, one, other):
    answers = await asyncio.gather(
        *(bench.post(**{"body": '{"instances":[1]}', **options}) for options in (one, other, one))
    )
    assert sorted(len(seen.rows) for seen in bench.predictor.seen) == [1, 2]
    assert all(status == 200 for status, _, _ in answers)


async def test_all_lines_of_a_key_header_are_part_of_the_key(bench):
    first = "Authorization: a\r\n"
    answers = await asyncio.gather(
        *(bench.raw("POST", PREDICT, lines, b'{"instances":[1]}') for lines in (first, first + "Authorization: b\r\n"))
    )
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
    assert sorted(seen.headers["Authorization"] for seen in bench.predictor.seen) == ["a", "a, b"]


@pytest.mark.parametrize("path", ["/v1/models/m%3Apredict", "/v1/models/m%3apredict?a=:b", "/v1/models/m%41:predict"])
async def test_an_escaped_path_is_batched_and_arrives_as_it_is(bench, path):
    answer = await bench.raw("POST", path, body=b'{"instances":[1]}')
    assert b"batchId" in answer
    assert bench.predictor.seen[0].target == path


async def test_a_target_in_absolute_form_is_the_path_in_it(bench):
    targets = (PREDICT, "http://any.example:1" + PREDICT)
    answers = await asyncio.gather(*(bench.raw("POST", target, body=b'{"instances":[1]}') for target in targets))
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
    assert [seen.target for seen in bench.predictor.seen] == [PREDICT]


async def test_a_number_sign_in_the_target_is_kept(bench):
    await bench.raw("POST", "/a#b:predict", body=b'{"instances":[1]}')
    assert bench.predictor.seen[0].target == "/a#b:predict"
    assert bench.predictor.batches == [[b"1"]]


async def test_the_predictor_sees_the_shared_path_members_and_headers(bench):
    await bench.post(
        '{"signature_name" : "s","instances":[1]}',
        path="/v1/models/a%2Fb:predict?x=%20y",
        headers={"Authorization": "Bearer t", "Content-Type": "application/json", "Cookie": "c=1"},
    )
    seen = bench.predictor.seen[0]
    assert seen.target == "/v1/models/a%2Fb:predict?x=%20y"
    assert seen.body == b'{"signature_name" : "s","instances":[1]}'
    assert seen.headers["Authorization"] == "Bearer t"
    assert seen.headers["Content-Type"] == "application/json"
    assert "Cookie" not in seen.headers


async def test_headers_of_the_key_can_be_chosen(sidecar_of):
    bench = await sidecar_of(max_latency=500, key_headers="X-Tenant")
    await asyncio.gather(
        bench.post('{"instances":[1]}', headers={"X-Tenant": "a", "Authorization": "1"}),
        bench.post('{"instances":[2]}', headers={"X-Tenant": "a", "Authorization": "2"}),
        bench.post('{"instances":[3]}', headers={"X-Tenant": "b"}),
    )
    assert sorted((seen.headers["X-Tenant"], len(seen.rows)) for seen in bench.predictor.seen) == [("a", 2), ("b", 1)]
    assert not any("Authorization" in seen.headers for seen in bench.predictor.seen)


async def test_request_ids_of_all_members_and_the_first_trace_reach_the_predictor(bench):
    traces = [f"00-{i:032x}-{i:016x}-01" for i in (1, 2)]
    tasks = []
    for number, trace in enumerate(traces):
        headers = {"X-Request-ID": f"id-{number}", "traceparent": trace, "tracestate": f"n={number}"}
        tasks.append(asyncio.ensure_future(bench.post('{"instances":[1]}', headers=headers)))
        await bench.queued(number + 1)
    await asyncio.gather(*tasks)
    seen = bench.predictor.seen[0]
    assert seen.headers["X-Request-ID"] == "id-0, id-1"
    assert seen.headers["traceparent"] == traces[0]
    assert seen.headers["tracestate"] == "n=0"


async def test_a_request_larger_than_a_batch_is_rejoined_and_told_the_first_and_how_many(bench):
    _status, body, headers = await bench.post('{"instances":[0,1,2,3,4,5,6,7,8,9]}')
    answer = json.loads(body)
    assert answer["predictions"] == list(range(10))
    assert uuid.UUID(answer["batchId"]).version == 4
    assert headers["carpool-batch-count"] == "3"
    assert [len(rows) for rows in bench.predictor.batches] == [4, 4, 2]


async def test_of_very_many_batches_the_first_is_named_and_all_are_counted(sidecar_of):
    bench = await sidecar_of(max_batch_size=32, max_latency=0)
    _, body, headers = await bench.post(json.dumps({"instances": [0] * 16_000}))
    assert len(json.loads(body)["predictions"]) == 16_000
    assert headers["carpool-batch-count"] == "500"
    assert sum(map(len, headers.values())) < 200


async def test_outputs_of_tensorflow_serving_keep_their_name(sidecar_of):
    bench = await sidecar_of(max_latency=0)
    bench.predictor.behave = _answer_outputs
    _, body, _ = await bench.post('{"inputs":[1]}')
    assert json.loads(body)["outputs"] == [1]


def _answer_outputs(seen, request):
    from aiohttp import web

    return web.Response(body=b'{"outputs":[' + b",".join(seen.rows) + b"]}")


async def test_a_caller_that_leaves_is_taken_out_before_dispatch_and_its_mates_notice_nothing(bench):
    leaver = asyncio.ensure_future(bench.post('{"instances":["leaver"]}'))
    await bench.queued(1)
    stayer = asyncio.ensure_future(bench.post('{"instances":["stayer"]}'))
    await bench.queued(2)
    leaver.cancel()
    _status, body, _ = await stayer
    assert bench.predictor.batches == [[b'"stayer"']]
    assert json.loads(body)["predictions"] == ["stayer"]
    assert await bench.metric("carpool_abandoned_total") == 1


async def test_a_caller_that_leaves_after_dispatch_does_not_disturb_its_mates(bench):
    bench.predictor.gate.clear()
    tasks = [asyncio.ensure_future(bench.post(f'{{"instances":[{i}]}}')) for i in range(4)]
    await bench.predictor.received(1)
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    bench.predictor.gate.set()
    answers = await asyncio.gather(*(tasks[i] for i in (0, 2, 3)))
    assert [json.loads(body)["predictions"] for _, body, _ in answers] == [[0], [2], [3]]


async def test_many_callers_each_get_their_own_answer(sidecar_of):
    bench = await sidecar_of(max_batch_size=8, max_latency=5, max_in_flight=3)

    async def caller(number: int) -> None:
        for turn in range(10):
            rows = [f"{number}-{turn}-{i}" for i in range(1 + (number + turn) % 11)]
            status, body, _ = await bench.post(json.dumps({"instances": rows}))
            assert (status, json.loads(body)["predictions"]) == (200, rows)

    await asyncio.gather(*(caller(number) for number in range(40)))
    assert max(len(rows) for rows in bench.predictor.batches) <= 8


async def test_batching_can_be_turned_off(sidecar_of):
    bench = await sidecar_of(enable_batcher=False)
    status, body, _ = await bench.post('{"instances":[1]}')
    assert (status, body) == (200, b'{"predictions":[1]}')
