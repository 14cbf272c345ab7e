"""A batched function can see who called: the context variables of every member, and their traces."""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from typing import Any

import pytest
from opentelemetry import baggage, context, trace

import carpool
from tests.functions.ways import PATIENCE, Gate, Recorded, Way, double, every_way

pytestmark = pytest.mark.both_loops

user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")


def calls_as(name: str, function: Any, *items: Any) -> list[carpool.Future[Any]]:
    """Calls of a user's, each made in a context of its own."""

    def call() -> list[carpool.Future[Any]]:
        user.set(name)
        return [function(item) for item in items]

    return contextvars.copy_context().run(call)


def calls_of_three(function: Any) -> list[carpool.Future[Any]]:
    return [*calls_as("ann", function, 1), *calls_as("bob", function, 2), *calls_as("eve", function, 3)]


def who(items: list[Any]) -> list[str]:
    return [member.context[user] for member in carpool.batch().members]


@every_way
async def test_the_context_variables_of_each_member_reach_the_function(way: Way) -> None:
    function = way.batched(who, max_batch_size=3, max_latency=PATIENCE)
    futures = await way.run(lambda: calls_of_three(function))
    assert [await way.outcome(future) for future in futures] == ["ann", "bob", "eve"]
    assert user.get() == "nobody"


@every_way
async def test_what_a_caller_sets_after_its_call_is_not_seen(way: Way) -> None:
    gate = Gate()
    function = way.batched(who, gate=gate)

    def call() -> carpool.Future[str]:
        user.set("before")
        future = function(1)
        user.set("after")
        return future

    future = await way.run(lambda: contextvars.copy_context().run(call))
    gate.open()
    assert await way.outcome(future) == "before"


@every_way
async def test_members_tell_how_many_items_each_has_in_the_order_of_the_items(way: Way) -> None:
    seen: list[Any] = []

    def body(items: list[int]) -> list[int]:
        batch = carpool.batch()
        seen.append([member.context[user] for member in batch.members])
        return items

    function = way.batched(body, max_batch_size=4, max_latency=PATIENCE)

    def as_user(name: str, items: list[int]) -> Any:
        def call() -> Any:
            user.set(name)
            return function.map(items)

        return contextvars.copy_context().run(call)

    futures = await way.run(lambda: [as_user("ann", [1, 2, 3]), as_user("bob", [4])])
    assert [await way.outcome(future) for future in futures] == [[1, 2, 3], [4]]
    assert list(dict.fromkeys(seen[0])) == ["ann", "bob"]


@every_way
async def test_a_batch_has_an_id_and_a_reason(way: Way) -> None:
    seen: list[Any] = []

    def body(items: list[int]) -> list[int]:
        seen.append(carpool.batch())
        return items

    function = way.batched(body, max_batch_size=2, max_latency=PATIENCE)
    await way.call_all(function, [1, 2])
    await way.call_all(function, [3, 4])
    assert uuid.UUID(seen[0].id).version == 4
    assert seen[0].id != seen[1].id
    assert [str(each.reason) for each in seen] == ["full", "full"]


@every_way
async def test_each_try_of_an_isolated_batch_has_the_members_it_has(way: Way) -> None:
    seen: list[Any] = []

    def body(items: list[int]) -> list[int]:
        batch = carpool.batch()
        seen.append((str(batch.reason), items, [member.context[user] for member in batch.members]))
        if 2 in items:
            raise ValueError("two")
        return items

    function = way.batched(body, max_batch_size=2, max_latency=PATIENCE)
    futures = await way.run(lambda: [*calls_as("ann", function, 1), *calls_as("bob", function, 2)])
    for future in futures:
        await way.outcome(future)
    assert seen[0] == ("full", [1, 2], ["ann", "bob"])
    assert ("isolate", [1], ["ann"]) in seen


