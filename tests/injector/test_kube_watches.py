"""The Kubernetes client watches namespaces: each change is told, whatever becomes of the connection."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiohttp import web

from carpool_injector.api import kube
from carpool_injector.core import model
from tests.injector.fake_api_server import status
from tests.injector.kube_clients import HANG_UP, write_kubeconfig


class Watch:
    """A watch of namespaces: lists of names, and changes as (name, whether it is there)."""

    def __init__(self, client):
        self.changes = client.watch_namespaces()

    async def read(self, count):
        told = [await anext(self.changes) for _ in range(count)]
        return [sorted(each) if isinstance(each, dict) else (each[0], each[1] is not None) for each in told]


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


async def test_a_watch_tells_all_there_is_then_each_change(api, watch):
    api.namespace("one", {"a": "b"})
    api.namespace("two")
    one, two = model.Namespace("one", {"a": "b"}), model.Namespace("two")
    assert await anext(watch.changes) == {"one": one, "two": two}
    changes = await follow(
        api,
        watch,
        3,
        lambda: api.namespace("three"),
        lambda: api.namespace("one"),
        lambda: api.delete("/api/v1/namespaces/two"),
    )
    assert changes == [("three", True), ("one", True), ("two", False)]


@pytest.mark.parametrize("ending", ["end", "break"])
async def test_a_watch_that_ends_or_breaks_goes_on_from_where_it_was(api, watch, ending):
    api.namespace("one")
    await watch.read(1)
    bookmark = {"type": "BOOKMARK", "object": {"kind": "Namespace", "metadata": {"resourceVersion": "7000"}}}
    reading = asyncio.ensure_future(watch.read(2))
    await api.begun.get()
    api.namespace("one")
    api.tell(bookmark)
    api.tell(ending)
    assert await api.begun.get() == "7000"
    api.namespace("two")
    assert await reading == [("one", True), ("two", True)]
    assert sum("watch" not in request.query for request in api.requests) == 1


@pytest.mark.parametrize("is_answered_by_status", [True, False])
async def test_a_watch_whose_version_is_forgotten_begins_anew_without_who_has_gone(api, watch, is_answered_by_status):
    api.namespace("one")
    api.namespace("two")
    await watch.read(1)
    reading = asyncio.ensure_future(watch.read(1))
    await api.begun.get()
    if is_answered_by_status:
        api.instead = [status(410, "Expired", "too old resource version")]
    else:
        api.forgets_versions_before = api.version + 3
    api.tell("end")
    del api.objects["/api/v1/namespaces/one"]
    api.objects["/api/v1/namespaces/three"] = {"metadata": {"name": "three", "resourceVersion": "1"}}
    api.version += 5
    assert await reading == [["three", "two"]]


async def test_a_watch_outlasts_an_api_server_that_is_away_or_says_no(api, watch, caplog):
    api.namespace("one")
    no = status(403, "Forbidden", 'User "u" cannot list resource "namespaces"')
    api.instead = [*HANG_UP, status(500, "InternalError", "etcd is away"), no, web.Response(text="<html>")]
    assert await watch.read(1) == [["one"]]
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
        assert await anext(changes) == {}
    await client.close()
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
