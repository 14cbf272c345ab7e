"""Every way it can go wrong, with the status and the words each caller sees."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import pytest
from aiohttp import web

from carpool_sidecar.upstream import probes
from tests import loopback
from tests.app.conftest import PREDICT
from tests.app.fake_predictor import hang_up, refuse, refuse_poison

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize(
    "body",
    [
        b'{"instances":[1],"instances":[2]}', b'{"instances":[NaN]}', b'{"instances":[1]}trailing',
        b'{"instances":[1]]', b'{"instances":[1]}}',
        b'{"instances":["\xff"]}', b'{"instances":' + b"[" * 100_000, b"", b"{}", b'{"instances":[]}',
        b'{"instances":1}',
    ],
)  # fmt: skip
async def test_malformed_bodies_get_400_with_a_reason_and_are_never_forwarded(bench, body):
    mate = asyncio.ensure_future(bench.post('{"instances":["mate"]}'))
    status, answer, headers = await bench.post(body)
    assert status == 400
    assert headers["Content-Type"] == "application/json"
    assert json.loads(answer)["error"]
    assert (await mate)[0] == 200
    assert bench.predictor.batches == [[b'"mate"']]


async def test_the_predictors_own_status_body_and_headers_reach_the_caller(bench):
    bench.predictor.behave = refuse(418, b"short and stout", Content_Type="text/teapot", Retry_After="7", X_Other="no")
    status, body, headers = await bench.post('{"instances":[1]}')
    assert (status, body) == (418, b"short and stout")
    assert headers["Content-Type"] == "text/teapot"
    assert headers["Retry-After"] == "7"
    assert "X-Other" not in headers


async def test_one_poisonous_request_gets_its_own_error_and_its_mates_their_answers(bench):
    bench.predictor.behave = refuse_poison(400, b'"bad"')
    answers = await bench.post_all(*(f'{{"instances":["{row}"]}}' for row in ("1", "bad", "3", "4")))
    assert [status for status, _, _ in answers] == [200, 400, 200, 200]
    assert answers[1][1] == b'{"error":"poison"}'
    assert [json.loads(answers[i][1])["predictions"] for i in (0, 2, 3)] == [["1"], ["3"], ["4"]]
    assert await bench.metric('carpool_retries_total{reason="isolate"}') == 4


async def test_a_model_that_raises_on_one_instance_fails_for_its_caller_only(sidecar_of):
    """With the default settings: KServe's Python server and our predictor answer 500 then, with the model's words."""
    bench = await sidecar_of(max_batch_size=8, max_latency=500)
    bench.predictor.behave = refuse_poison(500, b'"SECRET"')
    rows = [*(f'"{number}"' for number in range(7)), '"SECRET"']
    answers = await bench.post_all(*(f'{{"instances":[{row}]}}' for row in rows))
    assert [status for status, _, _ in answers] == [200] * 7 + [500]
    assert answers[7][1] == b'{"error":"poison"}'


@pytest.mark.parametrize("status", [307, 401, 404, 429, 500, 502, 503])
@pytest.mark.parametrize("retry_statuses", ["", None])
async def test_the_predictors_words_about_a_batch_reach_nobody(sidecar_of, status, retry_statuses):
    chosen = {} if retry_statuses is None else {"retry_statuses": retry_statuses}
    bench = await sidecar_of(max_batch_size=4, max_latency=500, **chosen)
    bench.predictor.behave = lambda seen, request: (
        web.Response(status=status, text="could not convert SECRET", headers={"Retry-After": "7"})
        if seen.body and len(seen.rows) > 1
        else None
    )
    answers = await bench.post_all(*(f'{{"instances":["{name}"]}}' for name in ("SECRET", "b", "c", "d")))
    if (status, retry_statuses) == (500, None):
        assert {status for status, _, _ in answers} == {200}
        return
    for told, body, headers in answers:
        assert told == status
        assert b"SECRET" not in body
        assert "its words are kept back" in json.loads(body)["error"]
        assert headers["Retry-After"] == "7"
        assert headers["Content-Type"] == "application/json"


async def test_a_caller_that_keeps_sending_bad_requests_spoils_one_batch_and_no_more(sidecar_of):
    bench = await sidecar_of(max_batch_size=4, max_latency=500)
    bench.predictor.behave = refuse_poison(400, b'"bad"')
    bodies = [f'{{"instances":[{row}]}}' for row in ('"bad"', '"1"', '"2"', '"3"')]
    assert [status for status, _, _ in await bench.post_all(*bodies)] == [400, 200, 200, 200]
    sent = len(bench.predictor.batches)
    for _ in range(5):
        answers = await bench.post_all(*bodies)
        assert [status for status, _, _ in answers] == [400, 200, 200, 200]
        assert answers[0][1] == b'{"error":"poison"}'
    later = bench.predictor.batches[sent:]
    assert sorted(map(len, later)) == [1] * 5 + [3] * 5
    assert await bench.metric("carpool_suspect_instances") == 0
    assert await bench.metric('carpool_batches_total{reason="suspect"}') == 5


async def test_a_caller_behind_a_proxy_is_known_by_the_address_that_the_proxy_tells(sidecar_of):
    """Its bad requests are always new, look like those of others, and come on any connection."""
    bench = await sidecar_of(max_batch_size=4, max_latency=500, max_in_flight=1)
    bench.predictor.behave = lambda seen, request: (
        web.Response(status=400, text="no") if any(b"bad" in row for row in seen.rows) else None
    )
    callers = [("203.0.113.9", "bad"), ("198.51.100.1", "a"), ("198.51.100.2", "b"), ("198.51.100.3", "c")]
    for number in range(4):
        sent = len(bench.predictor.batches)
        answers = await asyncio.gather(*(
            bench.post(
                f'{{"instances":["{word}{number}"]}}',
                headers={"Content-Type": "application/json", "X-Forwarded-For": caller},
            )
            for caller, word in callers
        ))  # fmt: skip
        assert [status for status, _, _ in answers] == [400, 200, 200, 200]
        later = sorted(map(len, bench.predictor.batches[sent:]))
        assert later == [1, 3] if number >= 2 else later[-1] == 4


async def test_a_connection_closed_before_the_answer_is_retried_once(bench):
    bench.predictor.behave = hang_up(times=1)
    status, _body, _ = await bench.post('{"instances":[1]}')
    assert status == 200
    assert len(bench.predictor.seen) == 2
    assert await bench.metric('carpool_retries_total{reason="closed"}') == 1


async def test_a_connection_closed_twice_is_502(bench):
    bench.predictor.behave = hang_up(times=2)
    status, body, _ = await bench.post('{"instances":[1]}')
    assert status == 502
    assert "closed the connection" in json.loads(body)["error"]


async def test_an_unreachable_predictor_is_502(sidecar_of, unused_tcp_port):
    bench = await sidecar_of(max_batch_size=4, max_latency=500, component_port=unused_tcp_port)
    status, body, _ = await bench.post('{"instances":[1]}')
    assert status == 502
    assert "cannot be reached" in json.loads(body)["error"]


@pytest.mark.parametrize(
    "answer", [b"<html>", b"{}", b'{"predictions":[1,2]}', b'{"predictions":[]}', b'{"predictions":{"0":1}}', b""]
)
async def test_an_unusable_answer_is_502_and_leaves_the_next_batch_alone(bench, answer):
    bench.predictor.behave = lambda seen, request: web.Response(body=answer)
    status, body, _ = await bench.post('{"instances":[1]}')
    assert status == 502
    assert json.loads(body)["error"].startswith("the predictor")
    bench.predictor.behave = lambda seen, request: None
    assert (await bench.post('{"instances":[1]}'))[0] == 200


async def test_a_predictor_that_hangs_is_504_after_the_timeout_and_its_slot_is_free_again(sidecar_of):
    bench = await sidecar_of(max_latency=0, timeout=3)
    bench.predictor.gate.clear()
    loop = asyncio.get_running_loop()
    started = loop.time()
    status, body, _ = await bench.post('{"instances":[1]}')
    assert status == 504
    assert json.loads(body)["error"]
    assert 3 <= loop.time() - started < 3.1
    bench.predictor.gate.set()
    assert (await bench.post('{"instances":[1]}'))[0] == 200


@pytest.mark.parametrize("text", ["200", "000000000200"])
async def test_a_request_may_carry_its_own_deadline(bench, text):
    bench.predictor.gate.clear()
    loop = asyncio.get_running_loop()
    started = loop.time()
    status, _, _ = await bench.post('{"instances":[1]}', headers={"carpool-timeout-ms": text})
    assert status == 504
    assert 0.2 <= loop.time() - started < 0.21


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "soon", "٣", "9" * 30, "0" * 12, "0000000000200"])
async def test_a_deadline_that_is_no_number_of_milliseconds_is_400(bench, text):
    status, body, _ = await bench.post('{"instances":[1]}', headers={"carpool-timeout-ms": text})
    assert status == 400
    assert "carpool-timeout-ms must be a whole number from 1 to" in json.loads(body)["error"]


async def test_full_queue_answers_429_with_retry_after_and_serves_who_was_accepted(sidecar_of):
    bench = await sidecar_of(max_batch_size=1, max_latency=0, max_in_flight=1, max_queue_instances=2)
    bench.predictor.gate.clear()
    tasks = [asyncio.ensure_future(bench.post(f'{{"instances":[{i}]}}')) for i in range(3)]
    await bench.queued(3)
    status, body, headers = await bench.post('{"instances":[1]}')
    assert status == 429
    assert int(headers["Retry-After"]) >= 1
    assert "waiting already" in json.loads(body)["error"]
    bench.predictor.gate.set()
    assert [status for status, _, _ in await asyncio.gather(*tasks)] == [200, 200, 200]
    assert await bench.metric('carpool_refused_total{reason="queue_full"}') == 1


async def test_bodies_over_the_limit_are_413(sidecar_of):
    bench = await sidecar_of(max_body_bytes=2048)
    big = json.dumps({"instances": ["x" * 3000]})
    for body in (big, _chunks(big.encode())):
        status, answer, headers = await bench.post(body)
        assert status == 413
        assert headers["Connection"] == "close"
        assert "2048" in json.loads(answer)["error"]
    assert not any(seen.body for seen in bench.predictor.seen)


async def test_more_instances_than_the_queue_can_hold_are_413(sidecar_of):
    bench = await sidecar_of(max_queue_instances=10)
    status, body, _ = await bench.post(json.dumps({"instances": list(range(11))}))
    assert status == 413
    assert json.loads(body)["error"] == "more than 10 instances in one request"


async def _chunks(body):
    for start in range(0, len(body), 100):
        yield body[start : start + 100]


@pytest.mark.parametrize(
    ("coding", "encode"),
    [("gzip", gzip.compress), ("deflate", zlib.compress)],
)
async def test_compressed_requests_are_batched_with_plain_ones(bench, coding, encode):
    plain = asyncio.ensure_future(bench.post('{"instances":[1]}', headers={"Content-Type": "application/json"}))
    headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
    coded = asyncio.ensure_future(bench.post(encode(b'{"instances":[2]}'), headers=headers))
    answers = await asyncio.gather(plain, coded)
    assert [json.loads(body)["predictions"] for _, body, _ in answers] == [[1], [2]]
    assert len(bench.predictor.seen) == 1
    assert "Content-Encoding" not in bench.predictor.seen[0].headers


async def test_a_zip_bomb_is_413_and_unknown_codings_are_415(sidecar_of):
    bench = await sidecar_of(max_body_bytes=100_000)
    bomb = gzip.compress(b'{"instances":["' + b"x" * 10_000_000 + b'"]}')
    coded = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert (await bench.post(bomb, headers=coded))[0] == 413
    assert (await bench.post(b"not gzip", headers=coded))[0] == 400
    for coding in ("br", "zstd", "gzip, gzip"):
        status, _body, headers = await bench.post(b"?", headers={**coded, "Content-Encoding": coding})
        assert status == 415
        assert headers["Accept-Encoding"] == "gzip, deflate"


async def test_a_header_that_could_not_be_forwarded_as_it_is_is_400(bench):
    for name in ("Authorization", "Content-Type", "X-Request-ID", "traceparent", "tracestate"):
        value = "application/json; x=\udcff" if name == "Content-Type" else "a\udcffb"
        answer = await bench.raw("POST", PREDICT, {name: value}, b'{"instances":[1]}')
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert f"the value of the header {name} is not valid UTF-8".encode().lower() in answer.lower()
    assert bench.predictor.seen == []
    answer = await bench.raw("POST", PREDICT, {"Authorization": "größe", "X-Other": "\udcff"}, b'{"instances":[1]}')
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert bench.predictor.seen[0].headers["Authorization"] == "größe"


@pytest.mark.parametrize("path", [PREDICT, "/v1/models"])
async def test_a_bug_is_a_500_in_json_on_a_connection_that_lives(bench, monkeypatch, caplog, path):
    def break_down(*_):
        raise ZeroDivisionError("secret")

    with monkeypatch.context() as patch:
        patch.setattr(bench.sidecar.driver, "_call_soon", break_down)  # what `submit` calls
        patch.setattr(bench.sidecar._relays, "is_ending", break_down)
        status, body, headers = await bench.post('{"instances":[1]}', path=path)
    assert (status, headers["Content-Type"]) == (500, "application/json")
    assert json.loads(body) == {"error": "the sidecar failed to handle this request"}
    assert "Connection" not in headers
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
    lane = "batched" if path == PREDICT else "passthrough"
    assert await bench.metric(f'carpool_requests_total{{code="500",lane="{lane}"}}') == 1
    where = "http1" if path == PREDICT else "passthrough"
    assert await bench.metric(f'carpool_internal_errors_total{{where="{where}"}}') == 1
    assert (await bench.post('{"instances":[1]}', path=path))[0] == 200


async def test_a_bug_before_a_request_is_a_call_is_logged_and_counted_and_takes_nothing_from_the_caller(
    bench, monkeypatch, caplog
):
    codec, failures = bench.sidecar.upstreams.routes._v1.codec, [ZeroDivisionError("bug")]
    whole = codec.parse

    def break_down_once(body, max_rows, json_size):
        if failures:
            raise failures.pop()
        return whole(body, max_rows, json_size)

    monkeypatch.setattr(codec, "parse", break_down_once)
    assert (await bench.post('{"instances":[1]}'))[0] == 200
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
    assert await bench.metric('carpool_internal_errors_total{where="http1"}') == 1


async def test_a_bug_in_a_probe_is_a_500_in_json(bench, monkeypatch, caplog):
    async def break_down():
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(bench.sidecar.ready, "check", break_down)
        status, text, _ = await bench.get(bench.url, headers={"K-Network-Probe": "queue"})
    assert status == 500
    assert "error" in json.loads(text)
    assert (await bench.get(bench.url, headers={"K-Network-Probe": "queue"}))[0] == 200


async def test_a_bug_amid_an_answer_resets_the_connection_and_is_logged(bench, monkeypatch, caplog):
    def break_down(status):
        raise ZeroDivisionError

    monkeypatch.setattr(bench.sidecar._relays, "count", break_down)  # what is called behind an answer's last byte
    bench.predictor.behave = lambda seen, request: web.Response(body=b"whole")
    with pytest.raises(ConnectionError):
        await bench.raw("GET", "/x")
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
    assert await bench.metric('carpool_internal_errors_total{where="passthrough"}') == 1


async def test_a_caller_that_waits_for_100_continue_gets_it(bench):
    status, _, _ = await bench.post('{"instances":[1]}', expect100=True)
    assert status == 200


class TestKServeErrors:
    """`--kserve-errors`: what clients of KServe's batcher depend on (kserve/kserve pkg/batcher/handler.go)."""

    @pytest.fixture
    async def bench(self, sidecar_of):
        return await sidecar_of(max_batch_size=2, max_latency=10, kserve_errors=True)

    async def test_success_differs_only_in_its_content_type(self, bench):
        status, body, headers = await bench.post('{"instances":[1]}')
        assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
        assert json.loads(body)["predictions"] == [1]

    async def test_a_failed_batch_is_200_with_the_text_in_message(self, bench):
        bench.predictor.behave = refuse(500, b"model exploded")
        status, body, headers = await bench.post('{"instances":[1]}')
        assert status == 200
        assert body == b'{"message":"model exploded","batchId":"","predictions":null}'
        assert headers["Content-Type"] == "text/plain; charset=utf-8"

    async def test_overload_is_told_honestly(self, sidecar_of):
        bench = await sidecar_of(
            max_batch_size=1, max_latency=0, max_in_flight=1, max_queue_instances=1, kserve_errors=True
        )
        bench.predictor.gate.clear()
        tasks = [asyncio.ensure_future(bench.post('{"instances":[1]}')) for _ in range(2)]
        await bench.queued(2)
        status, body, headers = await bench.post('{"instances":[1]}')
        assert (status, headers["Content-Type"]) == (429, "application/json")
        assert "Retry-After" in headers
        assert json.loads(body)["error"]
        bench.predictor.gate.set()
        await asyncio.gather(*tasks)

    async def test_shutting_down_is_told_honestly(self, bench):
        await bench.sidecar.drain()
        status, body, headers = await bench.post('{"instances":[1]}')
        assert (status, headers["Connection"]) == (503, "close")
        assert "shutting down" in json.loads(body)["error"]

    @pytest.mark.parametrize(
        ("body", "text"),
        [(b"nonsense", b"can't Unmarshal body\n"), (b'{"instances":[]}', b"no instances in the request\n")],
    )
    async def test_malformed_bodies_are_400_in_kserves_words(self, bench, body, text):
        status, answer, headers = await bench.post(body)
        assert (status, answer) == (400, text)
        assert headers["Content-Type"] == "text/plain; charset=utf-8"

    async def test_a_bad_header_is_told_as_it_is(self, bench):
        status, answer, _ = await bench.post('{"instances":[1]}', headers={"carpool-timeout-ms": "x"})
        assert status == 400
        assert "carpool-timeout-ms must be a whole number" in json.loads(answer)["error"]


