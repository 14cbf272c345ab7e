"""A whole sidecar that exports: what arrives at an OTLP receiver, shutdown with and without one, and what off means."""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http import server
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from carpool_sidecar import config
from carpool_sidecar.app import process
from tests.tracing.conftest import traceparent

JSON = {"Content-Type": "application/json"}


class Receiver:
    """OTLP over HTTP on loopback, in a thread of its own, since exporters are in threads as well."""

    def __init__(self) -> None:
        self.spans: list[tuple[dict[str, Any], Any]] = []
        self.answers = threading.Event()
        self.answers.set()
        received, answers = self.spans, self.answers

        class Handler(server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
                answers.wait(20)
                request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    about = {each.key: each.value.string_value for each in resource.resource.attributes}
                    received.extend((about, span) for scope in resource.scope_spans for span in scope.spans)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver(memory: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    started = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", started.url)
    yield started
    started.answers.set()
    for each in threading.enumerate():
        if each.name == "last spans":  # a sidecar does not wait for it, and it logs
            each.join()
    started.close()


async def test_the_last_spans_are_exported_before_the_sidecar_ends(sidecar_of, receiver, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "embedder")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    bench = await sidecar_of(max_batch_size=2, max_latency=50, tracing="otlp")
    sent = [
        bench.post('{"instances":[1]}', headers=JSON | {"traceparent": traceparent(number, sampled=True)})
        for number in (1, 2)
    ]
    assert [status for status, _, _ in await asyncio.gather(*sent)] == [200, 200]
    await bench.sidecar.drain()
    await bench.sidecar.stop()
    assert sorted(span.name for _, span in receiver.spans) == ["carpool.batch", "carpool.wait", "carpool.wait"]
    batch = next(span for _, span in receiver.spans if span.name == "carpool.batch")
    assert sorted(int.from_bytes(link.trace_id) for link in batch.links) == [1, 2]
    assert {about["service.name"] for about, _ in receiver.spans} == {"embedder"}
    at_predictor = bench.predictor.seen[-1].headers["traceparent"]
    assert at_predictor.split("-")[1:3] == [batch.trace_id.hex(), batch.span_id.hex()]
    attributes = {each.key: each.value for each in batch.attributes}
    assert attributes["http.response.status_code"].int_value == 200


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_receiver_that_hangs_or_is_missing_costs_no_answer_and_no_more_than_the_grace_period(
    sidecar_of,
    receiver,
    monkeypatch,
    caplog,
    is_there,
):
    receiver.answers.clear()
    if not is_there:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "4")  # seconds: longer than the grace period
    bench = await sidecar_of(max_latency=0, tracing="otlp", grace_period=2)
    for number in range(1, 20):
        begun = time.monotonic()
        status, _, _ = await bench.post('{"instances":[1]}', headers=JSON | {"traceparent": traceparent(number)})
        assert status == 200
        assert time.monotonic() - begun < 1
        await asyncio.sleep(0.01)
    begun = time.monotonic()
    assert await bench.sidecar.drain()
    await bench.sidecar.stop()
    assert time.monotonic() - begun < 3
    receiver.answers.set()


async def test_without_tracing_the_caller_is_passed_on_as_it_came(sidecar_of, memory):
    bench = await sidecar_of(max_latency=0)
    await bench.post('{"instances":[1]}', headers=JSON | {"traceparent": traceparent(7)})
    assert bench.predictor.seen[-1].headers["traceparent"] == traceparent(7)


def test_nothing_of_opentelemetry_is_loaded_without_tracing() -> None:
    program = "import sys; from carpool_sidecar.app import cli, process, wiring; import carpool.functions.decorator\n"
    program += "print(*[name for name in sys.modules if name.startswith(('opentelemetry', 'requests'))])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == ""


def test_a_missing_package_and_a_protocol_that_is_not_there_are_told_at_the_start(memory, monkeypatch, capsys):
    chosen = config.Settings(tracing="otlp")
    process._check_packages(chosen)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(SystemExit) as ended:
        process._check_packages(chosen)
    assert ended.value.code == 2
    assert "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'; spans go by http/protobuf only" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "carpool_sidecar.tracing")
    with pytest.raises(SystemExit):
        process._check_packages(chosen)
    assert "pip install 'carpool-sidecar[otel]'" in capsys.readouterr().err
    assert "OTEL_EXPORTER_OTLP_PROTOCOL" in os.environ
