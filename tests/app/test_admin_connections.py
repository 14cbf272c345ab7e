"""Connections to the admin port: few, none idle for long, and whoever comes gets in, whatever else is full."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource

import pytest

from carpool_sidecar import files
from carpool_sidecar.server import admin_clients
from tests.app import plain_client
from tests.app.plain_client import GET, request, until

pytestmark = pytest.mark.looptime

MANY = 3 * admin_clients.MOST
LIVEZ = GET.replace(b"/v1/models", b"/livez")
DRAINED = GET.replace(b"/v1/models", b"/drained")
EVENTS = GET.replace(b"/v1/models", b"/events")


@pytest.fixture
async def bench(sidecar_of):
    """10 s for a first request, 20 s for another."""
    return await sidecar_of(max_latency=0, head_timeout=10, keep_alive=20)


@pytest.fixture
async def connect(bench):
    """Makes connections to the admin port that begin by sending something."""
    async with contextlib.AsyncExitStack() as stack:

        async def made(data=b"", address="127.0.0.1"):
            port = bench.sidecar.settings.admin_port
            client = plain_client.Client(*await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))
            stack.push_async_callback(client.leave)
            await client.send(data)
            return client

        yield made


def now():
    return asyncio.get_running_loop().time()


def is_open(clients):
    """How many were not reset."""
    return sum(each._reader.exception() is None for each in clients)


@pytest.mark.parametrize("begun", [b"", b"GET /livez HT", DRAINED, LIVEZ], ids=["silent", "begun", "waiting", "idle"])
async def test_more_than_a_few_never_stay_and_a_probe_is_answered_all_the_same(bench, connect, begun):
    many = [await connect(begun) for _ in range(MANY)]
    for _ in range(5):
        probe = await connect(LIVEZ)
        assert (await probe.answer())[0] == 200
    assert is_open(many) <= admin_clients.MOST
    assert (await bench.post('{"instances":[1]}'))[0] == 200


async def test_who_waits_for_the_drain_is_not_put_out_by_those_who_come_later(bench, connect):
    waiting = [await connect(DRAINED) for _ in range(admin_clients.MOST // 2)]
    await asyncio.sleep(1)
    later = [await connect(each) for each in (DRAINED, b"", LIVEZ) for _ in range(MANY)]
    assert is_open(waiting) == len(waiting)
    assert [(await each.answer())[0] for each in waiting] == [200] * len(waiting)
    assert is_open(later) < admin_clients.MOST


async def test_a_hook_is_not_put_out_whoever_waits_before_it_and_comes_after_it(connect):
    greedy = [await connect(DRAINED, "127.0.0.2") for _ in range(2 * admin_clients.MOST)]
    await asyncio.sleep(1)
    hook = await connect(DRAINED)
    await asyncio.sleep(1)
    later = [await connect(each, "127.0.0.2") for each in (DRAINED, b"", DRAINED, LIVEZ) for _ in range(MANY)]
    probe = await connect(LIVEZ)
    assert (await probe.answer())[0] == 200
    assert (await hook.answer())[0] == 200
    assert 16 <= now() < 18
    assert is_open(greedy + later) < admin_clients.MOST


async def test_one_too_many_who_waits_for_the_drain_is_told_so_and_others_wait_on(connect):
    waiting = [await connect(DRAINED) for _ in range(admin_clients.MOST // 2)]
    await asyncio.sleep(1)
    status, _, body = await (await connect(DRAINED)).answer()
    assert (status, now() < 2) == (503, True)
    assert body == b"the most requests that may wait for the drain do; addresses with the fewest of them come first\n"
    other = await connect(DRAINED, "127.0.0.2")
    assert (await waiting[-1].answer())[0] == 503
    assert now() < 2
    assert [(await each.answer())[0] for each in [*waiting[:-1], other]] == [200] * len(waiting)


async def test_whoever_waits_for_an_answer_that_lasts_is_not_put_out_though_all_places_are_taken(connect):
    lasting = [await connect(each) for each in [DRAINED] * 16 + [EVENTS] * 8]
    await asyncio.sleep(1)
    idle = [await connect(b"") for _ in range(MANY)]
    await asyncio.sleep(1)
    assert (is_open(lasting), is_open(idle)) == (24, 8)
    assert (await (await connect(LIVEZ)).answer())[0] == 200


@pytest.mark.parametrize(("sent", "longest"), [(b"", 10), (b"GET /livez HT", 10), (LIVEZ, 20), (LIVEZ + b"G", 20)])
async def test_who_asks_nothing_is_let_go(connect, sent, longest):
    client = await connect(sent)
    await client.rest()
    assert longest < now() < longest + 2


async def test_a_head_that_comes_byte_by_byte_has_no_more_time(connect):
    client = await connect(b"GET /livez HTTP/1.1\r\nX: ")
    with contextlib.suppress(ConnectionError):
        while client.is_open and now() < 100:
            await client.send(b"x")
            await asyncio.sleep(0.5)
    assert 10 < now() < 13


async def test_a_body_that_stops_arriving_is_408(connect):
    client = await connect(b"PATCH /config HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{")
    status, _, body = await client.answer()
    assert (status, body) == (408, b'{\n  "error": "the body did not arrive within 10 s"\n}\n')
    await client.rest()
    assert now() < 40


async def test_who_is_being_answered_is_not_idle(connect):
    client = await connect(GET.replace(b"/v1/models", b"/events"))
    await asyncio.sleep(100)
    assert client.is_open


async def test_the_last_files_are_the_admin_ports(bench, connect, predictor):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    probe = os.dup(0)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe + files.SPARED + 8, hard))
    clients = []
    try:
        while len(clients) < files.SPARED:
            clients.append(await plain_client.connect(bench))
            await clients[-1].send(request())
            if (await clients[-1].answer())[0] != 200:
                break
        told = await plain_client.connect(bench)
        status, headers, body = await told.answer()
        assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
        assert b"too many connections" in body
        clients.append(told)
        assert len(clients) < 8
        probes = [await connect(LIVEZ) for _ in range(10)]
        assert [(await each.answer())[0] for each in probes] == [200] * 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in clients:
            await each.leave()
    await until(lambda: bench.sidecar.connection_limit.open == 0)
    assert (await bench.post('{"instances":[1]}'))[0] == 200
    assert await bench.metric("carpool_connections_refused_total") >= 1
