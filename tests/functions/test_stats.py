"""What a function's statistics tell, and that nothing that was counted is lost."""

from __future__ import annotations

import asyncio
import collections
import copy
import dataclasses
import gc
import json
import logging
import math
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest

import carpool
from carpool import errors, measures
from carpool.functions import stats
from carpool.scheduling import adaptive, limits, messages, scheduler, window


@dataclasses.dataclass(frozen=True)
class Options:
    """As a batcher has them; only that they are a dataclass matters."""

    max_batch_size: int = 4
    max_latency: float | None = 0.5
    cost: object = None


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Batcher:
    """A scheduler whose batches are told to a recorder, as a driver does."""

    def __init__(self, name: str = "embed", adapts: bool = False) -> None:
        self.name = name
        self.clock = Clock()
        self.recorder = stats.Recorder()
        chosen = limits.Limits(max_batch_size=4, max_latency=math.inf if adapts else 0.5, max_in_flight=2)
        ids = map(str, range(1000))
        policy = adaptive.Adaptive(chosen) if adapts else window.Window(chosen)
        self.core = scheduler.Scheduler(chosen, policy, self.clock, lambda: next(ids))
        self.out: list[messages.Batch] = []

    def stats(self) -> stats.Stats:
        return stats.snapshot(self.name, self.recorder, self.core, Options())

    def call(self, *items: int) -> messages.Request:
        request = messages.Request("key", len(items), payload=items)
        self._carry_out(self.core.submit(request))
        return request

    def finish(self, seconds: float = 0.0) -> None:
        """The batch that is out for longest succeeds after so many seconds more."""
        self.clock.now += seconds
        batch = self.out.pop(0)
        self.recorder.answered(batch, self.clock.now - batch.dispatched)
        self._carry_out(self.core.done(batch, [0] * batch.rows))

    def fail(self, error: errors.CarpoolError) -> None:
        batch = self.out.pop(0)
        self._carry_out(self.core.failed(batch, error))
        self.recorder.failed(batch, error)

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self._carry_out(self.core.poll())

    def _carry_out(self, effects: Any) -> None:
        answers = [effect for effect in effects if isinstance(effect, messages.Answer)]
        for effect in effects:
            if isinstance(effect, messages.Dispatch):
                self.out.append(effect.batch)
                self.recorder.sent(effect.batch)
            elif isinstance(effect, messages.Refuse):
                self.recorder.refused(effect.error)
        if answers:
            self.recorder.finished([answer.request.arrived for answer in answers], self.clock.now)


def counted(name: str = "embed", items: int = 3, refused: int = 0) -> Batcher:
    """A batcher that has answered so many items, one call and one batch each."""
    made = Batcher(name)
    for _ in range(items):
        made.call(1, 2, 3, 4)
        made.finish(0.01)
    if refused:
        made.recorder.refused(errors.Overloaded(), refused)
    return made


# --- what is counted --------------------------------------------------------------------------------------------


def test_a_function_that_was_not_called_has_nothing_and_all_reasons() -> None:
    fresh = Batcher().stats()
    assert (fresh.queued, fresh.in_flight, fresh.answered, fresh.mean_batch_size, fresh.waits.p99) == (0, 0, 0, 0, 0)
    assert fresh.batches == dict.fromkeys(messages.Reason, 0)
    assert stats.Stats(name="embed").batches == fresh.batches


def test_what_waits_and_what_is_out_is_as_of_now() -> None:
    batcher = Batcher()
    batcher.call(1, 2, 3, 4)
    batcher.call(5, 6)
    batcher.call(7)
    now = batcher.stats()
    assert (now.queued, now.keys, now.in_flight, now.answered) == (3, 1, 1, 0)


def test_batches_are_counted_by_reason_and_size_and_calls_by_how_long_they_waited() -> None:
    batcher = Batcher()
    batcher.call(1, 2, 3, 4)
    batcher.call(5)
    batcher.wait(0.2)
    batcher.call(6)
    batcher.wait(0.3)
    batcher.finish(0.1)
    batcher.finish()
    found = batcher.stats()
    assert {reason: count for reason, count in found.batches.items() if count} == {"full": 1, "due": 1}
    assert (found.sizes.count, found.mean_batch_size) == (2, 3)
    assert (found.waits.count, found.waits.mean) == (3, pytest.approx((0 + 0.5 + 0.3) / 3))
    assert found.function_seconds.sum == pytest.approx(0.6 + 0.1)
    assert found.request_seconds.sum == pytest.approx(0.6 + 0.6 + 0.4)
    assert found.answered == 6


