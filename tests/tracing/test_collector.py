"""A real collector of OpenTelemetry's takes what the sidecar exports, as it stands behind real deployments.

`make collector` builds it once, of its Go modules; without it this is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import loopback
from tests.tracing import build_collector
from tests.tracing.conftest import traceparent

COLLECTOR = build_collector.PROGRAM.built
pytestmark = pytest.mark.skipif(not COLLECTOR.is_file(), reason="the collector is not built: make collector")


@pytest.fixture
def collected(memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file in which a running collector writes what it takes, one JSON document a line."""
    (port,) = loopback.free_ports(1)
    told, written = tmp_path / "collector.json", tmp_path / "spans.json"
    told.write_text(
        json.dumps(
            {
                "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
                "exporters": {"file": {"path": str(written), "flush_interval": "50ms"}},
                "service": {
                    "telemetry": {"metrics": {"level": "none"}},
                    "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
                },
            }
        )
    )
    log = tmp_path / "log"
    with log.open("w") as output:
        running = subprocess.Popen([COLLECTOR, "--config", f"file:{told}"], stdout=output, stderr=output)
    try:
        _wait(port, running, log)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        yield written
    finally:
        running.terminate()
        running.wait(20)


def _wait(port: int, running: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(400):
        assert running.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise AssertionError(f"the collector does not listen: {log.read_text()}")


async def test_the_collector_takes_batches_and_waits_with_their_links_and_attributes(sidecar_of, collected):
    bench = await sidecar_of(max_batch_size=2, max_latency=50, tracing="otlp")
    headers = {"Content-Type": "application/json", "X-Request-ID": "id"}
    sent = [bench.post('{"instances":[1]}', headers=headers | {"traceparent": traceparent(n, n)}) for n in (1, 2)]
    assert [status for status, _, _ in await asyncio.gather(*sent)] == [200, 200]
    assert await bench.sidecar.drain()
    await bench.sidecar.stop()
    found: list[dict[str, Any]] = []
    for _ in range(200):
        found = list(spans_of(collected))
        if len(found) >= 3:
            break
        await asyncio.sleep(0.05)
    batch = next(span for span in found if span["name"] == "carpool.batch")
    waits = [span for span in found if span["name"] == "carpool.wait"]
    assert sorted(link["traceId"] for link in batch["links"]) == [f"{1:032x}", f"{2:032x}"]
    assert {(wait["traceId"], wait["parentSpanId"]) for wait in waits} == {
        (f"{1:032x}", f"{1:016x}"), (f"{2:032x}", f"{2:016x}")
    }  # fmt: skip
    assert {link["spanId"] for wait in waits for link in wait["links"]} == {batch["spanId"]}
    told = {each["key"]: each["value"] for each in batch["attributes"]}
    assert told["carpool.batch.rows"] == {"intValue": "2"}
    assert told["http.response.status_code"] == {"intValue": "200"}
    assert batch["kind"] == 3  # CLIENT
    assert not batch.get("status")


def spans_of(written: Path) -> Iterator[dict[str, Any]]:
    """All spans in what the collector wrote so far."""
    if not written.is_file():
        return
    for line in written.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # it is writing it
            for resource in json.loads(line)["resourceSpans"]:
                about = {each["key"]: each["value"].get("stringValue") for each in resource["resource"]["attributes"]}
                assert about["service.name"] == "carpool-sidecar"
                for scope in resource["scopeSpans"]:
                    yield from scope["spans"]
