"""SIGTERM's way out: announce, serve on quietly, refuse, answer everything accepted."""

from __future__ import annotations

import asyncio
import json

import pytest

from carpool_sidecar import drain
from tests import loopback

pytestmark = pytest.mark.looptime


async def test_readiness_turns_at_once_and_requests_are_still_served_in_the_quiet_period(sidecar_of):
    bench = await sidecar_of(max_latency=0, quiet_period=5)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(1)
    assert (await bench.get(bench.admin + "/readyz"))[0] == 503
    assert (await bench.get(bench.admin + "/livez"))[0] == 200
    status, _, _ = await bench.post('{"instances":[1]}')
    assert status == 200
    await draining
    assert asyncio.get_running_loop().time() >= 5


async def test_connections_are_kept_in_the_quiet_period_and_closed_behind_answers_at_its_end(sidecar_of):
    """A client that connects anew comes back while endpoints name the pod."""
    bench = await sidecar_of(max_latency=0, quiet_period=5)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    kept = {}
    for moment in (1, 2.5, 3.5, 4.5):
        await asyncio.sleep(moment - asyncio.get_running_loop().time())
        answers = [
            await bench.post('{"instances":[1]}'), await bench.get(bench.url + "/v1/models"),
            await bench.post("{"), await bench.get(bench.url + "/x"),
        ]  # fmt: skip
        kept[moment] = ["close" not in headers.get("Connection", "") for _, _, headers in answers]
    await draining
    assert kept == {1: [True] * 4, 2.5: [True] * 4, 3.5: [False] * 4, 4.5: [False] * 4}


async def test_so_they_are_behind_what_is_answered_without_the_predictor(sidecar_of):
    bench = await sidecar_of(upstream="triton-http", quiet_period=5)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    kept = {}
    for moment in (1, 4):
        await asyncio.sleep(moment - asyncio.get_running_loop().time())
        answers = [
            await bench.get(bench.url + "/v1/models/m"),
            await bench.get(bench.url + "/x", headers={"K-Network-Probe": "queue"}),
            await bench.get(bench.url + "/x", headers={"User-Agent": "kube-probe/1.30"}),
        ]
        kept[moment] = [(status, headers.get("Connection")) for status, _, headers in answers]
    await draining
    assert kept == {
        1: [(200, None), (503, None), (503, None)],
        4: [(200, "close"), (503, "close"), (503, "close")],
    }


async def test_and_behind_an_error_of_a_request_that_could_not_be_passed_on(sidecar_of):
    bench = await sidecar_of(component_port=loopback.free_port(), quiet_period=5)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    kept = {}
    for moment in (1, 4):
        await asyncio.sleep(moment - asyncio.get_running_loop().time())
        status, _, headers = await bench.get(bench.url + "/x")
        kept[moment] = status, headers.get("Connection")
    await draining
    assert kept == {1: (502, None), 4: (502, "close")}


async def test_questions_about_models_are_waited_for_in_the_quiet_period_and_then_refused_as_all_requests(sidecar_of):
    bench = await sidecar_of(upstream="triton-http", quiet_period=5, grace_period=25)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(4.5)
    assert (await bench.get(bench.url + "/v1/models/m"))[0] == 200
    await draining
    assert 6.4 <= asyncio.get_running_loop().time() <= 7.1
    bench.predictor.seen.clear()
    for path in ("/v1/models/m", "/v1/models"):
        status, body, headers = await bench.get(bench.url + path)
        assert (status, headers["Connection"]) == (503, "close")
        assert "shutting down" in json.loads(body)["error"]
    assert bench.predictor.seen == []


async def test_requests_that_still_come_after_the_quiet_period_are_served_until_they_stop(sidecar_of):
    bench = await sidecar_of(max_latency=0, quiet_period=5, grace_period=25)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(0)
    while asyncio.get_running_loop().time() < 9:
        assert (await bench.post('{"instances":[1]}'))[0] == 200
        await asyncio.sleep(0.5)
    await draining
    assert 10.4 <= asyncio.get_running_loop().time() <= 11.1
    assert (await bench.post('{"instances":[1]}'))[0] == 503


async def test_requests_that_never_stop_are_refused_when_half_the_time_for_answers_is_left(sidecar_of):
    bench = await sidecar_of(max_latency=0, quiet_period=5, grace_period=25)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    for halves in range(1, 22):
        await asyncio.sleep(0.5)
        assert (await bench.post('{"instances":[1]}'))[0] == 200, halves
    await asyncio.sleep(1)
    assert (await bench.post('{"instances":[1]}'))[0] == 503
    assert await draining is True


