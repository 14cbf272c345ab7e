"""Which spans there are: their parents, links, attributes and times, who is sampled, and what failures say."""

from __future__ import annotations

import asyncio

import pytest

from carpool_sidecar import errors, tracing
from tests.tracing.conftest import BASE, Bench, traceparent

pytestmark = pytest.mark.looptime


def ids(context) -> tuple[int, int]:
    return context.trace_id, context.span_id


async def test_a_batch_links_to_each_callers_span_and_each_wait_is_a_child_of_its_callers(memory):
    bench = Bench(memory)
    bench.submit("a", traceparent(0xA, 1))
    await asyncio.sleep(0.25)
    bench.submit("b", traceparent(0xB, 2), rows=3, request_id="id-b")
    await bench.settle()
    (batch,) = memory.batches
    assert batch.parent is None
    assert batch.context.trace_id not in (0xA, 0xB)
    assert [ids(link.context) for link in batch.links] == [(0xA, 1), (0xB, 2)]
    first, second = memory.waits
    assert [ids(wait.parent) for wait in (first, second)] == [(0xA, 1), (0xB, 2)]
    assert [wait.context.trace_id for wait in (first, second)] == [0xA, 0xB]
    assert [ids(link.context) for wait in (first, second) for link in wait.links] == [ids(batch.context)] * 2
    assert first.end_time - first.start_time == pytest.approx(1e9, abs=2e7)
    assert second.end_time - second.start_time == pytest.approx(0.75e9, abs=2e7)
    assert first.end_time == batch.start_time
    told = {"carpool.batch.id": "batch-1", "carpool.batch.reason": "due"}
    path = {"url.path": "/v1/models/m:predict"}
    assert dict(first.attributes) == {**told, **path, "carpool.rows": 1}
    assert dict(second.attributes) == {
        **told, **path, "carpool.rows": 3, "http.request.header.x-request-id": ("id-b",)
    }  # fmt: skip
    bench.driver.close()


async def test_the_batchs_span_tells_of_its_call_as_the_conventions_have_it_and_without_the_query(memory):
    bench = Bench(memory)
    bench.submit("a", traceparent(0xA))
    bench.submit("b", traceparent(0xB))
    await bench.settle()
    (batch,) = memory.batches
    found = dict(batch.attributes)
    key = found.pop("carpool.batch.key")
    assert len(key) == 16
    assert found == {
        "carpool.batch.id": "batch-1",
        "carpool.batch.rows": 2,
        "carpool.batch.requests": 2,
        "carpool.batch.reason": "due",
        "http.request.method": "POST",
        "http.response.status_code": 201,
        "url.full": f"{BASE}/v1/models/m:predict",
        "server.address": "127.0.0.1",
        "server.port": 8080,
    }
    assert batch.kind.name == "CLIENT"
    assert batch.status.status_code.name == "UNSET"
    bench.submit("c", traceparent(0xA))
    bench.submit("d", traceparent(0xA), headers=(("Authorization", "Bearer x"),))
    await bench.settle()
    assert [one.attributes["carpool.batch.key"] == key for one in memory.batches] == [True, True, False]
    bench.driver.close()


async def test_calls_by_grpc_have_the_attributes_of_rpc(memory):
    bench = Bench(memory, rpc=True)
    bench.submit("a", traceparent(0xA), target="/inference.GRPCInferenceService/ModelInfer")
    await bench.settle()
    bench.predictor.error = errors.UpstreamRpcStatus(3, "secret words", 400, b"")
    bench.submit("b", traceparent(0xB), target="/inference.GRPCInferenceService/ModelInfer")
    await bench.settle()
    good, bad = memory.batches
    told = {"rpc.system.name": "grpc", "rpc.method": "inference.GRPCInferenceService/ModelInfer", "server.port": 8001}
    assert told.items() <= dict(good.attributes).items()
    assert good.attributes["rpc.response.status_code"] == "OK"
    assert bad.attributes["rpc.response.status_code"] == bad.attributes["error.type"] == "INVALID_ARGUMENT"
    assert "http.request.method" not in good.attributes
    assert "secret" not in bad.status.description
    bench.driver.close()


async def test_a_batch_of_one_trace_alone_is_part_of_that_trace(memory):
    bench = Bench(memory)
    bench.submit("a", traceparent(0xA, 1), tracestate="vendor=1")
    bench.submit("b", traceparent(0xA, 2))
    await bench.settle()
    (batch,) = memory.batches
    assert ids(batch.parent) == (0xA, 1)
    assert batch.context.trace_id == 0xA
    assert batch.context.trace_state.to_header() == "vendor=1"
    assert len(batch.links) == 2
    bench.driver.close()


