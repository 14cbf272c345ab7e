"""Makes the picture in docs/operations.md: `python -m tests.charts.picture`, with Prometheus and Chromium, in a minute.

It shows queries of the dashboard and of its annotations in a console of a real Prometheus, over a minute in which
things happen to a real sidecar: a change of settings, and a predictor that begins to refuse larger batches.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from aiohttp import web

from tests import loopback
from tests.app.fake_predictor import FakePredictor, Seen
from tests.charts import helm, prometheus_server

PICTURE = helm.ROOT / "docs" / "dashboard-queries.png"
PANELS = (
    "Batches, by why they left", "Instances in a batch", "Time of a predict request", "Limit of the predictor",
)  # fmt: skip
EVENTS = ("Most batches leave for another reason", "Limit of the predictor", "Settings")
CALLERS = 24
SECONDS = 60
_DASHBOARD = json.loads((helm.CHART / "files" / "dashboard.json").read_text())

# Prometheus gives the parts of its own consoles; lines are drawn over them, and named on the second graph.
_CONSOLE = """<!doctype html><meta charset="utf-8"><title>Carpool</title>
<link rel="stylesheet" href="/classic/static/rickshaw/rickshaw.min.css">
<link rel="stylesheet" href="/classic/static/bootstrap4/css/bootstrap.min.css">
<link rel="stylesheet" href="/classic/static/css/prom_console.css">
<style>
body { padding: 12px; background: white }
#graphs { display: grid; grid-template-columns: 600px 600px; gap: 8px }
h2 { font-size: 16px; margin: 0 }
section { position: relative }
.mark { position: absolute; height: 260px; border-left: 2px dashed; font-size: 11px; background: none; padding: 0 3px;
  writing-mode: vertical-rl }
</style>
<script src="/classic/static/d3/d3.min.js"></script>
<script src="/classic/static/rickshaw/rickshaw.min.js"></script>
<script src="/classic/static/jquery/jquery.min.js"></script>
<script>PATH_PREFIX = ""</script>
<script src="/classic/static/js/prom_console.js"></script>
<div id="graphs"></div>
<script>
const [start, end] = location.hash.slice(1).split(",").map(Number)
const made = GRAPHS.map(each => {
  const section = document.querySelector("#graphs").appendChild(document.createElement("section"))
  section.appendChild(document.createElement("h2")).textContent = each.title
  const node = section.appendChild(document.createElement("div"))
  return new PromConsole.Graph({...each, node, duration: end - start, endTime: end, width: 500, height: 260, min: 0})
})
const named = (text, labels) => text.replace(/\\[\\[(\\w+)\\]\\]/g, (_, label) => labels[label])
const timer = setInterval(async () => {
  if (!made.every(each => each.rickshawGraph)) return  // a graph empties its place when its data have come
  clearInterval(timer)
  for (const event of EVENTS) {
    const asked = new URLSearchParams({query: event.expr, start, end, step: 0.5})
    const answer = await (await fetch("/api/v1/query_range?" + asked)).json()
    for (const series of answer.data.result) {
      const times = series.values.filter(([, value]) => value > 0).map(([time]) => time)
      const starts = times.filter((time, at) => at === 0 || time - times[at - 1] > 1)
      // Beside the graph, which empties its place when it is drawn anew.
      for (const time of starts) document.querySelectorAll("section").forEach((section, number) => {
        const graph = section.querySelector(".rickshaw_graph")
        const mark = section.appendChild(document.createElement("div"))
        mark.className = "mark"
        const [place, around] = [graph.getBoundingClientRect(), section.getBoundingClientRect()]
        mark.style.left = place.left - around.left + place.width * (time - start) / (end - start) + "px"
        mark.style.top = place.top - around.top + "px"
        mark.style.color = event.color
        if (number === 1) mark.textContent = named(event.title, series.metric)
      })
    }
  }
}, 100)
</script>
"""


def console() -> str:
    """A console template of Prometheus' with the panels, and the events as lines in all of them."""
    panels = {panel["title"]: panel for panel in _DASHBOARD["panels"] if panel["type"] != "row"}
    graphs = [
        {
            "title": title,
            "expr": [_alone(target["expr"]) for target in panels[title]["targets"]],
            "name": [
                re.sub(r"\{\{(\w+)\}\}", r"[[\1]]", target["legendFormat"]) for target in panels[title]["targets"]
            ],
            "renderer": "line"
            if panels[title]["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "none"
            else "area",
        }
        for title in PANELS
    ]
    events = [
        {
            "expr": _alone(each["expr"]),
            "color": each["iconColor"],
            "title": re.sub(r"\{\{(\w+)\}\}", r"[[\1]]", each["titleFormat"]),
        }
        for each in _DASHBOARD["annotations"]["list"]
        if each["name"] in EVENTS
    ]
    return _CONSOLE.replace("GRAPHS", json.dumps(graphs)).replace("EVENTS", json.dumps(events))


def _alone(expression: str) -> str:
    """A query for what is alone in its Prometheus."""
    return prometheus_server.filled_in(expression, "3s").replace('namespace=~".*",pod=~".*"', "")


@contextlib.asynccontextmanager
async def sidecar(predictor_port: int) -> AsyncIterator[tuple[int, int]]:
    """A sidecar as people start it; its port and admin port."""
    port, admin_port = loopback.free_ports(2)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "carpool_sidecar", "--host=127.0.0.1", "--admin-host=127.0.0.1", f"--port={port}",
        f"--admin-port={admin_port}", f"--component-port={predictor_port}", "--max-batch-size=8", "--quiet-period=0",
        "--log-level=warning",
    )  # fmt: skip
    try:
        yield port, admin_port
    finally:
        process.terminate()
        await process.wait()


