"""Batched functions in their callers' traces: `carpool.otel`, in each of the four ways through the library."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.trace import export, sampling

import carpool
import carpool.otel
from tests.functions.ways import PATIENCE, Gate, Way, double, every_way
from tests.tracing.conftest import Memory

pytestmark = pytest.mark.both_loops


@pytest.fixture
def tracer(memory: Memory) -> Iterator[Any]:
    """That of an application which exports to memory, with batched functions instrumented."""
    provider = sdk.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    carpool.otel.instrument(provider)
    yield provider.get_tracer("application")
    carpool.otel.uninstrument()


def in_spans(tracer: Any, function: Any, items: list[Any]) -> list[Any]:
    """A call for each item, each in a span of its own that is a trace of its own."""
    futures = []
    for item in items:
        with tracer.start_as_current_span(f"caller {item}"):
            futures.append(function(item))
    return futures


def ids(context: Any) -> tuple[int, int]:
    return context.trace_id, context.span_id


@every_way
async def test_a_batch_links_to_its_callers_and_each_call_has_a_wait(way: Way, tracer: Any, memory: Memory) -> None:
    function = way.batched(double, max_batch_size=3, max_latency=PATIENCE, name="double")
    futures = await way.run(lambda: in_spans(tracer, function, [1, 2, 3]))
    assert [await way.outcome(future) for future in futures] == [2, 4, 6]
    callers = [memory.named(f"caller {item}")[0].context for item in (1, 2, 3)]
    await ended(memory, 1)
    (batch,) = memory.batches
    assert [ids(link.context) for link in batch.links] == [ids(caller) for caller in callers]
    assert batch.parent is None
    assert batch.attributes["carpool.batch.rows"] == 3
    assert batch.attributes["carpool.batch.reason"] == "full"
    assert batch.attributes["code.function.name"] == "double"
    assert [ids(wait.parent) for wait in memory.waits] == [ids(caller) for caller in callers]
    assert {ids(wait.links[0].context) for wait in memory.waits} == {ids(batch.context)}


async def ended(memory: Memory, count: int) -> None:
    """Until so many batches have ended: callers may hear of their results a moment before."""
    for _ in range(int(PATIENCE * 1000)):
        if len(memory.batches) >= count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{len(memory.batches)} batches ended, not {count}")


@every_way
async def test_spans_that_the_function_makes_are_children_of_the_batchs(way: Way, tracer: Any, memory: Memory) -> None:
    def work(items: list[int]) -> list[int]:
        with tracer.start_as_current_span("inside"):
            return items

    function = way.batched(work, max_batch_size=2, max_latency=PATIENCE)
    futures = await way.run(lambda: in_spans(tracer, function, [1, 2]))
    for future in futures:
        await way.outcome(future)
    await ended(memory, 1)
    (inside,) = memory.named("inside")
    assert ids(inside.parent) == ids(memory.batches[0].context)


@every_way
async def test_what_the_function_raises_is_told_by_its_type(way: Way, tracer: Any, memory: Memory) -> None:
    def picky(items: list[int]) -> list[int]:
        if 2 in items:
            raise KeyError("two")
        return items

    function = way.batched(picky, max_batch_size=2, max_latency=PATIENCE, isolate=True)
    futures = await way.run(lambda: in_spans(tracer, function, [1, 2]))
    assert await way.outcome(futures[0]) == 1
    assert isinstance(await way.outcome(futures[1]), KeyError)
    await ended(memory, 3)
    failed = [batch for batch in memory.batches if batch.status.status_code.name == "ERROR"]
    assert [batch.attributes["carpool.batch.rows"] for batch in failed] == [2, 1]
    assert {batch.attributes["error.type"] for batch in failed} == {"KeyError"}
    assert len(memory.waits) == 2


async def test_callers_that_are_not_sampled_have_no_spans_and_functions_made_before_are_traced(memory: Memory) -> None:
    function = carpool.batched(max_batch_size=2, max_latency=0.0)(double)
    assert await function(1) == 2
    provider = sdk.TracerProvider(sampling.ParentBased(sampling.ALWAYS_OFF), shutdown_on_exit=False)
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    carpool.otel.instrument(provider)
    try:
        with trace.use_span(remote_span(sampled=False)):
            assert await function(1) == 2
        assert memory.get_finished_spans() == ()
        with trace.use_span(remote_span(sampled=True)):
            assert await function(1) == 2
        await ended(memory, 1)
        assert (len(memory.waits), len(memory.batches)) == (1, 1)
        assert memory.batches[0].context.trace_id == 5
    finally:
        carpool.otel.uninstrument()
    with trace.use_span(remote_span(sampled=True)):
        assert await function(1) == 2
    assert len(memory.batches) == 1


def remote_span(sampled: bool) -> trace.Span:
    return trace.NonRecordingSpan(trace.SpanContext(5, 6, True, trace.TraceFlags(int(sampled))))


async def test_a_map_is_one_call_with_one_wait_and_a_call_that_is_cancelled_has_a_wait_that_failed(
    tracer: Any, memory: Memory
) -> None:
    gate = Gate()

    def held(items: list[int]) -> list[int]:
        gate.pass_through()
        return items

    function = carpool.batched(max_batch_size=4, max_latency=0.0)(held)
    with tracer.start_as_current_span("mapper"):
        mapped = function.map(range(6))
    await asyncio.to_thread(gate.wait_until_reached)
    with tracer.start_as_current_span("gone"):
        gone = function(7)
    await asyncio.sleep(0)
    gone.cancel()
    gate.open()
    assert await mapped == list(range(6))
    await ended(memory, 2)
    mapper, left = memory.waits[0], memory.waits[1]
    assert ids(mapper.parent) == ids(memory.named("mapper")[0].context)
    assert ids(left.parent) == ids(memory.named("gone")[0].context)
    assert left.attributes["error.type"] == "caller_left"
    assert len(memory.waits) == 2


async def test_a_function_that_is_closed_leaves_no_span_open(tracer: Any, memory: Memory) -> None:
    never = asyncio.Event()

    async def held(items: list[int]) -> list[int]:
        await never.wait()
        return items

    function = carpool.batched(max_batch_size=1, max_latency=0.0)(held)
    with tracer.start_as_current_span("caller"):
        future = function(1)
    await asyncio.sleep(0.01)
    await function.close(timeout=0.01)
    with pytest.raises(carpool.Closed):
        await future
    await ended(memory, 1)
    assert memory.batches[0].status.status_code.name == "ERROR"


def test_without_the_package_the_message_names_the_extra() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None\nimport carpool.otel"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'carpool[otel]'" in ended.stderr
