"""The Kubernetes client watches namespaces: each change is told, whatever becomes of the connection."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiohttp import web

from carpool_injector.api import kube
from tests.injector.fake_api_server import status
from tests.injector.kube_clients import HANG_UP, write_kubeconfig


class Watch:
    """A watch of namespaces, read change by change as (type, name)."""

    def __init__(self, client):
        self.changes = client.watch_namespaces()

    async def read(self, count):
        return [(kind, name) for kind, name, _, _ in [await anext(self.changes) for _ in range(count)]]


@pytest.fixture
async def watch(client):
    made = Watch(client)
    yield made
    await made.changes.aclose()


async def follow(api, watch, count, *acts):
    """The next changes, while `acts` happen to the API server once somebody watches it."""
    reading = asyncio.ensure_future(watch.read(count))
    await api.begun.get()
    for act in acts:
        act()
    return await reading


async def test_a_watch_tells_all_there_is_then_synced_then_each_change(api, watch):
    api.namespace("one", {"a": "b"})
    api.namespace("two")
    assert [await anext(watch.changes) for _ in range(3)] == [
        ("ADDED", "one", {"a": "b"}, {}),
        ("ADDED", "two", {}, {}),
        ("SYNCED", "", {}, {}),
    ]
    changes = await follow(
        api,
        watch,
        3,
        lambda: api.namespace("three"),
        lambda: api.namespace("one"),
        lambda: api.delete("/api/v1/namespaces/two"),
    )
    assert changes == [("ADDED", "three"), ("MODIFIED", "one"), ("DELETED", "two")]


@pytest.mark.parametrize("ending", ["end", "break"])
async def test_a_watch_that_ends_or_breaks_goes_on_from_where_it_was(api, watch, ending):
    api.namespace("one")
    await watch.read(2)
    bookmark = {"type": "BOOKMARK", "object": {"kind": "Namespace", "metadata": {"resourceVersion": "7000"}}}
    reading = asyncio.ensure_future(watch.read(2))
    await api.begun.get()
    api.namespace("one")
    api.tell(bookmark)
    api.tell(ending)
    assert await api.begun.get() == "7000"
    api.namespace("two")
    assert await reading == [("MODIFIED", "one"), ("ADDED", "two")]
    assert sum("watch" not in request.query for request in api.requests) == 1


@pytest.mark.parametrize("is_answered_by_status", [True, False])
async def test_a_watch_whose_version_is_forgotten_begins_anew_and_tells_who_has_gone(api, watch, is_answered_by_status):
    api.namespace("one")
    api.namespace("two")
    await watch.read(3)
    reading = asyncio.ensure_future(watch.read(4))
    await api.begun.get()
    if is_answered_by_status:
        api.instead = [status(410, "Expired", "too old resource version")]
    else:
        api.forgets_versions_before = api.version + 3
    api.tell("end")
    del api.objects["/api/v1/namespaces/one"]
    api.objects["/api/v1/namespaces/three"] = {"metadata": {"name": "three", "resourceVersion": "1"}}
    api.version += 5
    assert await reading == [("DELETED", "one"), ("ADDED", "three"), ("ADDED", "two"), ("SYNCED", "")]


async def test_a_watch_outlasts_an_api_server_that_is_away_or_says_no(api, watch, caplog):
    api.namespace("one")
    no = status(403, "Forbidden", 'User "u" cannot list resource "namespaces"')
    api.instead = [*HANG_UP, status(500, "InternalError", "etcd is away"), no, web.Response(text="<html>")]
    assert await watch.read(2) == [("ADDED", "one"), ("SYNCED", "")]
    assert caplog.text.count("the watch of namespaces broke, the next try follows") == 4
    assert 'apiGroups: [""], resources: ["namespaces"], verbs: ["list"]' in caplog.text


async def test_a_watch_waits_longer_and_longer_while_nothing_works(api, tmp_path):
    pauses = []

    async def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 9:
            api.instead = []

    api.instead = [status(503, "ServiceUnavailable", "starting") for _ in range(20)]
    url = str(api.server.make_url("")).rstrip("/")
    client = await kube.Kube.connect(write_kubeconfig(tmp_path / "config", url), sleep=pause)
    async with contextlib.aclosing(client.watch_namespaces()) as changes:
        assert (await anext(changes))[0] == "SYNCED"
    await client.close()
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
