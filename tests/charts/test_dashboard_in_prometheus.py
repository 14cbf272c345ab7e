"""A real Prometheus understands every query of dashboard and alerts, and has data for the dashboard after some load.

The load is such that all happens of which the dashboard tells: batches that are full and not, requests that cannot be
batched, a predictor that refuses for size, for content and breaks off, a change of settings, and a drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web

import carpool_sidecar
from tests import loopback
from tests.app import conftest as app
from tests.app.fake_predictor import Seen
from tests.charts import helm, objects, prometheus_server

predictor, sidecar_of = app.predictor, app.sidecar_of

DASHBOARD = json.loads((helm.CHART / "files" / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = {f"{panel['title']}/{each['refId']}": each["expr"] for panel in PANELS for each in panel["targets"]}
EVENTS = {each["name"]: each for each in DASHBOARD["annotations"]["list"] if not each.get("builtIn")}
# What the injector shows is no business of a sidecar's Prometheus.
OF_SIDECARS = {name: query for name, query in QUERIES.items() if "carpool_injector" not in query}
RATE_INTERVAL = 4 * prometheus_server.SCRAPE_SECONDS
POISON = b"-1"


@pytest.fixture(autouse=True)
def prometheus_is_here() -> None:
    for name in ("prometheus", "promtool"):
        try:
            prometheus_server.find(name)
        except prometheus_server.Unavailable as missing:
            pytest.skip(str(missing))


def test_promtool_reads_every_query_of_the_dashboard(tmp_path: Path) -> None:
    expressions = [*QUERIES.values(), *(each["expr"] for each in EVENTS.values())]
    rules = [
        {"record": f"query:{number}", "expr": prometheus_server.filled_in(expression, "5m")}
        for number, expression in enumerate(expressions)
    ]
    assert prometheus_server.complaints([{"name": "dashboard", "rules": rules}], tmp_path) == ""


def test_promtool_reads_the_alerts(tmp_path: Path) -> None:
    made = objects.one(objects.rendered("--set", "prometheusRule.enabled=true"), "PrometheusRule")
    assert prometheus_server.complaints(made["spec"]["groups"], tmp_path) == ""


def test_promtool_tells_of_what_is_no_query(tmp_path: Path) -> None:
    rules = [{"record": "query:0", "expr": "sum by (rate("}]
    assert "parse error" in prometheus_server.complaints([{"name": "broken", "rules": rules}], tmp_path)


class Predictor:
    """Answers in ten milliseconds; takes `most` rows in a call, refuses the poison, and breaks one call off if told."""

    def __init__(self) -> None:
        self.most = 1000
        self.break_off = False

    def __call__(self, seen: Seen, request: web.BaseRequest) -> web.StreamResponse | None:
        if not request.path.endswith(":predict"):
            return None
        if self.break_off and request.transport is not None:
            self.break_off = False
            request.transport.abort()
        if len(seen.rows) > self.most:
            return web.json_response({"error": "the batch is too large"}, status=413)
        if POISON in seen.rows:
            return web.json_response({"error": "no such instance"}, status=400)
        return None


@contextlib.asynccontextmanager
async def callers(bench: app.Bench, count: int) -> AsyncIterator[None]:
    """So many send one instance after another until the block ends; whatever the answer is."""

    async def send() -> None:
        while True:
            await bench.post('{"instances":[1]}')

    tasks = [asyncio.create_task(send()) for _ in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def eventful(bench: app.Bench, behaviour: Predictor) -> None:
    """All that the dashboard tells of, with quiet between so that each is an event of its own."""
    quiet = RATE_INTERVAL + 2 * prometheus_server.SCRAPE_SECONDS
    async with callers(bench, 12):  # batches are full: 4 instances
        await asyncio.sleep(quiet)
    await bench.get(bench.admin + "/readyz")  # until it is asked, a sidecar is not ready
    async with bench.client.patch(bench.admin + "/config", data='{"max_batch_size": 64}') as response:
        assert response.status == 200
    async with callers(bench, 12):  # batches leave when the predictor has nothing to do, or their time has come
        await asyncio.sleep(quiet)
        behaviour.most = 3
        await asyncio.sleep(quiet)
        behaviour.break_off = True
        await bench.post_all('{"instances":[1]}', '{"instances":[-1]}', '{"instances":[2]}')
        await bench.post('{"input":[]}', path="/v1/embeddings")
        await bench.post('{"input":["a"],"stream":true}', path="/v1/embeddings")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{bench.sidecar.settings.grpc_port}") as channel:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await channel.unary_unary("/some.Service/Call")(b"")
        await asyncio.sleep(quiet)
    async with bench.client.post(bench.admin + "/drain") as response:
        assert response.status == 200
    await asyncio.sleep(quiet)


def happened(event: Any, series: list[Any]) -> list[Any]:
    """The series that Grafana shows as events: a value above 0, or where values are times, any."""
    return [
        each["metric"]
        for each in series
        if event.get("useValueForTime") or any(float(value) > 0 for _, value in each["values"])
    ]


def lasts_throughout(series: list[Any], start: float, end: float) -> bool:
    """Whether one of them is above 0 nearly all the time: an event begins and ends."""
    samples = (end - start) / prometheus_server.SCRAPE_SECONDS
    return any(sum(float(value) > 0 for _, value in each["values"]) > 0.8 * samples for each in series)


async def test_prometheus_has_data_for_every_panel_and_event_after_some_load(
    sidecar_of: Callable[..., Awaitable[app.Bench]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "aiohttp.access")  # the fake's: a line for each call
    bench = await sidecar_of(
        max_batch_size=4, max_latency=20, lists="openai-embeddings", grpc_port=loopback.free_port(),
        policy="adaptive", retry_statuses="400,500", grace_period=5,
    )  # fmt: skip
    behaviour = Predictor()
    bench.predictor.behave = behaviour
    bench.predictor.service = lambda rows: 0.005 + 0.0005 * rows
    target = prometheus_server.Target(bench.sidecar.settings.admin_port, "models", "bert-0")
    async with prometheus_server.running([target], tmp_path) as prometheus:
        start = time.time()
        await eventful(bench, behaviour)
        end = time.time()

        async def asked(query: str) -> list[Any]:
            expression = prometheus_server.filled_in(query, f"{RATE_INTERVAL:g}s")
            return await prometheus.values(expression, start, end)

        answers = {name: await asked(query) for name, query in OF_SIDECARS.items()}
        of_events = {name: await asked(each["expr"]) for name, each in EVENTS.items()}
        events = {name: happened(EVENTS[name], series) for name, series in of_events.items()}

    most = {
        name: max((float(value) for each in series for _, value in each["values"] if value != "NaN"), default=None)
        for name, series in answers.items()
    }
    assert [name for name, value in most.items() if value is None or not math.isfinite(value)] == []
    # What was so, and not only that something was shown.
    assert most["Limit of the predictor/A"] == 3
    assert {name for name in ("Sent again/A", "Not batched/A", "Refused/A", "Failed calls to the predictor/A")
            if not most[name]} == set()  # fmt: skip
    assert [name for name, seen in events.items() if not seen] == []
    assert {each["reason"] for each in events["Most batches leave for another reason"]} >= {"full"}
    assert {each["reason"] for each in events["Batches that left out of turn"]} >= {"closed", "isolate", "smaller"}
    assert events["Started"][0]["version"] == carpool_sidecar.__version__
    assert [name for name in EVENTS if name != "Started" and lasts_throughout(of_events[name], start, end)] == []