@pytest.mark.parametrize(("grace_period", "quiet_period", "service"), [(4, 1, 0.4), (5, 1.67, 0.4), (8, 2.67, 1.5)])
async def test_requests_that_never_stop_cost_nobody_an_answer_however_short_the_grace_period(
    sidecar_of, grace_period, quiet_period, service
):
    bench = await sidecar_of(max_latency=5, quiet_period=quiet_period, grace_period=grace_period)
    bench.predictor.service = lambda rows: service
    draining = asyncio.ensure_future(bench.sidecar.drain())
    callers = []
    while bench.sidecar.life.phase is not drain.Phase.REFUSING and not draining.done():
        callers.append(asyncio.ensure_future(bench.post('{"instances":[1]}')))
        await asyncio.sleep(0.1)
    answers = [await caller for caller in callers[:-1]]  # the last one may have come too late
    assert {status for status, _, _ in answers} == {200}
    assert await draining is True


@pytest.mark.parametrize(("grace_period", "quiet_period"), [(25, 24), (25, 24.9), (5, 4), (1, 0.9)])
async def test_a_quiet_period_nearly_as_long_as_the_grace_period_still_ends_in_refusing_and_answering(
    sidecar_of, grace_period, quiet_period
):
    bench = await sidecar_of(max_latency=0, quiet_period=quiet_period, grace_period=grace_period)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    bench.predictor.gate.clear()
    accepted = asyncio.ensure_future(bench.post('{"instances":[1]}'))
    while bench.sidecar.life.phase is not drain.Phase.REFUSING:
        await asyncio.sleep(0.05)
        assert not draining.done()
    assert (await bench.post('{"instances":[2]}'))[0] == 503
    bench.predictor.gate.set()
    assert (await accepted)[0] == 200
    assert await draining is True
    assert asyncio.get_running_loop().time() < grace_period


async def test_a_bug_in_the_drain_is_logged_and_counted_and_the_process_does_not_end_well(bench, monkeypatch, caplog):
    class Broken:
        async def drain(self):
            raise ZeroDivisionError("bug")

    with monkeypatch.context() as patch:
        patch.setattr(bench.sidecar, "driver", Broken())
        async with bench.client.post(bench.admin + "/drain") as response:
            assert (await response.json())["phase"] != "drained"
        assert await bench.sidecar.drain() is False
    assert {record.exc_info[0] for record in caplog.records if record.exc_info} == {ZeroDivisionError}
    assert await bench.metric('carpool_internal_errors_total{where="drain"}') == 2


async def test_a_hurry_ends_the_time_for_requests_that_still_come(sidecar_of):
    bench = await sidecar_of(max_latency=0, quiet_period=5, grace_period=25)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(4.5)
    assert (await bench.get(bench.url + "/v1/models"))[0] == 200
    await asyncio.sleep(1)
    bench.sidecar.life.skip_quiet_period()
    assert await draining is True
    assert asyncio.get_running_loop().time() < 5.6


async def test_after_the_quiet_period_new_requests_are_refused_with_503_and_close(sidecar_of):
    bench = await sidecar_of(max_latency=0)
    await bench.sidecar.drain()
    for path in ("/v1/models/m:predict", "/v1/models"):
        status, body, headers = await bench.post('{"instances":[1]}', path=path)
        assert status == 503
        assert headers["Connection"] == "close"
        assert "shutting down" in json.loads(body)["error"]
    assert bench.predictor.seen == []