@pytest.mark.parametrize("traces", [(0xA, 0xB), (0xA, 0xA)])
async def test_what_goes_on_to_the_predictor_is_the_batchs_own_span(memory, traces):
    bench = Bench(memory)
    for number, each in enumerate(traces):
        bench.submit(str(number), traceparent(each, number + 1), tracestate="vendor=1")
    await bench.settle()
    (batch,) = memory.batches
    _, headers, _ = bench.predictor.posted[0]
    sent = tracing.span_context(headers["traceparent"], None)
    assert ids(sent) == ids(batch.context)
    assert sent.trace_flags.sampled
    assert headers.get("tracestate") == ("vendor=1" if len(set(traces)) == 1 else None)
    bench.driver.close()


async def test_a_batch_without_a_span_takes_the_first_callers_context_on_as_without_tracing(memory):
    bench = Bench(memory)
    bench.submit("a", traceparent(0xA, sampled=False), tracestate="vendor=1")
    bench.submit("b", traceparent(0xB, sampled=False))
    await bench.settle()
    _, headers, _ = bench.predictor.posted[0]
    assert (headers["traceparent"], headers["tracestate"]) == (traceparent(0xA, sampled=False), "vendor=1")
    assert memory.get_finished_spans() == ()
    bench.driver.close()


