"""The echo model's service time, under a clock of its own."""

from __future__ import annotations

import pytest

from carpool_predictor import model, model_loading
from carpool_predictor.models import echo


class Clock:
    """Seconds that pass by sleeping, which oversleeps, and a little by looking."""

    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []

    def now(self) -> float:
        self.time += 1e-6
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds + 0.1e-3


@pytest.mark.parametrize(("instances", "milliseconds"), [(1, 10.1), (32, 13.2), (1000, 110.0)])
def test_service_time_is_affine_to_a_tenth_of_a_millisecond(instances: int, milliseconds: float) -> None:
    clock = Clock()
    started = clock.time
    echo.ServiceTime(10e-3, 0.1e-3, clock.now, clock.sleep).spend(instances)
    assert clock.time - started == pytest.approx(milliseconds / 1e3, abs=0.1e-3)


def test_calls_follow_each_other_without_gaps_or_overlap() -> None:
    clock = Clock()
    started = clock.time
    device = echo.ServiceTime(10e-3, 0.0, clock.now, clock.sleep)
    for _ in range(100):
        device.spend(1)
    assert clock.time - started == pytest.approx(1.0, abs=1e-3)


def test_a_call_handed_over_while_the_device_is_busy_waits_its_turn() -> None:
    clock = Clock()
    device = echo.ServiceTime(10e-3, 0.0, clock.now, clock.sleep)
    device.spend(1)
    finished = clock.time
    clock.time -= 4e-3  # as if this call had come 4 ms before the first one finished
    device.spend(1)
    assert clock.time - finished == pytest.approx(10e-3, abs=0.1e-3)


def test_no_service_time_means_neither_sleeping_nor_looking_at_the_clock() -> None:
    clock = Clock()
    echo.ServiceTime(0.0, 0.0, clock.now, clock.sleep).spend(1000)
    assert (clock.time, clock.slept) == (100.0, [])


def test_short_times_are_spun_rather_than_slept() -> None:
    clock = Clock()
    echo.ServiceTime(0.1e-3, 0.0, clock.now, clock.sleep).spend(1)
    assert clock.slept == []
    assert clock.time == pytest.approx(100.0001, abs=5e-6)


def test_the_device_begins_with_what_waits_while_an_answer_is_still_written() -> None:
    clock = Clock()
    started = clock.time
    queued = echo.QueuedEcho(echo.ServiceTime(10e-3, 0.0, clock.now, clock.sleep))
    first, second = (queued.compute(queued.prepare([b"1", b"2"])) for _ in range(2))
    assert queued.finish(first) == [b"1", b"2"]
    clock.time += 3e-3  # for writing it
    queued.finish(second)
    assert clock.time - started == pytest.approx(20e-3, abs=0.1e-3)


def test_an_answer_that_was_fetched_late_holds_nobody_up() -> None:
    clock = Clock()
    queued = echo.QueuedEcho(echo.ServiceTime(10e-3, 0.0, clock.now, clock.sleep))
    prepared = queued.prepare([b"1"])
    late = clock.time = clock.time + 1.0
    queued.finish(prepared)
    assert clock.time == pytest.approx(late, abs=0.1e-3)


def test_poison_takes_no_time_on_the_device() -> None:
    clock = Clock()
    queued = echo.QueuedEcho(echo.ServiceTime(10e-3, 0.0, clock.now, clock.sleep), poison=b"0")
    with pytest.raises(model.InvalidInstances, match="instance 1"):
        queued.prepare([b"1", b"0"])
    started = clock.time
    queued.predict_rows([b"1"])
    assert clock.time - started == pytest.approx(10e-3, abs=0.1e-3)


@pytest.mark.parametrize("times", [{"echo_fixed_ms": 1.0}, {"echo_per_instance_ms": 1.0}, {}])
def test_echo_is_a_model_in_stages_if_calls_take_time(times: dict[str, float]) -> None:
    made = model_loading.create(model_loading.parse("echo"), "cpu", model_loading.Options(**times))
    assert isinstance(made, model.StagedModel) == bool(times)