async def test_a_body_that_never_comes_is_not_waited_for(sidecar_of):
    bench = await sidecar_of(max_latency=0, timeout=60)
    await bench.sidecar.drain()
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.sidecar.settings.port)
    writer.write(b"POST /v1/models/m:predict HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
    assert asyncio.get_running_loop().time() < 1
    writer.close()
    await writer.wait_closed()


async def test_everything_accepted_is_answered_without_waiting_out_the_window(sidecar_of):
    bench = await sidecar_of(max_latency=60_000, max_batch_size=4, timeout=600)
    loop = asyncio.get_running_loop()
    accepted = [asyncio.ensure_future(bench.post(f'{{"instances":[{i}]}}')) for i in range(6)]
    await bench.queued(6)
    started = loop.time()
    await bench.sidecar.drain()
    answers = await asyncio.gather(*accepted)
    assert [json.loads(body)["predictions"] for _, body, _ in answers] == [[i] for i in range(6)]
    assert loop.time() - started < 1
    assert await bench.metric('carpool_batches_total{reason="drain"}') == 1


async def test_drain_waits_for_the_predictor(sidecar_of):
    bench = await sidecar_of(max_latency=0)
    bench.predictor.gate.clear()
    accepted = asyncio.ensure_future(bench.post('{"instances":[1]}'))
    await bench.predictor.received(1)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(3)
    assert not draining.done()
    bench.predictor.gate.set()
    await draining
    assert (await accepted)[0] == 200


async def test_stopping_with_callers_waiting_answers_them_503(sidecar_of):
    bench = await sidecar_of(max_latency=0, max_batch_size=1)
    bench.predictor.gate.clear()
    waiting = [asyncio.ensure_future(bench.post('{"instances":[1]}')) for _ in range(3)]
    await bench.queued(3)
    await bench.sidecar.stop()
    assert [status for status, _, _ in await asyncio.gather(*waiting)] == [503, 503, 503]


async def test_drain_can_be_asked_for_on_the_admin_port_and_answers_when_done(sidecar_of):
    bench = await sidecar_of(max_latency=60_000, timeout=600)
    accepted = asyncio.ensure_future(bench.post('{"instances":[1]}'))
    await bench.queued(1)
    assert json.loads((await bench.get(bench.admin + "/drain"))[1]) == {"phase": "serving", "active": 1}
    async with bench.client.post(bench.admin + "/drain") as response:
        assert (await response.json())["phase"] == "drained"
    assert (await accepted)[0] == 200


async def test_drain_waits_for_requests_that_are_passed_on(sidecar_of):
    bench = await sidecar_of()
    bench.predictor.gate.clear()
    passed = asyncio.ensure_future(bench.get(bench.url + "/v1/models"))
    await bench.predictor.received(1)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(3)
    assert not draining.done()
    bench.predictor.gate.set()
    assert await draining is True
    assert (await passed)[0] == 200


async def test_a_second_drain_joins_the_first(sidecar_of):
    bench = await sidecar_of(quiet_period=5)
    first = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(1)
    second = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(1)
    first.cancel()
    assert await second is True
    assert 5 <= asyncio.get_running_loop().time() < 5.1


async def test_after_a_finished_drain_the_next_one_takes_no_time(sidecar_of):
    bench = await sidecar_of(quiet_period=5)
    async with bench.client.post(bench.admin + "/drain") as response:
        assert (await response.json())["phase"] == "drained"
    await asyncio.sleep(60)
    called = asyncio.get_running_loop().time()
    assert await bench.sidecar.drain() is True
    await bench.sidecar.stop()
    assert asyncio.get_running_loop().time() - called < 0.1


async def test_a_drain_that_joins_one_without_a_clean_end_has_none_either(sidecar_of):
    bench = await sidecar_of(grace_period=10, max_latency=0)
    bench.predictor.gate.clear()
    waiting = asyncio.ensure_future(bench.post('{"instances":[1]}'))
    await bench.predictor.received(1)
    first = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(3)
    assert await bench.sidecar.drain() is False
    assert await first is False
    assert await bench.sidecar.drain() is False
    assert asyncio.get_running_loop().time() < 10
    await bench.sidecar.stop()
    assert (await waiting)[0] == 503


async def test_a_drain_goes_on_within_its_grace_period_when_the_caller_who_asked_for_it_leaves(sidecar_of):
    bench = await sidecar_of(grace_period=10, max_latency=0)
    bench.predictor.gate.clear()
    waiting = asyncio.ensure_future(bench.post('{"instances":[1]}'))
    await bench.predictor.received(1)
    asked = asyncio.ensure_future(bench.client.post(bench.admin + "/drain"))
    await asyncio.sleep(1)
    asked.cancel()
    async with bench.client.post(bench.admin + "/drain") as response:
        assert await response.json() == {"phase": "refusing", "active": 1}
    assert 6 <= asyncio.get_running_loop().time() < 10
    await bench.sidecar.stop()
    assert (await waiting)[0] == 503


async def test_a_hurry_skips_what_is_left_of_the_quiet_period(sidecar_of):
    bench = await sidecar_of(quiet_period=5)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(1)
    bench.sidecar.life.skip_quiet_period()
    assert await draining is True
    assert asyncio.get_running_loop().time() < 1.1


async def test_a_stream_that_never_ends_is_cut_within_the_grace_period_and_that_is_a_clean_end(sidecar_of):
    bench = await sidecar_of(grace_period=10)
    bench.predictor.gate.clear()
    stream = asyncio.ensure_future(bench.get(bench.url + "/events"))
    await bench.predictor.received(1)
    assert await bench.sidecar.drain() is True
    assert 6 <= asyncio.get_running_loop().time() < 10
    await bench.sidecar.stop()
    assert asyncio.get_running_loop().time() < 10
    await asyncio.gather(stream, return_exceptions=True)


async def test_a_predict_request_that_cannot_be_answered_in_the_grace_period_is_not_a_clean_end(sidecar_of, caplog):
    bench = await sidecar_of(grace_period=10, max_latency=0)
    bench.predictor.gate.clear()
    waiting = asyncio.ensure_future(bench.post('{"instances":[1]}'))
    await bench.predictor.received(1)
    assert await bench.sidecar.drain() is False
    assert "7 s of the grace period of 10 s are over" in caplog.text
    await bench.sidecar.stop()
    assert (await waiting)[0] == 503
    assert asyncio.get_running_loop().time() < 10