def test_a_call_that_is_cut_has_waited_once_and_is_answered_once() -> None:
    batcher = Batcher()
    batcher.call(*range(6))
    batcher.finish(0.1)
    batcher.finish(0.1)
    found = batcher.stats()
    assert (found.waits.count, found.request_seconds.count, found.answered) == (1, 1, 6)


def test_failures_are_counted_with_what_followed_from_them() -> None:
    class Rejected(errors.UpstreamError):
        reason = "rejected"
        remedy = errors.Remedy.HALVES

    batcher = Batcher()
    for item in range(4):
        batcher.call(item)
    batcher.fail(Rejected())  # the halves go again
    batcher.finish(0.1)
    batcher.fail(Rejected())
    batcher.finish(0.1)
    batcher.fail(Rejected())
    found = batcher.stats()
    assert found.failed == {"rejected": 3}
    assert found.refused == {"rejected": 1}
    assert found.retries == found.batches["isolate"] == 4
    assert (found.answered, found.waits.count) == (3, 4)


def test_a_batch_that_nobody_waits_for_has_not_failed() -> None:
    batcher = Batcher()
    batcher.call(1, 2, 3, 4)
    batcher.fail(errors.Abandoned())
    assert batcher.stats().failed == {}


def test_cancelled_calls_bugs_and_what_was_not_computed_arecounted(caplog: pytest.LogCaptureFixture) -> None:
    recorder = stats.Recorder()
    recorder.left(messages.Request("key", 1))
    with caplog.at_level(logging.CRITICAL, "carpool.runtime"):
        recorder.bug("it failed", ValueError())
    recorder.cache_hits += 5
    recorder.deduplicated += 2
    found = stats.snapshot("embed", recorder, Batcher().core, Options())
    assert (found.abandoned, found.internal_errors, found.cache_hits, found.deduplicated) == (1, 1, 5, 2)


def test_what_was_learned_and_the_options_in_force_are_told() -> None:
    batcher = Batcher(adapts=True)
    batcher.call(1, 2)
    batcher.finish(0.1)
    found = batcher.stats()
    assert found.learned["service_fixed_seconds"] == pytest.approx(0.1)
    assert found.settings == {"max_batch_size": 4, "max_latency": 0.5, "cost": None}
    assert Batcher().stats().learned == {}


def test_threads_that_count_at_once_lose_nothing() -> None:
    recorder = stats.Recorder()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def count() -> None:
            for _ in range(5000):
                recorder.finished([0.0, 0.001, 0.002, 0.9], 1.0)
                recorder.finished([0.0], 1.0)
                recorder.refused(errors.Overloaded())
                recorder.cache_hits += 1

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    found = recorder.request_seconds.read()
    assert (found.count, recorder.cache_hits) == (100_000, 20_000)
    assert found.sum == pytest.approx(20_000 * (1 + 0.999 + 0.998 + 0.1 + 1))
    assert recorder.refusals == {"queue_full": 20_000}


# --- what is told -----------------------------------------------------------------------------------------------


def test_statistics_do_not_change_while_the_function_goes_on() -> None:
    batcher = counted()
    before = batcher.stats()
    copied = copy.deepcopy(before)
    batcher.call(1, 2, 3, 4)
    batcher.fail(errors.UpstreamError())
    assert before == copied
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.queued = 1  # type: ignore[misc]


def test_statistics_can_be_sent_elsewhere() -> None:
    found = counted(refused=2).stats()
    assert pickle.loads(pickle.dumps(found)) == found
    assert json.loads(json.dumps(dataclasses.asdict(found)))["batches"]["full"] == 3


def test_settings_are_plain_values() -> None:
    @carpool.batched(cost=len, max_batch_cost=9, isolate=(ValueError,), cache=carpool.LRU(5, ttl=2.5))
    def first(words: list[str]) -> list[str]:
        return [word[0] for word in words]

    with first:
        assert first("word").result(10) == "w"
    found = first.stats()
    assert pickle.loads(pickle.dumps(found)) == found
    told = {name: found.settings[name] for name in ("cost", "max_batch_cost", "isolate", "cache", "merge")}
    assert told == {
        "cost": "len",
        "max_batch_cost": 9,
        "isolate": ("ValueError",),
        "cache": "LRU(maxsize=5, ttl=2.5)",
        "merge": None,
    }