async def test_a_bug_when_the_predictor_is_called_is_logged_and_counted(bench, monkeypatch, caplog):
    def break_down():
        raise ZeroDivisionError("bug")

    with monkeypatch.context() as patch:
        patch.setattr(bench.sidecar.upstreams.http._pool, "_make_reader", break_down)  # for a new connection
        status, body, _ = await bench.post('{"instances":[1]}')
    assert (status, json.loads(body)) == (502, {"error": "the predictor could not be called"})
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
    assert await bench.metric('carpool_internal_errors_total{where="upstream"}') == 1
    assert (await bench.post('{"instances":[1]}'))[0] == 200


async def test_a_bug_in_a_readiness_probe_is_logged_and_counted_and_means_that_it_is_not_ready(
    bench, monkeypatch, caplog
):
    async def break_down(probe):
        raise ZeroDivisionError("bug")

    with monkeypatch.context() as patch:
        patch.setattr(bench.sidecar.ready, "_run", break_down)
        status, _, _ = await bench.get(bench.admin + "/readyz")
    assert status == 503
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]
    assert await bench.metric('carpool_internal_errors_total{where="readiness"}') == 1


async def test_a_predictor_that_is_away_when_asked_whether_it_is_ready_is_no_bug(sidecar_of):
    bench = await sidecar_of()
    bench.sidecar.ready._probes = (probes.tcp_probe(loopback.free_ports(1)[0]),)
    assert (await bench.get(bench.admin + "/readyz"))[0] == 503
    assert await bench.metric('carpool_internal_errors_total{where="readiness"}') == 0
