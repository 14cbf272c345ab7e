"""What the monitor of the event loop's lag counts, in virtual time and against a loop that is really blocked."""

from __future__ import annotations

import asyncio
import time

import pytest

from carpool_sidecar import metrics


class Values(list):
    """A histogram that keeps everything."""

    observe = list.append


def virtual_time() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.looptime
async def test_an_idle_loop_is_sampled_four_times_a_second_and_is_not_late():
    values = Values()
    monitor = metrics.EventLoopLag(values, virtual_time)
    monitor.start()
    await asyncio.sleep(10.1)
    monitor.stop()
    assert values == pytest.approx([0.0] * 40, abs=1e-6)


@pytest.mark.looptime
async def test_the_lag_is_the_time_since_the_timer_was_due_and_the_next_one_counts_anew():
    values, stalled = Values(), 0.0
    monitor = metrics.EventLoopLag(values, lambda: virtual_time() + stalled)
    monitor.start()
    await asyncio.sleep(0.2)
    stalled = 0.1  # the loop's clock does not know of it: as a callback that returns 0.1 s later
    await asyncio.sleep(0.4)
    monitor.stop()
    assert values == pytest.approx([0.1, 0.0], abs=1e-6)


@pytest.mark.looptime
async def test_a_timer_that_is_early_counts_as_no_lag():
    values, ahead = Values(), 0.0
    monitor = metrics.EventLoopLag(values, lambda: virtual_time() + ahead)
    monitor.start()
    ahead = -0.001
    await asyncio.sleep(0.3)
    monitor.stop()
    assert values == [0.0]


@pytest.mark.looptime
async def test_nothing_is_sampled_before_the_start_or_after_the_stop():
    values = Values()
    monitor = metrics.EventLoopLag(values, virtual_time)
    monitor.stop()
    await asyncio.sleep(1)
    monitor.start()
    monitor.start()
    await asyncio.sleep(0.3)
    monitor.stop()
    monitor.stop()
    await asyncio.sleep(1)
    assert len(values) == 1


@pytest.mark.uvloop
async def test_a_loop_that_is_blocked_is_as_late_as_it_was_blocked():
    values, sampled = Values(), asyncio.Event()

    class Told(Values):
        def observe(self, value):
            values.append(value)
            sampled.set()

    monitor = metrics.EventLoopLag(Told(), time.monotonic, interval=0.001)
    monitor.start()
    end = time.monotonic() + 0.02
    while time.monotonic() < end:
        pass
    await sampled.wait()
    monitor.stop()
    assert values[0] >= 0.018


def test_the_buckets_reach_from_half_a_millisecond_to_a_second():
    counters = metrics.Metrics()
    counters.event_loop_lag.observe(0.0005)
    counters.event_loop_lag.observe(2.0)
    value = counters.registry.get_sample_value
    assert value("carpool_event_loop_lag_seconds_bucket", {"le": "0.0005"}) == 1
    assert value("carpool_event_loop_lag_seconds_bucket", {"le": "1.0"}) == 1
    assert value("carpool_event_loop_lag_seconds_bucket", {"le": "+Inf"}) == 2