# --- sampling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "members", "waits", "batches"),
    [
        ("parentbased_always_on", [True, False, False], 1, 1),
        ("parentbased_always_on", [False, False], 0, 0),
        ("parentbased_always_on", [None, False], 0, 1),
        ("parentbased_always_on", [None], 0, 1),
        ("parentbased_always_off", [True, None], 1, 1),
        ("parentbased_always_off", [None, False], 0, 0),
        ("always_off", [True, True], 0, 0),
        ("always_on", [False, False], 0, 1),
        ("always_on", [False, True], 1, 1),
    ],
)
async def test_a_member_is_sampled_as_its_caller_and_a_batch_as_any_of_its_members(
    memory, monkeypatch, sampler, members, waits, batches
):
    """None: a caller without a trace, for whom the sampler decides."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    bench = Bench(memory)
    for number, sampled in enumerate(members):
        bench.submit(str(number), None if sampled is None else traceparent(number + 1, sampled=sampled))
    await bench.settle()
    assert (len(memory.waits), len(memory.batches)) == (waits, batches)
    assert len(bench.outcomes) == len(members)
    bench.driver.close()


async def test_a_share_of_batches_is_sampled_where_no_caller_has_decided(memory, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    bench = Bench(memory, max_latency=0.0, max_in_flight=1000)
    for number in range(400):
        bench.submit(str(number))
        bench.driver.flush()
    await bench.settle(0.1)
    assert len(bench.predictor.posted) == 400
    assert 50 < len(memory.batches) < 150  # 100 of them, give or take five standard deviations
    bench.driver.close()


async def test_nothing_is_recorded_where_opentelemetry_is_switched_off(memory, monkeypatch):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    bench = Bench(memory)
    bench.submit("a", traceparent(0xA))
    await bench.settle()
    assert memory.get_finished_spans() == ()
    assert bench.predictor.posted[0][1]["traceparent"] == traceparent(0xA)
    bench.driver.close()


@pytest.mark.parametrize("broken", ["", "no trace", "00-" + "0" * 32 + "-0000000000000001-01", traceparent(0xA) + "x"])
async def test_what_is_no_traceparent_is_no_caller(memory, broken):
    bench = Bench(memory)
    bench.submit("a", broken)
    bench.submit("b", traceparent(0xB))
    await bench.settle()
    assert [link.context.trace_id for link in memory.batches[0].links] == [0xB]
    assert len(memory.waits) == 1
    bench.driver.close()


# --- failures ---------------------------------------------------------------------------------------------------


async def test_each_call_that_isolates_a_bad_request_has_a_span_and_each_member_one_wait(memory):
    bench = Bench(memory)
    bench.predictor.bad = b'"bad"'
    for number, name in enumerate(["a", "bad", "c", "d"]):
        bench.submit(name, traceparent(number + 1))
    await bench.settle(10)
    assert isinstance(bench.outcomes["bad"], errors.UpstreamStatus)
    assert len(memory.waits) == 4
    reasons = [batch.attributes["carpool.batch.reason"] for batch in memory.batches]
    assert reasons[0] == "due"
    assert set(reasons[1:]) == {"isolate"}
    assert len(reasons) == len(bench.predictor.posted)
    failed = [batch for batch in memory.batches if batch.status.status_code.name == "ERROR"]
    assert len(failed) == sum(b'"bad"' in body for _, _, body in bench.predictor.posted) > 1
    for batch in failed:
        assert batch.attributes["error.type"] == "400"
        assert batch.attributes["http.response.status_code"] == 400
        assert batch.status.description == "the predictor answered 400"
    alone = next(batch for batch in failed if batch.attributes["carpool.batch.rows"] == 1)
    assert [link.context.trace_id for link in alone.links] == [2]
    assert bench.bugs == 0
    bench.driver.close()


@pytest.mark.parametrize("error", [errors.UpstreamUnreachable(), errors.UpstreamTimeout(), errors.UpstreamClosed()])
async def test_a_batch_without_an_answer_says_why(memory, error):
    bench = Bench(memory)
    bench.predictor.error = error
    bench.submit("a", traceparent(0xA))
    await bench.settle()
    for batch in memory.batches:
        assert (batch.attributes["error.type"], batch.status.status_code.name) == (error.reason, "ERROR")
        assert "http.response.status_code" not in batch.attributes
    assert memory.batches
    bench.driver.close()


async def test_a_request_that_is_refused_or_leaves_before_its_batch_does_has_a_wait_that_failed(memory):
    bench = Bench(memory, max_latency=100.0, timeout=1.0, max_queue_instances=3)
    bench.submit("late", traceparent(0xA))
    gone = bench.submit("gone", traceparent(0xB))
    bench.submit("unsampled", traceparent(0xD, sampled=False))
    bench.submit("too much", traceparent(0xC))
    bench.driver.cancel(gone)
    await bench.settle()
    found = {wait.context.trace_id: wait for wait in memory.waits}
    kinds = {trace: wait.attributes["error.type"] for trace, wait in found.items()}
    assert kinds == {0xA: "deadline", 0xB: "caller_left", 0xC: "queue_full"}
    assert {wait.status.status_code.name for wait in found.values()} == {"ERROR"}
    assert found[0xA].end_time - found[0xA].start_time == pytest.approx(1e9, abs=5e7)
    assert memory.batches == []
    bench.driver.close()


async def test_a_request_that_is_given_up_while_it_travels_has_one_wait_and_an_abandoned_batch(memory):
    bench = Bench(memory, max_latency=0.0)
    bench.predictor.gate.clear()
    gone = bench.submit("gone", traceparent(0xA))
    await asyncio.sleep(0)
    bench.driver.cancel(gone)
    await bench.settle()
    (wait,), (batch,) = memory.waits, memory.batches
    assert wait.status.status_code.name == "UNSET"
    assert batch.attributes["error.type"] == "abandoned"
    bench.driver.close()


async def test_every_batch_that_is_out_has_a_span_that_ends_with_the_driver(memory):
    bench = Bench(memory, max_latency=0.0)
    bench.predictor.gate.clear()
    bench.submit("a", traceparent(0xA))
    await asyncio.sleep(0)
    assert memory.batches == []
    bench.driver.close()
    assert [batch.attributes["error.type"] for batch in memory.batches] == ["abandoned"]


async def test_the_rest_of_a_large_request_has_links_but_no_second_wait(memory):
    bench = Bench(memory, max_batch_size=4)
    bench.submit("a", traceparent(0xA, 7), rows=6)
    await bench.settle()
    assert len(memory.waits) == 1
    assert [[ids(link.context) for link in batch.links] for batch in memory.batches] == [[(0xA, 7)]] * 2
    bench.driver.close()


async def test_a_bug_in_tracing_is_logged_once_and_costs_nobody_an_answer(memory, caplog):
    bench = Bench(memory)
    bench.tracing.spans._source.of_wait = lambda request: 1 / 0
    for number in range(3):
        bench.submit(str(number), traceparent(number + 1))
        await bench.settle()
    assert len(bench.outcomes) == 3
    assert not any(isinstance(outcome, Exception) for outcome in bench.outcomes.values())
    assert bench.bugs == 3
    assert caplog.text.count("ZeroDivisionError") == 1
    bench.driver.close()


def test_another_protocol_than_http_is_refused_by_name(memory, monkeypatch):
    tracing.check_environment()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    tracing.check_environment()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'grpc'; spans go by http/protobuf"):
        tracing.check_environment()


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "carpool-sidecar"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=theirs,k8s.pod.name=p"}, "theirs"),
    ],
)
async def test_the_service_is_named_by_the_environment(memory, monkeypatch, variables, name):
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    bench = Bench(memory)
    bench.submit("a", traceparent(0xA))
    await bench.settle()
    assert memory.batches[0].resource.attributes["service.name"] == name
    bench.driver.close()


@pytest.mark.parametrize("state", ["foo=1=2,bad", "=", ",".join(f"k{number}=1" for number in range(40))])
def test_what_is_no_tracestate_is_in_no_log(state, caplog):
    caplog.set_level("WARNING")
    assert tracing.span_context("00-" + "a" * 32 + "-" + "b" * 16 + "-01", state).is_valid
    assert not caplog.records


def test_numbers_of_the_environment_that_cannot_be_used_are_told_before_anything_starts(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")
    with pytest.raises(ValueError, match="OpenTelemetry's environment variables cannot be used: max_export_batch_size"):
        tracing.check_environment()