async def happen(session: aiohttp.ClientSession, fake: FakePredictor, port: int, admin: str) -> None:
    """A minute of callers; the settings change after a quarter of it, and the predictor after a half."""
    ends = time.monotonic() + SECONDS

    async def call() -> None:
        while time.monotonic() < ends:
            async with session.post(f"http://127.0.0.1:{port}/v1/models/m:predict", json={"instances": [1]}) as answer:
                await answer.read()

    callers = [asyncio.create_task(call()) for _ in range(CALLERS)]
    await asyncio.sleep(SECONDS / 4)
    async with session.patch(f"{admin}/config", data=b'{"max_batch_size": 32}') as answer:
        answer.raise_for_status()
    await asyncio.sleep(SECONDS / 4)
    fake.behave = _refuse_more_than_12
    await asyncio.gather(*callers)


def _refuse_more_than_12(seen: Seen, request: web.BaseRequest) -> web.StreamResponse | None:
    if request.method != "POST" or len(seen.rows) <= 12:
        return None
    return web.json_response({"error": "CUDA out of memory"}, status=500)


async def ready(session: aiohttp.ClientSession, admin: str) -> None:
    """Returns once the sidecar says that it is."""
    for _ in itertools.repeat(None, 200):
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with session.get(f"{admin}/readyz") as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(0.1)
    raise OSError("the sidecar does not get ready")


async def take(url: str, start: float, end: float, folder: Path) -> None:
    """The console as Chromium shows it, with the events as lines."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("there is no chromium: install it")
    process = await asyncio.create_subprocess_exec(
        program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}",
        "--window-size=1240,720", "--virtual-time-budget=20000", f"--screenshot={PICTURE}",
        f"{url}/consoles/carpool.html#{start:.3f},{end:.3f}",
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    await asyncio.wait_for(process.wait(), 120)


async def main() -> None:
    """Writes the picture."""
    fake = FakePredictor()
    fake.service = lambda rows: 0.010 + 0.0005 * rows
    server = web.ServerRunner(web.Server(fake.handle))
    await server.setup()
    predictor_port = loopback.free_port()
    await web.TCPSite(server, "127.0.0.1", predictor_port).start()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with sidecar(predictor_port) as (port, admin_port), aiohttp.ClientSession() as session:
            admin = f"http://127.0.0.1:{admin_port}"
            await ready(session, admin)
            target = prometheus_server.Target(admin_port, "models", "bert-0")
            (folder / "carpool.html").write_text(console())
            async with prometheus_server.running([target], folder, f"--web.console.templates={folder}") as prometheus:
                start = time.time()
                await happen(session, fake, port, admin)
                await take(prometheus.url, start, time.time(), folder / "chromium")
    await server.cleanup()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    asyncio.run(main())
