"""The live page and its stream of events, on sockets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re

import aiohttp
import pytest

from carpool_sidecar.live import event_stream
from carpool_sidecar.live import page as live_page
from tests.app.fake_predictor import refuse

pytestmark = pytest.mark.looptime


class Viewer:
    """Reads a stream of events."""

    def __init__(self, response):
        self.response = response

    async def event(self):
        """The next one: its name and value."""
        name, data = None, None
        async for line in self.response.content:
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data = json.loads(value)
            elif not field and name:
                return name, data
        raise EOFError

    async def until(self, wanted):
        """The value of the next event of that name."""
        while True:
            name, value = await self.event()
            if name == wanted:
                return value


@contextlib.asynccontextmanager
async def viewer(bench, **headers):
    async with bench.client.get(bench.admin + "/events", headers=headers) as response:
        assert response.status == 200
        yield Viewer(response)


async def test_a_viewer_is_told_at_once_what_words_mean_and_what_is_now(bench):
    async with viewer(bench) as watching:
        assert watching.response.content_type == "text/event-stream"
        name, hello = await watching.event()
        assert name == "hello"
        assert hello["may_write"] is True
        assert hello["reasons"]["full"] == "It held as much as it may."
        name, snapshot = await watching.event()
        assert (name, snapshot["phase"], snapshot["viewers"]) == ("snapshot", "serving", 1)
        assert await watching.event() == ("batches", {"seen": 0, "batches": []})
    assert asyncio.get_running_loop().time() < 0.2


async def test_batches_are_told_with_their_members_within_half_a_second(bench):
    async with viewer(bench) as watching:
        await watching.until("batches")
        began = asyncio.get_running_loop().time()
        posts = [
            bench.post('{"instances":[1,2]}', headers={"X-Request-ID": name, "Content-Type": "application/json"})
            for name in ("one", "two")
        ]
        await asyncio.gather(*posts)
        told = await watching.until("batches")
        assert asyncio.get_running_loop().time() - began < 0.6
        (batch,) = told["batches"]
        assert told["seen"] == 1
        assert (batch["reason"], batch["rows"], batch["cap"], batch["requests"]) == ("full", 4, 4, 2)
        assert sorted(batch["members"]["ids"]) == ["one", "two"]
        assert batch["members"]["rows"] == [2, 2]
        assert batch["path"] == "/v1/models/m:predict"


async def test_numbers_of_the_stream_are_those_of_the_metrics_page(bench):
    async with viewer(bench) as watching:
        await asyncio.gather(*(bench.post('{"instances":[1]}') for _ in range(8)))
        await bench.post("nonsense")
        await bench.get(bench.url + "/v1/models")
        await asyncio.sleep(1.2)
        while (snapshot := await watching.until("snapshot"))["totals"]["answers"].get("passthrough", 0) < 1:
            pass
        totals = snapshot["totals"]
        assert (
            totals["answers"]["batched"] == await bench.metric('carpool_requests_total{code="200",lane="batched"}') + 1
        )
        assert totals["batches"] == {"full": await bench.metric('carpool_batches_total{reason="full"}')}
        assert totals["refused"] == {"bad_request": 1}
        assert totals["rows"] == await bench.metric("carpool_batch_size_sum") == 8


async def test_queues_are_shown_as_they_fill(bench):
    async with viewer(bench) as watching:
        waiting = asyncio.ensure_future(bench.post('{"instances":[1,2,3]}'))
        await bench.queued(1)
        while not (snapshot := await watching.until("snapshot"))["queues"]:
            pass
        (queue,) = snapshot["queues"]
        assert (queue["path"], queue["rows"], queue["cap"]) == ("/v1/models/m:predict", 3, 4)
        await waiting


async def test_a_failed_batch_is_told_with_its_reason(bench):
    bench.predictor.behave = refuse(503)
    async with viewer(bench) as watching:
        await bench.post('{"instances":[1]}')
        (batch,) = (await watching.until("batches"))["batches"] or (await watching.until("batches"))["batches"]
        assert batch["error"] == "predictor_status"


async def test_nothing_is_recorded_and_no_timer_runs_while_nobody_looks(bench):
    stream = bench.sidecar.stream
    assert (stream._timer, stream._recorder, stream._observed.recorder) == (None, None, None)
    async with viewer(bench) as watching:
        await watching.event()
        assert stream.viewers == 1
        assert stream._observed.recorder is not None
    await bench.post('{"instances":[1]}')
    assert stream.viewers == 0
    assert (stream._timer, stream._recorder, stream._observed.recorder) == (None, None, None)


async def test_the_ninth_viewer_is_told_why_not_and_gets_the_place_of_one_who_leaves(bench):
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(event_stream.MOST_VIEWERS):
            last = await stack.enter_async_context(viewer(bench))
            await last.event()
        status, text, headers = await bench.get(bench.admin + "/events")
        assert (status, headers["Retry-After"]) == (503, "10")
        assert text.startswith("8 viewers look at this sidecar already")
        last.response.close()
        await asyncio.sleep(0.3)
        async with viewer(bench) as another:
            assert (await another.event())[0] == "hello"


async def test_who_comes_later_gets_the_latest_batches_too(bench):
    async with viewer(bench) as first:
        await bench.post('{"instances":[1,2,3,4]}')
        while not (await first.until("batches"))["batches"]:
            pass
        async with viewer(bench) as second:
            told = await second.until("batches")
            assert (told["seen"], len(told["batches"])) == (1, 1)


async def test_a_viewer_that_does_not_read_misses_messages_and_holds_up_nobody(bench):
    stream = bench.sidecar.stream
    with stream.viewer() as slow, stream.viewer() as quick:
        for number in range(8):
            await asyncio.sleep(event_stream.INTERVAL)
            message = await quick.next()
            assert message is not None, number
        assert slow._message == message  # the latest, and only that
        await slow.next()
        waiting = asyncio.ensure_future(slow.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        await asyncio.sleep(event_stream.INTERVAL)
        assert waiting.done()


async def test_a_viewer_that_takes_nothing_for_long_loses_its_place(bench):
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.sidecar.settings.admin_port, limit=1024)
    writer.write(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    stream = bench.sidecar.stream
    assert stream.viewers == 1
    stream._snapshots.take = lambda viewers: "x" * 5_000_000  # more than sockets hold
    await asyncio.sleep(40)
    assert stream.viewers == 0
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_the_stream_ends_when_the_sidecar_stops(bench):
    async with viewer(bench) as watching:
        await watching.event()
        bench.sidecar.stream.close()
        with pytest.raises(EOFError):
            await watching.until("an event that never comes")
        assert bench.sidecar.stream.viewers == 0
        status, text, _ = await bench.get(bench.admin + "/events")
        assert (status, text) == (503, "the sidecar is about to exit\n")


async def test_a_bug_in_a_snapshot_is_counted_and_the_next_one_is_told(bench, caplog):
    stream = bench.sidecar.stream
    real = stream._snapshots.take
    async with viewer(bench) as watching:
        await watching.until("batches")
        stream._snapshots.take = lambda viewers: 1 // 0
        await asyncio.sleep(1.2)
        stream._snapshots.take = real
        assert (await watching.until("snapshot"))["phase"] == "serving"
    assert await bench.metric('carpool_internal_errors_total{where="live"}') == 2
    assert "a snapshot could not be made" in caplog.text


async def test_bodies_and_headers_are_not_told(sidecar_of):
    bench = await sidecar_of(max_latency=10)
    headers = {"Authorization": "Bearer hush-header", "Content-Type": "application/json", "X-Request-ID": "shown"}
    async with bench.client.get(bench.admin + "/events") as response:
        await bench.post(
            '{"instances":["hush-body"],"more":"hush-member"}', "/v1/models/m:predict?q=hush-query", headers=headers
        )
        await asyncio.sleep(1.2)
        text = b"".join([await response.content.readany() for _ in range(3)])
    assert b"shown" in text
    assert b"/v1/models/m:predict" in text
    assert b"hush" not in text


async def test_a_stranger_s_name_for_this_address_is_refused(bench):
    status, text, _ = await bench.get(bench.admin + "/events", headers={"Host": "evil.example:9082"})
    assert status == 403
    assert "'evil.example' could be anybody's name" in text


async def test_pages_of_other_sites_may_not_change_settings_nor_start_the_drain(bench):
    for method, path in (("PATCH", "/config"), ("POST", "/drain")):
        url = bench.admin + path
        async with bench.client.request(method, url, data="{}", headers={"Origin": "http://evil.example"}) as response:
            assert response.status == 403
            assert "a page of another site" in await response.text()
    assert bench.sidecar.life.phase.value == "serving"


async def test_the_page_may_change_settings_and_viewers_see_it(bench):
    headers = {"Origin": bench.admin, "Content-Type": "application/json"}
    async with viewer(bench) as watching:
        async with bench.client.patch(bench.admin + "/config", data='{"max_latency":7}', headers=headers) as response:
            assert response.status == 200
        while (await watching.until("snapshot"))["settings"]["max_latency"] != 7:
            pass


async def test_a_viewer_from_outside_the_pod_is_told_that_it_may_change_nothing(bench, monkeypatch):
    from carpool_sidecar.server import admin_access

    monkeypatch.setattr(admin_access, "_is_inside", lambda address: False)
    async with viewer(bench) as watching:
        assert (await watching.until("hello"))["may_write"] is False


async def test_a_browser_gets_the_page_and_a_program_the_list_of_paths(bench):
    status, text, headers = await bench.get(bench.admin + "/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (status, headers["Content-Type"], headers["Vary"]) == (200, "text/html; charset=utf-8", "Accept")
    assert text.startswith("<!doctype html>")
    status, text, headers = await bench.get(bench.admin + "/")
    assert (headers["Content-Type"], headers["Vary"]) == ("text/plain; charset=utf-8", "Accept")
    assert text.startswith("/livez /readyz")


async def test_the_page_s_policy_allows_its_own_script_and_style_and_nothing_from_outside(bench):
    _, text, headers = await bench.get(bench.admin + "/", headers={"Accept": "text/html"})
    policy = headers["Content-Security-Policy"]
    for tag in ("script", "style"):
        (inline,) = re.findall(rf"(?s)<{tag}[^>]*>(.*?)</{tag}>", text)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", text) == []
    assert re.findall(r"\sstyle=|\son[a-z]+=", text.partition("<script")[0]) == []
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_is_small():
    assert len(live_page.load().body) < 64 * 1024


async def test_a_viewer_who_leaves_at_once_leaves_nothing_behind(bench):
    for _ in range(3):
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with viewer(bench) as watching:
                await watching.event()
    await asyncio.sleep(1)
    assert bench.sidecar.stream.viewers == 0
