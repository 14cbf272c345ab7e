"""A batched generator gives each caller a stream of its own; who leaves, fails or ends disturbs none of the others."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import carpool
from carpool import END
from carpool.functions.streams import AHEAD, MOST_AHEAD
from tests.functions.ways import PATIENCE, Way, kinds

pytestmark = pytest.mark.both_loops

TOGETHER: dict[str, Any] = {"max_batch_size": 3, "max_latency": PATIENCE}


@dataclasses.dataclass(frozen=True)
class Streams:
    """How generators are written and streams are read: by tasks or by threads."""

    way: Way

    def batched(self, body: Any, **options: Any) -> Any:
        """`body` is a generator function of the items."""
        if self.way.kind == "def":
            return carpool.batched(body, **options)

        async def generator(items: list[Any]) -> AsyncIterator[Any]:
            steps = body(items)
            try:
                for step in steps:
                    await asyncio.sleep(0)
                    yield step
            finally:
                steps.close()

        return carpool.batched(generator, **options)

    async def read(self, stream: Any) -> list[Any]:
        """All values, and at the end the exception that ended it, if one did."""
        values: list[Any] = []

        def in_thread() -> None:
            try:
                values.extend(iter(stream))
            except Exception as error:
                values.append(error)

        if self.way.caller == "thread":
            thread = threading.Thread(target=in_thread)
            thread.start()
            await asyncio.to_thread(thread.join, PATIENCE)
            assert not thread.is_alive(), "a stream never ended"
            return values
        async with asyncio.timeout(PATIENCE):
            try:
                async for value in stream:
                    values.append(value)  # noqa: PERF401 # what came before an exception counts
            except Exception as error:
                values.append(error)
        return values

    async def read_all(self, function: Any, items: Any) -> list[list[Any]]:
        streams = await self.way.run(lambda: [function(item) for item in items])
        return list(await asyncio.gather(*map(self.read, streams)))


kinds_of_streams = [
    Streams(Way(kind, caller))
    for kind in ("def", "async def")
    for caller in ("task", "thread")  # type: ignore[arg-type]
]
every_way = pytest.mark.parametrize("streams", kinds_of_streams, ids=lambda streams: str(streams.way))


def count(items: list[Any]) -> Iterator[list[Any]]:
    for step in range(3):
        yield [(item, step) for item in items]


@every_way
async def test_each_caller_has_a_stream_of_its_own_values(streams: Streams) -> None:
    function = streams.batched(count, **TOGETHER)
    assert await streams.read_all(function, "abc") == [[(item, step) for step in range(3)] for item in "abc"]


@every_way
async def test_a_map_is_a_list_of_streams_in_order(streams: Streams) -> None:
    function = streams.batched(count, max_batch_size=2)
    made = await streams.way.run(lambda: function.map("abcde"))
    made = await streams.way.outcome(made) if isinstance(made, carpool.Future) else made
    assert [await streams.read(each) for each in made] == [[(item, step) for step in range(3)] for item in "abcde"]


@every_way
async def test_a_stream_that_ends_early_ends_alone(streams: Streams) -> None:
    def body(items: list[int]) -> Iterator[list[Any]]:
        for step in range(4):
            yield [END if step >= item else step for item in items]

    function = streams.batched(body, **TOGETHER)
    assert await streams.read_all(function, [1, 4, 2]) == [[0], [0, 1, 2, 3], [0, 1]]


@every_way
async def test_a_generator_is_not_run_on_when_all_its_streams_have_ended(streams: Streams) -> None:
    steps: list[int] = []
    ended = threading.Event()

    def body(items: list[int]) -> Iterator[list[Any]]:
        try:
            for step in range(1_000_000):
                steps.append(step)
                yield [END if step == 2 else step for item in items]
        finally:
            ended.set()

    function = streams.batched(body, **TOGETHER)
    assert await streams.read_all(function, [1, 2, 3]) == [[0, 1]] * 3
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    assert len(steps) <= 4


@every_way
async def test_an_exception_in_a_step_ends_the_stream_of_its_item_alone(streams: Streams) -> None:
    def body(items: list[int]) -> Iterator[list[Any]]:
        for step in range(3):
            yield [ValueError(f"no {item}") if item == 2 and step == 1 else step for item in items]

    function = streams.batched(body, **TOGETHER)
    one, two, three = await streams.read_all(function, [1, 2, 3])
    assert one == three == [0, 1, 2]
    assert kinds(two) == [0, ValueError]


@every_way
async def test_a_generator_that_raises_ends_every_stream_with_an_exception_of_its_own(streams: Streams) -> None:
    original = ValueError("in the midst")

    def body(items: list[int]) -> Iterator[list[Any]]:
        yield [0] * len(items)
        raise original

    function = streams.batched(body, **TOGETHER)
    found = await streams.read_all(function, [1, 2, 3])
    assert [kinds(each) for each in found] == [[0, ValueError]] * 3
    errors = [each[1] for each in found]
    assert len({id(error) for error in errors} | {id(original)}) == 4
    assert [error.__cause__ for error in errors] == [original] * 3


@every_way
@pytest.mark.parametrize("original", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()],
                         ids=lambda error: type(error).__name__)  # fmt: skip
async def test_a_base_exception_ends_every_stream_and_the_function_goes_on(
    streams: Streams, original: BaseException
) -> None:
    raised = [original]

    def body(items: list[int]) -> Iterator[list[Any]]:
        yield [0] * len(items)
        if raised:
            raise raised.pop()
        yield [1] * len(items)

    function = streams.batched(body, **TOGETHER)
    assert [kinds(each) for each in await streams.read_all(function, [1, 2, 3])] == [[0, carpool.BatchFailed]] * 3
    assert await streams.read_all(function, [1, 2, 3]) == [[0, 1]] * 3


@every_way
@pytest.mark.parametrize(("step", "error"), [([1], "WrongLength"), ([1] * 5, "WrongLength"), ("abc", "WrongResult"),
                                             ({1: 1, 2: 2, 3: 3}, "WrongResult"), (None, "WrongResult")])  # fmt: skip
async def test_a_step_that_is_no_list_of_the_right_length_ends_every_stream(
    streams: Streams, step: Any, error: str
) -> None:
    calls: list[int] = []

    def body(items: list[int]) -> Iterator[Any]:
        calls.append(len(items))
        yield [0] * len(items)
        yield step

    function = streams.batched(body, **TOGETHER)
    found = await streams.read_all(function, [1, 2, 3])
    assert [kinds(each) for each in found] == [[0, getattr(carpool, error)]] * 3
    assert calls == [3]


@every_way
async def test_a_generator_without_a_step_gives_streams_without_values(streams: Streams) -> None:
    def body(items: list[int]) -> Iterator[list[Any]]:
        return
        yield []

    assert await streams.read_all(streams.batched(body, **TOGETHER), [1, 2, 3]) == [[]] * 3


class Paced:
    """A generator that goes on one step each time it is told to."""

    def __init__(self, steps: int) -> None:
        self._allowed = threading.Semaphore(0)
        self._steps = steps
        self.ended = threading.Event()

    def __call__(self, items: list[Any]) -> Iterator[list[Any]]:
        try:
            for step in range(self._steps):
                assert self._allowed.acquire(timeout=PATIENCE)
                yield [(item, step) for item in items]
        finally:
            self.ended.set()

    def go(self, steps: int = 1) -> None:
        self._allowed.release(steps)


by_tasks = pytest.mark.parametrize("streams", kinds_of_streams[:1], ids=lambda streams: str(streams.way))


@by_tasks
async def test_a_caller_that_leaves_does_not_disturb_the_others(streams: Streams) -> None:
    paced = Paced(4)
    function = streams.batched(paced, **TOGETHER)
    made = [function(item) for item in "abc"]
    paced.go()
    assert [await anext(aiter(stream)) for stream in made] == [(item, 0) for item in "abc"]
    await made[1].aclose()
    paced.go(3)
    assert await streams.read(made[0]) == [("a", step) for step in (1, 2, 3)]
    assert await streams.read(made[2]) == [("c", step) for step in (1, 2, 3)]
    assert await streams.read(made[1]) == []


@by_tasks
async def test_a_cancelled_reader_and_one_out_of_time_do_not_disturb_the_others(streams: Streams) -> None:
    paced = Paced(3)
    function = streams.batched(paced, **TOGETHER)
    made = [function(item) for item in "abc"]
    reader = asyncio.create_task(streams.read(made[0]))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(aiter(made[1])), 0.01)
    paced.go(3)
    assert await streams.read(made[2]) == [("c", step) for step in range(3)]


@by_tasks
async def test_a_generator_that_nobody_reads_any_more_is_closed(streams: Streams) -> None:
    paced = Paced(1000)
    function = streams.batched(paced, **TOGETHER)
    made = [function(item) for item in "abc"]
    paced.go()
    assert await anext(aiter(made[0])) == ("a", 0)
    for stream in made:
        await stream.aclose()
    paced.go(2)
    assert await asyncio.to_thread(paced.ended.wait, PATIENCE)


@by_tasks
async def test_a_stream_that_is_dropped_leaves_as_one_that_is_closed(streams: Streams) -> None:
    paced = Paced(1000)
    function = streams.batched(paced, **TOGETHER)
    made = [function(item) for item in "abc"]
    paced.go()
    assert await anext(aiter(made[0])) == ("a", 0)
    watched = [weakref.ref(stream) for stream in made]
    made.clear()
    gc.collect()
    assert [each() for each in watched] == [None] * 3
    paced.go(2)
    assert await asyncio.to_thread(paced.ended.wait, PATIENCE)


@by_tasks
async def test_a_stream_that_waits_in_the_queue_and_is_closed_is_never_computed(streams: Streams) -> None:
    paced = Paced(1)
    seen: list[Any] = []

    def body(items: list[Any]) -> Iterator[list[Any]]:
        seen.extend(items)
        yield from paced(items)

    function = streams.batched(body, max_batch_size=1, max_latency=0.0, max_in_flight=1)
    made = [function(item) for item in "abc"]
    await made[1].aclose()
    paced.go(3)
    assert [await streams.read(stream) for stream in made] == [[("a", 0)], [], [("c", 0)]]
    assert seen == ["a", "c"]


@every_way
async def test_closing_waits_for_the_streams_that_are_open(streams: Streams) -> None:
    function = streams.batched(count, **TOGETHER)
    made = await streams.way.run(lambda: [function(item) for item in "ab"])
    closed = await streams.way.run(function.close)
    assert [await streams.read(stream) for stream in made] == [[(item, step) for step in range(3)] for item in "ab"]
    assert await streams.way.outcome(closed) is None
    late = await streams.way.run(lambda: function("c"))
    assert kinds(await streams.read(late)) == [carpool.Closed]


@by_tasks
async def test_a_closing_with_a_timeout_ends_the_streams_that_are_open(streams: Streams) -> None:
    paced = Paced(1000)
    function = streams.batched(paced, **TOGETHER)
    made = [function(item) for item in "abc"]
    paced.go()
    assert await anext(aiter(made[0])) == ("a", 0)
    closed = function.close(timeout=0.01)
    assert kinds(await streams.read(made[0])) == [carpool.Closed]
    assert kinds((await streams.read(made[1]))[-1:]) == [carpool.Closed]
    paced.go(2)
    async with asyncio.timeout(PATIENCE):
        await closed


@by_tasks
async def test_values_that_came_before_they_were_asked_for_are_all_there(streams: Streams) -> None:
    function = streams.batched(count, max_batch_size=1)
    stream = function("a")
    other = function("b")
    assert len(await streams.read(other)) == 3
    assert await streams.read(stream) == [("a", step) for step in range(3)]


@every_way
async def test_a_stream_that_has_ended_stays_ended(streams: Streams) -> None:
    function = streams.batched(count, max_batch_size=1)
    [stream] = await streams.way.run(lambda: [function("a")])
    assert len(await streams.read(stream)) == 3
    assert await streams.read(stream) == []


@every_way
async def test_a_stream_past_its_time_ends_with_that(streams: Streams) -> None:
    release = threading.Event()

    def body(items: list[Any]) -> Iterator[list[Any]]:
        yield [0] * len(items)
        if streams.way.kind == "def":
            release.wait(PATIENCE)
        yield [1] * len(items)

    if streams.way.kind == "def":
        function = streams.batched(body, max_batch_size=1, timeout=0.05)
    else:

        async def slow(items: list[Any]) -> AsyncIterator[list[Any]]:
            yield [0] * len(items)
            await asyncio.sleep(PATIENCE)
            yield [1] * len(items)

        function = carpool.batched(slow, max_batch_size=1, timeout=0.05)
    [stream] = await streams.way.run(lambda: [function("a")])
    assert kinds(await streams.read(stream)) == [0, carpool.DeadlineExceeded]
    release.set()
    if streams.way.kind == "async def":
        await function.close(timeout=0.001)


# --- readers that are slower than the function --------------------------------------------------------------------


def _counting(steps: list[int]) -> Any:
    def body(items: list[Any]) -> Iterator[list[int]]:
        for step in range(20 * MOST_AHEAD):
            steps.append(step)
            yield [step for _ in items]

    return body


async def _settled(steps: list[int]) -> int:
    """How many steps were made once no more are."""
    count = -1
    while count != len(steps):
        count = len(steps)
        await asyncio.sleep(0.05)
    return count


@every_way
async def test_a_function_waits_for_who_reads_its_stream(streams: Streams) -> None:
    steps: list[int] = []
    function = streams.batched(_counting(steps))
    stream = await streams.way.run(lambda: function(1))
    reader = iter(stream)
    for place in range(10):
        assert await asyncio.to_thread(next, reader) == place
    assert await _settled(steps) <= 10 + AHEAD + 1
    assert await asyncio.to_thread(next, reader) == 10
    stream.close()


@every_way
async def test_a_stream_that_nobody_reads_delays_no_other_of_its_batch(streams: Streams) -> None:
    steps: list[int] = []
    function = streams.batched(_counting(steps), **TOGETHER)
    slow, fast, leaves = await streams.way.run(lambda: function.map([1, 2, 3]))
    await asyncio.sleep(0)  # calls of one turn of a loop go together at its end, and one that has left is no call
    leaves.close()
    reader = iter(fast)
    for place in range(4 * AHEAD):
        assert await asyncio.to_thread(next, reader) == place
    fast.close()
    assert await _settled(steps) >= 4 * AHEAD
    slow.close()


@every_way
async def test_who_does_not_read_does_not_keep_a_function_from_others_for_good(streams: Streams) -> None:
    def body(items: list[Any]) -> Iterator[list[int]]:
        for step in range(2 * AHEAD):
            yield [step for _ in items]

    function = streams.batched(body, max_in_flight=1, max_batch_size=1)
    unread, read = await streams.way.run(lambda: function.map([1, 2]))
    assert len(await streams.read(read)) == len(await streams.read(unread)) == 2 * AHEAD


@every_way
async def test_closing_does_not_wait_for_readers(streams: Streams) -> None:
    def body(items: list[Any]) -> Iterator[list[int]]:
        for step in range(2 * AHEAD):
            yield [step for _ in items]

    function = streams.batched(body)
    stream = await streams.way.run(lambda: function(1))
    await asyncio.wait_for(function.close(), PATIENCE)
    assert len(await streams.read(stream)) == 2 * AHEAD
