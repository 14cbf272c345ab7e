"""The admin port: health, metrics, settings."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

pytestmark = pytest.mark.looptime


async def patch(bench, changes):
    async with bench.client.patch(bench.admin + "/config", data=json.dumps(changes)) as response:
        return response.status, await response.json()


async def test_config_shows_every_setting_and_which_can_be_changed(bench):
    _, text, _ = await bench.get(bench.admin + "/config")
    shown = json.loads(text)
    assert shown["max_batch_size"] == 4
    assert set(type(bench.sidecar.settings).model_fields) <= set(shown)
    assert "max_latency" in shown["live"]


async def test_limits_can_be_changed_live_and_apply_to_what_waits(bench):
    waiting = asyncio.ensure_future(bench.post('{"instances":[1]}'))
    await bench.queued(1)
    status, shown = await patch(bench, {"max_latency": 0, "max_batch_size": 2})
    assert status == 200
    assert shown["max_latency"] == 0
    await waiting
    assert asyncio.get_running_loop().time() < 0.5


async def test_a_changed_timeout_holds_for_requests_and_for_bodies_on_their_way(bench):
    assert (await patch(bench, {"timeout": 1, "max_latency": 0}))[0] == 200
    bench.predictor.gate.clear()
    began = asyncio.get_running_loop().time()
    assert (await bench.post('{"instances":[1]}'))[0] == 504
    assert 1 <= asyncio.get_running_loop().time() - began < 1.1
    bench.predictor.gate.set()
    assert bench.sidecar.bodies.read_timeout == 1


async def test_the_number_of_bytes_held_bounds_the_queue_bodies_on_their_way_and_answers(sidecar_of):
    bench = await sidecar_of(max_queue_bytes=5000, max_body_bytes=5000, max_latency=0)
    body = json.dumps({"instances": ["x" * 3000]})
    bench.predictor.gate.clear()
    first, second = (asyncio.ensure_future(bench.post(body)) for _ in range(2))
    assert (await second)[0] == 429
    bench.predictor.gate.set()
    assert (await first)[0] == 200
    bench.predictor.behave = lambda seen, request: web.Response(body=b'{"predictions":["%b"]}' % (b"x" * 6000))
    assert (await bench.post(body))[0] == 502


async def test_changes_are_counted_and_what_changes_nothing_is_not(bench):
    name = "carpool_settings_changes_total"
    assert await bench.metric(name) == 0
    for changes in ({}, {"max_latency": 500}, {"max_batch_size": 0}):
        await patch(bench, changes)
    assert await bench.metric(name) == 0
    await patch(bench, {"max_latency": 400, "max_batch_size": 2})
    await patch(bench, {"log_level": "error"})
    assert await bench.metric(name) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_batch_size": 0}, "--max-batch-size"),
        ({"max_batch_size": "many"}, 'got "many"'),
        ({"port": 1}, "port cannot be changed at run time; these can: max_batch_size"),
        ({"bogus": 1}, "bogus cannot be changed"),
        ({"max_body_bytes": 4096}, "max_body_bytes cannot be changed at run time; these can: max_batch_size"),
        ({"timeout": 0.1}, "--timeout (0.1 s) must be longer than --max-latency"),
        ({"timeout": 1e-9}, "--timeout (CARPOOL_TIMEOUT) got 1e-09: must be greater than or equal to 0.01"),
        ({"slo": 1e-9}, "--slo (CARPOOL_SLO) got 1e-09: must be greater than or equal to 1"),
        ({"timeout": True}, "--timeout (CARPOOL_TIMEOUT) got true: must be a number"),
        ({"max_in_flight": True}, "--max-in-flight (CARPOOL_MAX_IN_FLIGHT) got true: must be a number"),
        ({"max_batch_size": "3"}, '--max-batch-size (CARPOOL_MAX_BATCH_SIZE) got "3": must be a number'),
        ({"log_level": True}, "must be 'debug', 'info', 'warning' or 'error'"),
        ([1], "Expected `object`"),
        ({f"a{number}": 1 for number in range(1001)}, "the body has more than 1000 members"),
    ],
)
async def test_bad_changes_are_400_with_one_clear_line_and_change_nothing(bench, changes, words):
    before = bench.sidecar.settings
    status, answer = await patch(bench, changes)
    assert status == 400
    assert words in answer["error"]
    assert bench.sidecar.settings == before


@pytest.mark.parametrize("body", ['{"timeout": 5, "timeout": 6}', '{"timeout": 5, "slo": null, "time\\u006fut": 6}'])
async def test_a_member_that_is_there_twice_is_named_and_changes_nothing(bench, body):
    before = bench.sidecar.settings
    async with bench.client.patch(bench.admin + "/config", data=body) as response:
        assert (response.status, await response.json()) == (400, {"error": "duplicate member 'timeout'"})
    assert bench.sidecar.settings == before


async def test_a_change_that_is_nested_too_deeply_is_400(bench):
    body = b'{"max_latency":%b%b}' % (b"[" * 20_000, b"]" * 20_000)
    async with bench.client.patch(bench.admin + "/config", data=body) as response:
        assert response.status == 400
        told = await response.text()
    assert "nested too deeply" in told or "--max-latency" in told  # newer Pythons read it, and it is no number


async def test_changes_from_outside_the_pod_are_forbidden_unless_allowed(bench, monkeypatch):
    from carpool_sidecar.server import admin_access

    monkeypatch.setattr(admin_access, "_is_inside", lambda address: False)
    async with bench.client.patch(bench.admin + "/config", data="{}") as response:
        assert response.status == 403
        assert "--admin-write any" in await response.text()
    async with bench.client.post(bench.admin + "/drain") as response:
        assert response.status == 403
    assert (await bench.get(bench.admin + "/config"))[0] == 200


@pytest.mark.parametrize(
    ("address", "inside"),
    [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("127.0.0.6", False), ("::ffff:127.0.0.6", False),
     ("10.0.0.1", False), ("fe80::1%eth0", False), ("::1%lo", False), ("", False), (None, False), ("localhost", False)],
)  # fmt: skip
def test_loopback_is_exactly_the_addresses_of_callers_in_the_pod(address, inside):
    from carpool_sidecar.server import admin_access

    assert admin_access._is_inside(address) is inside


PAGES = ["/", "/livez", "/readyz", "/metrics", "/config", "/arrivals", "/drain", "/drained", "/events", "/unknown"]


@pytest.mark.parametrize("path", PAGES)
async def test_no_page_is_shown_by_a_name_that_an_attacker_may_own(bench, path):
    status, text, _ = await bench.get(bench.admin + path, headers={"Host": "evil.example:9082"})
    assert status == 403
    assert "'evil.example' could be anybody's name" in text


async def test_nothing_is_changed_by_a_name_that_an_attacker_may_own(bench):
    headers = {"Host": "evil.example:9082"}
    async with bench.client.patch(bench.admin + "/config", data='{"max_latency": 7}', headers=headers) as response:
        assert response.status == 403
    async with bench.client.post(bench.admin + "/drain", headers=headers) as response:
        assert response.status == 403
    assert (bench.sidecar.settings.max_latency, bench.sidecar.life.draining) == (500, False)


@pytest.mark.parametrize("host", ["10.1.2.3:9082", "[fd00::5]:9082", "localhost:1", "app-admin", "app.team.svc:9082"])
@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/config"])
async def test_probes_scrapes_and_forwarded_ports_are_served(bench, path, host):
    assert (await bench.get(bench.admin + path, headers={"Host": host}))[0] == 200


async def test_readiness_follows_the_predictor_and_says_what_is_missing(bench, unused_tcp_port):
    assert (await bench.get(bench.admin + "/readyz"))[:2] == (200, "ok\n")
    assert await bench.metric("carpool_ready") == 1
    bench.sidecar.ready._probes = (type(bench.sidecar.ready._probes[0])("127.0.0.1", unused_tcp_port),)
    await asyncio.sleep(2)
    status, text, _ = await bench.get(bench.admin + "/readyz")
    assert status == 503
    assert text.startswith("predictor not ready: ")


async def test_changes_from_outside_the_pod_get_through_where_any_are_allowed(sidecar_of, monkeypatch):
    from carpool_sidecar.server import admin_access

    bench = await sidecar_of(admin_write="any")
    monkeypatch.setattr(admin_access, "_is_inside", lambda address: False)
    assert (await patch(bench, {"max_latency": 7}))[0] == 200
    assert bench.sidecar.settings.max_latency == 7


async def test_drained_answers_when_the_drain_is_over_and_from_then_on_at_once(sidecar_of):
    bench = await sidecar_of(quiet_period=5, max_latency=0)
    loop = asyncio.get_running_loop()
    draining = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(1)
    assert (await bench.get(bench.admin + "/drained"))[:2] == (200, "drained\n")
    assert 5 <= loop.time() < 5.1
    await draining
    await asyncio.sleep(60)
    assert (await bench.get(bench.admin + "/drained"))[:2] == (200, "drained\n")
    assert loop.time() < 65.2


async def test_drained_waits_until_everything_accepted_is_answered(sidecar_of):
    bench = await sidecar_of(max_latency=0)
    bench.predictor.gate.clear()
    accepted = asyncio.ensure_future(bench.post('{"instances":[1]}'))
    await bench.predictor.received(1)
    waiting = asyncio.ensure_future(bench.get(bench.admin + "/drained"))
    draining = asyncio.ensure_future(bench.sidecar.drain())
    await asyncio.sleep(10)
    assert not waiting.done()
    bench.predictor.gate.set()
    assert (await waiting)[0] == 200
    assert (await accepted)[0] == 200
    assert await draining is True


async def test_drained_waits_for_a_drain_that_begins_late_because_the_node_is_busy(sidecar_of):
    bench = await sidecar_of(quiet_period=5, grace_period=25)
    waiting = asyncio.ensure_future(bench.get(bench.admin + "/drained"))
    await asyncio.sleep(14)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    assert (await waiting)[:2] == (200, "drained\n")
    assert 19 <= asyncio.get_running_loop().time() < 19.1
    assert await draining is True


@pytest.mark.parametrize(("grace_period", "seconds"), [(25, 15), (2, 2)])
async def test_drained_waits_only_so_long_for_a_drain_that_does_not_begin(sidecar_of, grace_period, seconds):
    bench = await sidecar_of(grace_period=grace_period)
    status, text, _ = await bench.get(bench.admin + "/drained")
    assert status == 200
    assert text == f"not draining: nothing to wait for, as no drain began within {seconds} s\n"
    assert seconds <= asyncio.get_running_loop().time() < seconds + 0.1
    assert (await bench.get(bench.admin + "/readyz"))[0] == 200


@pytest.mark.parametrize("head_start", [0.0, 4.0])
async def test_drained_never_takes_longer_than_the_grace_period_and_says_what_is_still_open(sidecar_of, head_start):
    bench = await sidecar_of(grace_period=6, max_latency=0)
    bench.predictor.gate.clear()
    unanswered = asyncio.ensure_future(bench.post('{"instances":[1]}'))
    await bench.predictor.received(1)
    waiting = asyncio.ensure_future(bench.get(bench.admin + "/drained"))
    await asyncio.sleep(head_start)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    status, text, _ = await waiting
    assert status == 503
    assert text == "not drained within the grace period; requests and streams still open: 1\n"
    assert asyncio.get_running_loop().time() < 6.1
    assert await draining is False
    await bench.sidecar.stop()
    assert (await unanswered)[0] == 503


@pytest.mark.parametrize("is_draining", [False, True])
async def test_who_waits_for_the_drain_and_leaves_leaves_nothing_behind(sidecar_of, is_draining):
    bench = await sidecar_of(quiet_period=20)
    draining = [asyncio.ensure_future(bench.sidecar.drain())] if is_draining else []
    await asyncio.sleep(0.1)
    before = asyncio.all_tasks()
    waiting = [asyncio.ensure_future(bench.get(bench.admin + "/drained")) for _ in range(16)]
    await asyncio.sleep(1)
    assert len(asyncio.all_tasks() - before) >= 32
    for each in waiting:
        each.cancel()
    await asyncio.sleep(1)
    assert asyncio.all_tasks() - before == set()
    assert await asyncio.gather(*draining) == [True] * is_draining


async def test_anybody_may_wait_for_the_drain(bench, monkeypatch):
    from carpool_sidecar.server import admin_access

    monkeypatch.setattr(admin_access, "_is_inside", lambda address: False)
    draining = asyncio.ensure_future(bench.sidecar.drain())
    assert (await bench.get(bench.admin + "/drained"))[0] == 200
    assert await draining is True
    async with bench.client.post(bench.admin + "/drained") as response:
        assert response.status == 405


async def test_what_has_not_happened_is_told_as_nothing_so_that_its_first_time_is_seen_to_grow(sidecar_of):
    bench = await sidecar_of()
    for name in (
        'carpool_refused_total{reason="queue_full"}',
        'carpool_refused_total{reason="deadline"}',
        'carpool_predictor_errors_total{reason="unreachable"}',
        'carpool_retries_total{reason="isolate"}',
        'carpool_batches_total{reason="suspect"}',
        'carpool_unbatched_total{reason="no_rows"}',
    ):
        assert await bench.metric(name) == 0


async def test_metrics_tell_what_happened(sidecar_of):
    bench = await sidecar_of(max_batch_size=2, max_latency=100)
    await bench.post_all('{"instances":[1]}', '{"instances":[2]}')
    await bench.post('{"instances":[3]}')
    await bench.post("nonsense")
    await bench.get(bench.url + "/v1/models")
    expected = {
        'carpool_requests_total{code="200",lane="batched"}': 3,
        'carpool_requests_total{code="400",lane="batched"}': 1,
        'carpool_requests_total{code="200",lane="passthrough"}': 1,
        'carpool_refused_total{reason="bad_request"}': 1,
        "carpool_request_seconds_count": 4,
        'carpool_batches_total{reason="full"}': 1,
        'carpool_batches_total{reason="due"}': 1,
        "carpool_batch_size_sum": 3,
        "carpool_batch_size_count": 2,
        "carpool_queue_wait_seconds_count": 3,
        "carpool_predictor_seconds_count": 2,
        "carpool_queued_instances": 0,
        "carpool_queued_bytes": 0,
        "carpool_held_bytes": 0,
        "carpool_batches_in_flight": 0,
        "carpool_draining": 0,
    }
    assert {name: await bench.metric(name) for name in expected} == expected


async def test_probes_on_the_data_port_are_answered_as_kserves_agent_does(bench):
    async def probe(**headers):
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return (await bench.get(bench.url + "/any/path", headers=names))[:2]

    kubelet = "kube-probe/1.30"
    assert await probe(User_Agent=kubelet, K_Network_Probe="queue") == (200, "queue")
    assert (await probe(User_Agent=kubelet, K_Network_Probe="other"))[0] == 400
    assert (await probe(K_Network_Probe="probe"))[0] == 400
    async with bench.client.get(bench.url, headers={"K-Network-Probe": "probe", "K-Network-Hash": "h"}) as response:
        assert (response.status, response.headers["K-Network-Hash"]) == (200, "h")
    answer = await bench.raw("GET", "/", {"K-Network-Probe": "\udcff"})
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b'unexpected probe header value: "?"\n')
    headers = {"K-Network-Probe": "probe", "K-Network-Hash": "hö€"}
    assert "K-Network-Hash: hö€\r\n".encode() in await bench.raw("GET", "/", headers)
    async with bench.client.get(bench.url, headers=headers) as response:
        assert response.headers["K-Network-Hash"] == "hö€"
    assert bench.predictor.seen == []
    assert (await probe(User_Agent=kubelet))[0] == 200
    assert len(bench.predictor.seen) == 1
    await bench.sidecar.drain()
    for headers in ({"User_Agent": kubelet}, {"User_Agent": "Knative-Activator-Probe", "K_Network_Probe": "queue"}):
        assert await probe(**headers) == (503, "shutting down\n")