def test_they_read_as_a_table_of_what_happened() -> None:
    found = stats.Stats(
        name="embed",
        queued=37,
        in_flight=2,
        answered=12345,
        batches={"full": 2, "idle": 0, "isolate": 1},
        sizes=distribution(measures.SIZES, 32, 32, 16),
        waits=distribution(measures.SECONDS, 0.0007, 0.002, 0.004),
        function_seconds=distribution(measures.SECONDS, 0.2, 70.0),
        refused={"queue_full": 12, "raised": 0},
        cache_hits=1200,
        learned={"workers": 2, "service_fixed_seconds": 0.0123456, "capacity": 5734.2},
        settings={"max_batch_size": 32, "slo": 0.25, "cost": None, "dedupe": True, "allowed_batch_sizes": ()},
    )
    assert str(found) == (
        "embed: 12,345 items answered, 37 waiting, 2 batches out\n"
        "  batches   3 of 26.7 items on average: full 2, isolate 1\n"
        "  waits     mean 2.23 ms, p50 about 1.75 ms, p99 about 4.92 ms, longest within 5 ms\n"
        "  function  mean 35.1 s, p50 about 250 ms, p99 over 60 s, longest over 60 s\n"
        "  refused   queue_full 12\n"
        "  also      from the cache 1,200\n"
        "  learned   workers 2, service_fixed_seconds 0.0123, capacity 5,734\n"
        "  settings  max_batch_size 32, slo 0.25, dedupe True"
    )


def test_a_function_that_was_not_called_reads_as_a_line() -> None:
    assert str(stats.Stats(name="embed")) == "embed: 0 items answered, 0 waiting, 0 batches out"


def distribution(bounds: tuple[float, ...], *values: float) -> measures.Distribution:
    histogram = measures.Histogram(bounds)
    histogram.observe_all(values)
    return histogram.read()


# --- of real functions ------------------------------------------------------------------------------------------


def test_a_function_tells_what_it_did() -> None:
    @carpool.batched(max_latency=0.02, dedupe=True, cache=carpool.LRU(10))
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    with double:
        assert double.map([1, 2, 2, 1, 3]).result(10) == [2, 4, 4, 2, 6]
        assert double(3).result(10) == 6
    found = double.stats()
    assert (found.name.rpartition(".")[2], found.answered, found.deduplicated, found.cache_hits) == ("double", 5, 2, 1)
    assert (found.sizes.count, found.batches["due"] + found.batches["drain"]) == (1, 1)
    assert (found.waits.count, found.request_seconds.count, found.settings["max_latency"]) == (1, 1, 0.02)


def test_a_function_tells_its_settings_before_it_is_called() -> None:
    @carpool.batched(max_batch_size=7)
    async def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    double.configure(slo=0.5)
    found = double.stats()
    assert (found.answered, found.settings["max_batch_size"], found.settings["slo"]) == (0, 7, 0.5)