@every_way
async def test_members_that_left_are_not_told_of(way: Way) -> None:
    gate = Gate()
    function = way.batched(who, gate=gate, max_batch_size=2, max_latency=0.0, max_in_flight=1)
    [first] = await way.run(lambda: calls_as("first", function, 0))
    await gate.reached()
    futures = await way.run(lambda: calls_of_three(function))
    futures[0].cancel()
    gate.open()
    assert [await way.outcome(future) for future in (first, *futures[1:])] == ["first", "bob", "eve"]


@every_way
async def test_what_a_function_sets_reaches_neither_its_next_batch_nor_its_callers(way: Way) -> None:
    seen: list[str] = []

    def body(items: list[int]) -> list[int]:
        seen.append(user.get())
        user.set("the function")
        return items

    function = way.batched(body, max_batch_size=1)
    await way.call_all(function, [1, 2, 3])
    assert user.get() == "nobody"
    assert "the function" not in seen


async def test_outside_a_batched_function_there_is_no_batch() -> None:
    await carpool.batched(double)(1)
    with pytest.raises((LookupError, RuntimeError), match="batch"):
        carpool.batch()


@every_way
async def test_the_batch_is_known_in_what_the_function_calls(way: Way) -> None:
    if way.kind == "def":

        def function(items: list[int]) -> list[int]:
            inside = contextvars.copy_context().run(carpool.batch)
            return [len(inside.members)] * len(items)

        batched: Any = carpool.batched(function, max_batch_size=2, max_latency=PATIENCE)
    else:

        async def async_function(items: list[int]) -> list[int]:
            async def inner() -> int:
                await asyncio.sleep(0)
                return len(carpool.batch().members)

            return [await asyncio.create_task(inner()), await asyncio.to_thread(lambda: len(carpool.batch().members))]

        batched = carpool.batched(async_function, max_batch_size=2, max_latency=PATIENCE)
    assert await way.call_all(batched, [1, 2]) == [2, 2]


async def test_a_batched_function_called_by_another_is_told_of_its_own_members() -> None:
    inner = carpool.batched(who)

    def outer(items: list[Any]) -> list[Any]:
        mine = [member.context[user] for member in carpool.batch().members]
        futures = [member.context.run(inner, item) for member, item in zip(carpool.batch().members, items, strict=True)]
        return [(own, future.result(PATIENCE)) for own, future in zip(mine, futures, strict=True)]

    function = carpool.batched(outer, max_batch_size=2, max_latency=PATIENCE)
    futures = [*calls_as("ann", function, 1), *calls_as("bob", function, 2)]
    assert [await future for future in futures] == [("ann", "ann"), ("bob", "bob")]


# --- OpenTelemetry ------------------------------------------------------------------------------------------------


def traced(number: int) -> context.Context:
    span = trace.NonRecordingSpan(
        trace.SpanContext(trace_id=number, span_id=number, is_remote=True, trace_flags=trace.TraceFlags(1))
    )
    return baggage.set_baggage("tenant", f"tenant-{number}", trace.set_span_in_context(span))


def current_trace() -> tuple[int, Any]:
    return trace.get_current_span().get_span_context().trace_id, baggage.get_baggage("tenant")


@every_way
async def test_the_trace_of_each_member_reaches_the_function(way: Way) -> None:
    """With the real package: a member's context is entered to make a span in its trace, or a link to it."""
    recorded = Recorded(lambda items: [member.context.run(current_trace) for member in carpool.batch().members])
    function = way.batched(recorded, max_batch_size=3, max_latency=PATIENCE)

    def call(number: int) -> carpool.Future[Any]:
        token = context.attach(traced(number))
        try:
            return function(number)
        finally:
            context.detach(token)

    futures = await way.run(lambda: [call(number) for number in (1, 2, 3)])
    assert [await way.outcome(future) for future in futures] == [(number, f"tenant-{number}") for number in (1, 2, 3)]
    assert current_trace() == (0, None)
