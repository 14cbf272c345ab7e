"""A real Prometheus for the tests, from PATH: it answers the dashboard's queries, and promtool reads its expressions.

Debian and Ubuntu have both in the package `prometheus`; where there is none, tests that need it are skipped and say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import yaml

from tests import loopback

SCRAPE_SECONDS = 0.5
_START_SECONDS = 30.0


class Unavailable(Exception):
    """There is no Prometheus on this machine: a reason to skip. The message says what to install."""


class Target(NamedTuple):
    """What is scraped, under the labels that the Prometheus Operator would add."""

    port: int
    namespace: str
    pod: str


class Prometheus(NamedTuple):
    """One that runs. `url` has no slash at its end."""

    url: str
    session: aiohttp.ClientSession

    async def values(self, expression: str, start: float, end: float, step: float = SCRAPE_SECONDS) -> list[Any]:
        """The series that an expression comes to from `start` to `end`, as Prometheus' API tells them.

        Times are in seconds since 1970. Raises ValueError with Prometheus' own words where it says no.
        """
        asked = {"query": expression, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        async with self.session.post(f"{self.url}/api/v1/query_range", data=asked) as response:
            answer = await response.json()
        if answer["status"] != "success":
            raise ValueError(f"{expression}: {answer['error']}")
        found: list[Any] = answer["data"]["result"]
        return found


def find(name: str) -> str:
    """The executable `prometheus` or `promtool`. Raises Unavailable."""
    on_path = shutil.which(name)
    if on_path is None:
        raise Unavailable(f"there is no {name}: install Prometheus (Debian's package prometheus has both)")
    return on_path


def complaints(groups: Iterable[Mapping[str, Any]], folder: Path) -> str:
    """What promtool has to say against groups of rules, "" for nothing. Raises Unavailable."""
    file = folder / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": list(groups)}))
    done = subprocess.run([find("promtool"), "check", "rules", file], capture_output=True, text=True, timeout=60)
    return done.stderr + done.stdout if done.returncode else ""


def filled_in(expression: str, rate_interval: str) -> str:
    """An expression of the dashboard's as Grafana sends it with everything chosen: `All` of each variable."""
    return re.sub(r"\$(namespace|pod|injector_namespace)\b", ".*", expression).replace(
        "$__rate_interval", rate_interval
    )


@contextlib.asynccontextmanager
async def running(targets: Iterable[Target], folder: Path, *flags: str) -> AsyncIterator[Prometheus]:
    """Scrapes /metrics of the targets on loopback, each once before the block begins, until it ends.

    Raises Unavailable, TimeoutError, and OSError if Prometheus stops.
    """
    program = find("prometheus")
    targets = list(targets)
    jobs = [
        {
            "job_name": each.pod,
            "scrape_interval": f"{SCRAPE_SECONDS * 1000:g}ms",
            "scrape_timeout": f"{SCRAPE_SECONDS * 1000:g}ms",
            "static_configs": [
                {"targets": [f"127.0.0.1:{each.port}"], "labels": {"namespace": each.namespace, "pod": each.pod}}
            ],
        }
        for each in targets
    ]
    config = folder / "prometheus.yaml"
    config.write_text(json.dumps({"scrape_configs": jobs}))
    port = loopback.free_port()
    process = await asyncio.create_subprocess_exec(
        program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error", *flags,
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{port}"
            made = Prometheus(url, session)
            async with asyncio.timeout(_START_SECONDS):
                await _until_ready(session, url, process)
                await _until_scraped(made, len(targets))
            yield made
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _until_scraped(made: Prometheus, count: int) -> None:
    while True:
        now = time.time()
        if len(await made.values("up == 1", now, now)) == count:
            return
        await asyncio.sleep(0.05)


async def _until_ready(session: aiohttp.ClientSession, url: str, process: asyncio.subprocess.Process) -> None:
    while True:
        if process.returncode is not None:
            raise OSError(f"Prometheus ended with status {process.returncode}")
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with session.get(f"{url}/-/ready") as response:
                if response.status == 200:
                    return
        await asyncio.sleep(0.05)