def test_loops_that_ended_keep_their_counts_and_have_no_capacity() -> None:
    @carpool.batched(name="loops that ended")
    async def double(numbers: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return [2 * number for number in numbers]

    async def use() -> None:
        await asyncio.gather(*map(double, range(10)))

    asyncio.run(use())
    asyncio.run(use())
    found = double.stats()
    assert (found.answered, found.request_seconds.count) == (20, 20)
    assert not found.learned
    gc.collect()
    assert stats.live.stats()["loops that ended"].answered == 20


def test_calls_refused_with_their_loop_are_counted() -> None:
    begun = asyncio.Event()

    @carpool.batched(max_batch_size=1, max_latency=0, max_in_flight=1)
    async def double(numbers: list[int]) -> list[int]:
        begun.set()
        await asyncio.Event().wait()
        return [2 * number for number in numbers]

    async def use() -> list[carpool.Future[int]]:
        calls = [double(1), double(2), double(3)]
        await begun.wait()
        return calls

    for call in asyncio.run(use()):
        with pytest.raises(carpool.Closed):
            call.result(10)
    assert sum(double.stats().refused.values()) == 3


# --- several batchers -------------------------------------------------------------------------------------------


def test_batchers_of_one_function_add_up() -> None:
    first, second = counted(items=3, refused=1), counted(items=2, refused=4)
    second.call(1)
    both = stats.Stats.merged([first.stats(), second.stats()])
    assert (both.name, both.queued, both.answered, both.sizes.count) == ("embed", 1, 20, 5)
    assert both.batches["full"] == 5
    assert both.refused == {"queue_full": 5}
    assert both.function_seconds.mean == pytest.approx(0.01)
    assert both.settings == first.stats().settings


def test_what_they_learned_adds_up_or_is_a_mean_by_batches() -> None:
    def learning(batches: int, **learned: float) -> stats.Stats:
        seconds = distribution(measures.SECONDS, *[0.1] * batches)
        return stats.Stats(name="embed", function_seconds=seconds, learned=learned)

    some = learning(30, workers=1, capacity=300, utilisation=0.9, overhead_seconds=0.001)
    others = learning(10, workers=2, capacity=100, utilisation=0.1, overhead_seconds=0.005)
    idle = stats.Stats(name="embed")
    assert stats.Stats.merged([some, others, idle]).learned == {
        "workers": 3,
        "capacity": 400,
        "utilisation": pytest.approx(0.7),
        "overhead_seconds": pytest.approx(0.002),
    }


def test_nothing_cannot_be_merged() -> None:
    with pytest.raises(ValueError, match="no statistics"):
        stats.Stats.merged([])


def test_a_registry_knows_who_is_alive_and_adds_up_those_of_one_name() -> None:
    registry = stats.Registry()
    batchers = [counted("embed", 3), counted("rank", 1), counted("embed", 2)]
    for batcher in batchers:
        registry.add(batcher)
    batchers[2].call(1)
    found = registry.stats()
    assert list(found) == ["embed", "rank"]
    assert (found["embed"].answered, found["embed"].queued, found["rank"].answered) == (20, 1, 4)


def test_what_a_batcher_counted_stays_when_it_is_gone() -> None:
    registry = stats.Registry()
    survivor = counted("embed", 1)
    registry.add(survivor)
    for items in (2, 3):
        registry.add(counted("embed", items))
        gc.collect()
        registry.add(counted("rank", items))
    gc.collect()
    found = registry.stats()
    assert (found["embed"].answered, found["rank"].answered) == (24, 20)
    assert len(registry._entries) == 1
    survivor.call(1, 2, 3, 4)
    survivor.finish()
    assert registry.stats()["embed"].answered == 28


def test_a_batcher_that_begins_or_ends_while_statistics_are_made_waits_for_nobody() -> None:
    registry = stats.Registry()
    batcher, other = counted("embed", 1), counted("embed", 2)
    registry.add(batcher)
    with registry._lock:
        registry.add(other)
        del batcher
        gc.collect()
    assert registry.stats()["embed"].answered == 12


def test_statistics_are_made_while_batchers_go_as_fast_as_they_are_added_up() -> None:
    registry = stats.Registry()

    class Going(collections.deque[int]):
        """Whenever one that is gone was taken from here, the next is gone, a thousand times."""

        taken = 0

        def popleft(self) -> int:
            self.taken += 1
            if self.taken < 1000:
                registry._gone = self
                registry._entries[self.taken] = lambda: None, "embed", counted("embed", 1).recorder  # type: ignore[assignment]
                self.append(self.taken)
            return super().popleft()

    registry._entries[0] = lambda: None, "embed", counted("embed", 1).recorder  # type: ignore[assignment]
    registry._gone = gone = Going([0])
    assert registry.stats()["embed"].answered == 8
    assert gone.taken == 1


def test_counts_never_go_back_while_batchers_come_and_go() -> None:
    registry = stats.Registry()
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.is_set():
            registry.add(counted("embed", 1))

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        seen = [registry.stats()["embed"].answered if registry.stats() else 0 for _ in range(200)]
    finally:
        is_over.set()
        thread.join()
    assert seen == sorted(seen)


def test_a_forked_child_counts_from_nothing_and_cannot_be_locked_out() -> None:
    program = """
import os, sys, threading
from carpool.functions import stats

class Batcher:
    name = "embed"
    recorder = stats.Recorder()
    def stats(self):
        return stats.counted(self.name, self.recorder)

batcher, other = Batcher(), Batcher()
stats.live.add(batcher)
batcher.recorder.finished([0.0, 0.0], 1.0)
entered, leave = threading.Event(), threading.Event()
def hold():
    with stats.live._lock:
        entered.set()
        leave.wait()
threading.Thread(target=hold).start()
entered.wait()
child = os.fork()
if not child:
    batcher.recorder.finished([0.0], 1.0)
    os._exit(stats.live.stats()["embed"].request_seconds.count)
leave.set()
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), stats.live.stats()["embed"].request_seconds.count)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == ["1", "2"]
