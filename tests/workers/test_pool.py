"""`carpool.processes`: what callers of a pool can rely on, whatever happens to its processes."""

from __future__ import annotations

import gc
import inspect
import os
import pathlib
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from types import FrameType
from typing import Any

import numpy as np
import pytest

from carpool import errors as carpool_errors
from carpool.workers import errors, payload, pool, worker

from . import models
from .conftest import On, pausing_for_ever


@pytest.fixture
def background() -> Iterator[futures.ThreadPoolExecutor]:
    with futures.ThreadPoolExecutor(8) as executor:
        yield executor


def until(holds: Callable[[], object]) -> None:
    """Wait for what the tested objects announce to nobody."""
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def ends(process: int) -> bool:
    """Wait until a process has ended that is no child, or a child that somebody else waits for."""
    until(lambda: not pathlib.Path(f"/proc/{process}").exists())
    return True


def about(there: pool.Processes[..., Any]) -> Any:
    return there([("about",)])[0]


# --- calls ------------------------------------------------------------------------------------------------------


def test_what_attributes_a_model_has_is_its_own_business(on: On) -> None:
    assert on(models.WithServe)([1, 2]) == [53, 54]


def test_the_model_is_made_once_in_a_process_of_its_own_and_called_with_batches(on: On) -> None:
    there = on(models.Doubling, 1)
    assert there([1, 2]) == [3, 5]
    assert there([1, 2], plus=0) == [2, 4]
    telling = on(models.Telling)
    assert [about(telling)[1:] for _ in range(3)] == [("cpu", 1), ("cpu", 2), ("cpu", 3)]
    assert about(telling)[0] != os.getpid()


def test_a_function_may_make_the_model(on: On) -> None:
    assert on(models.make_doubling, devices=("5",))([1]) == [7]


def test_each_device_has_a_process_and_they_compute_at_the_same_time(
    on: On, pipe: pathlib.Path, background: futures.ThreadPoolExecutor
) -> None:
    there = on(models.Telling, devices=("cuda:0", "cuda:1"))
    reading = background.submit(there, [("read", pipe), ("about",)])
    writing = background.submit(there, [("write", pipe, "met"), ("about",)])
    read, (_, device, _) = reading.result(30)
    assert read == "met"
    assert {device, writing.result(30)[1][1]} == {"cuda:0", "cuda:1"}


def test_a_worker_has_one_batch_at_a_time(on: On, pipe: pathlib.Path, background: futures.ThreadPoolExecutor) -> None:
    there = on(models.Telling)
    reading = background.submit(there, [("read", pipe)])
    with pipe.open("w") as writing:  # once the model reads
        others = [background.submit(there, [("about",)]) for _ in range(5)]
        time.sleep(0.05)
        assert not any(other.done() for other in others)
        writing.write("on")
    assert reading.result(30) == ["on"]
    assert sorted(other.result(30)[0][2] for other in others) == [2, 3, 4, 5, 6]


def test_nothing_runs_before_the_first_call_or_after_the_stop(on: On) -> None:
    threads = threading.active_count()
    there = on(models.Telling)
    assert threading.active_count() <= threads  # some of earlier tests may end meanwhile
    assert not there.is_ready
    process = about(there)[0]
    there.stop()
    assert threading.active_count() <= threads
    assert ends(process)


def test_start_does_not_wait_and_wait_ready_does(on: On, tmp_path: pathlib.Path) -> None:
    marker = tmp_path / "marker"
    there = on(models.Telling)
    there.start()
    there.start()
    assert there.wait_ready(30)
    assert there.is_ready
    assert not on(models.FailingUntilMarked, marker, name="slow").is_ready


def test_arrays_come_back_equal_writable_and_not_by_way_of_the_pickle(on: On) -> None:
    there = on(models.Echo)
    images = [np.full((100, 1000), place, np.float32) for place in range(40)]
    returned = there(images)
    assert all(np.array_equal(one, other) for one, other in zip(images, returned, strict=True))
    returned[0][0] = 5
    assert sum(map(len, payload.dump(((images,), {})).pieces)) < 5000


def test_batches_of_any_size_pass(on: On) -> None:
    there = on(models.Echo)
    for size in (0, 1, 65_000, 66_000, 3_000_000):
        assert there([b"x" * size, "y" * size]) == [b"x" * size, "y" * size]


def test_a_pool_looks_like_the_models_it_makes(on: On) -> None:
    there = on(models.Doubling)
    assert there.__name__ == "Doubling"
    assert list(inspect.signature(there).parameters) == ["items", "plus"]
    assert repr(there) == "<carpool.processes(Doubling).on('cpu')>"


def test_the_environment_is_added_to(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "both")
    there = on(models.Telling, env={"THERE": "only"})
    assert there([("variable", "HERE"), ("variable", "THERE")]) == ["both", "only"]


def test_a_worker_imports_nothing_of_the_program_that_started_it(on: On) -> None:
    assert on(models.modules)(["pytest", "tests.workers.models", "asyncio"]) == [False, True, False]


# --- exceptions -------------------------------------------------------------------------------------------------


def test_an_exception_of_the_model_is_raised_here_with_the_traceback_there_as_cause(on: On) -> None:
    there = on(models.Raising)
    with pytest.raises(ValueError, match="a bad value") as raised:
        there(["value"])
    assert "models.py" in str(raised.value.__cause__)
    with pytest.raises(SystemExit) as exited:
        there(["exit"])
    assert exited.value.code == 7
    assert there(["pid"]) == there(["pid"])  # nothing of it ends the process


@pytest.mark.parametrize(("kind", "words"), [("odd", "Odd: 1 and 2"), ("stubborn", "Stubborn: mule")])
def test_an_exception_that_cannot_be_pickled_is_told_in_words(on: On, kind: str, words: str) -> None:
    with pytest.raises(errors.RemoteError, match=words) as raised:
        on(models.Raising)([kind])
    assert "models.py" in str(raised.value.__cause__)


def test_exceptions_as_results_come_back_as_results(on: On) -> None:
    first, second = on(models.Raising)(["value", "stubborn"], returned=True)
    assert isinstance(first, ValueError)
    assert isinstance(second, errors.RemoteError)


def test_a_result_that_cannot_be_pickled_raises_here_and_leaves_the_worker_well(on: On) -> None:
    there = on(models.Raising)
    before = there(["pid"])
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        there(["lambda"])
    assert there(["pid"]) == before


def test_an_item_that_cannot_be_pickled_raises_here_and_leaves_the_worker_well(on: On) -> None:
    there = on(models.Echo)
    with pytest.raises(TypeError, match="pickle"):
        there([threading.Lock()])
    assert there([1]) == [1]


# --- death ------------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_takes_its_batch_with_it_and_is_started_again(on: On) -> None:
    there = on(models.Telling)
    first = about(there)[0]
    with pytest.raises(errors.WorkerDied, match="Telling died") as died:
        there([("die",)])
    assert died.value.remedy is carpool_errors.Remedy.GIVE_UP
    second, _, calls = about(there)
    assert second != first
    assert calls == 1


def test_a_batch_may_be_sent_again_if_so_asked(on: On) -> None:
    with pytest.raises(errors.WorkerDied) as died:
        on(models.Telling, resend=True)([("die",)])
    assert died.value.remedy is carpool_errors.Remedy.RESEND_ONCE


def test_while_a_worker_is_down_calls_go_to_the_others(on: On) -> None:
    there = on(models.Telling, devices=("a", "b"), pauses=pausing_for_ever)
    until(lambda: (there.start(), all(each.state is worker.State.READY for each in there.workers))[1])
    with pytest.raises(errors.WorkerDied):
        there([("die",)])
    assert len({about(there)[1] for _ in range(9)}) == 1


def test_while_no_worker_is_up_calls_wait_for_one_or_fail_at_once_as_asked(on: On, tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.WorkerDied, match="no worker process of Telling is up"):
        on(models.Telling, waits=False)([("about",)])
    assert on(models.Telling)([("about",)])


def test_a_killed_idle_worker_is_started_again_without_a_call(on: On) -> None:
    there = on(models.Telling)
    process = about(there)[0]
    os.kill(process, signal.SIGKILL)
    ends(process)
    until(lambda: there.is_ready and about(there)[0] != process)
    assert there([("about",)])


def test_a_worker_that_cannot_be_made_fails_calls_with_its_own_account_and_is_tried_again(
    on: On, tmp_path: pathlib.Path
) -> None:
    there = on(models.FailingUntilMarked, tmp_path / "marker")
    with pytest.raises(errors.WorkerDied, match="not mounted yet") as told:
        there([1])
    assert "models.py" in str(told.value)
    (tmp_path / "marker").touch()
    until(lambda: there.is_ready)
    assert there([1]) == [1]


def test_one_worker_that_cannot_be_made_is_no_matter_while_another_is_up(on: On) -> None:
    there = on(models.make_doubling, devices=("no number", "3"))
    assert [there([1]) for _ in range(5)] == [[5]] * 5


def test_a_process_that_ends_while_the_model_is_made_fails_calls(on: On) -> None:
    with pytest.raises(errors.WorkerDied, match="exit status 5"):
        on(models.Dead, pauses=pausing_for_ever)([1])


def test_an_unusable_model_is_not_tried_again(on: On) -> None:
    there = on(models.Hopeless)
    with pytest.raises(errors.Unusable, match="no such model"):
        there.run()
    with pytest.raises(errors.WorkerDied, match="no such model"):
        there([1])
    assert [each.state for each in there.workers] == [worker.State.UNUSABLE]


def test_a_call_that_is_broken_off_here_leaves_no_answer_to_the_next(on: On, pipe: pathlib.Path) -> None:
    class Interrupted(BaseException): ...

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    there = on(models.Telling)
    first = about(there)[0]
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            there([("read", pipe)])
    finally:
        signal.signal(signal.SIGALRM, before)
    second, device, calls = about(there)
    assert (device, calls) == ("cpu", 1)
    assert second != first


def test_pauses_are_told_how_long_each_process_served_and_nothing_for_one_that_never_did(
    on: On, tmp_path: pathlib.Path
) -> None:
    """A model that cannot be made must not be tried again and again because the last process served for long."""
    told: list[float] = []

    class Pauses(worker.Backoff):
        def after(self, served: float) -> float:
            told.append(served)
            return 0.0 if len(told) < 3 else 3600.0

    marker = tmp_path / "marker"
    marker.touch()
    there = on(models.FailingUntilMarked, marker, pauses=Pauses)
    there([1])
    time.sleep(0.2)
    marker.unlink()
    there.workers[0]._current.process.kill()  # type: ignore[union-attr]
    until(lambda: len(told) == 3)
    assert told[0] >= 0.2
    assert told[1:] == [0.0, 0.0]


def test_pauses_double_up_to_a_bound_and_start_over_after_a_healthy_time() -> None:
    pauses = worker.Backoff(first=0.1, most=10.0, healthy=10.0)
    assert [round(pauses.after(0.0), 3) for _ in range(9)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert pauses.after(served=9.9) == 10.0
    assert pauses.after(served=10.0) == 0.1
    assert pauses.after(served=0.0) == 0.2


# --- the end ----------------------------------------------------------------------------------------------------


def test_stop_waits_for_the_call_under_way_and_refuses_those_that_wait(
    on: On, pipe: pathlib.Path, background: futures.ThreadPoolExecutor
) -> None:
    there = on(models.Telling)
    reading = background.submit(there, [("read", pipe)])
    until(lambda: there.workers[0].is_busy)
    waiting = background.submit(there, [("about",)])
    stopping = background.submit(there.stop)
    with pytest.raises(errors.WorkerDied, match="stopped"):
        waiting.result(30)
    assert not stopping.done()
    pipe.write_text("the end")
    assert reading.result(30) == ["the end"]
    stopping.result(30)
    with pytest.raises(errors.WorkerDied, match="stopped"):
        there([("about",)])


def test_after_its_timeout_stop_kills_what_is_under_way(
    on: On, pipe: pathlib.Path, background: futures.ThreadPoolExecutor
) -> None:
    there = on(models.Telling)
    process = about(there)[0]
    reading = background.submit(there, [("read", pipe)])
    until(lambda: there.workers[0].is_busy)
    there.stop(timeout=0.0)
    with pytest.raises(errors.WorkerDied):
        reading.result(30)
    assert ends(process)


def test_run_returns_at_the_stop(on: On, background: futures.ThreadPoolExecutor) -> None:
    there = on(models.Telling)
    running = background.submit(there.run)
    assert there.wait_ready(30)
    there.stop()
    assert running.result(30) is None


def test_the_processes_of_a_pool_that_nobody_has_any_more_end() -> None:
    there = pool.processes(models.Telling).on("cpu")
    process = about(there)[0]
    del there
    gc.collect()
    assert ends(process)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_for_a_whole_group_does_not_cost_a_batch(on: On, number: signal.Signals) -> None:
    there = on(models.Telling)
    assert there([("signalled", number), ("session",)]) == [number.name, about(there)[0]]


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (3, "a model must be a class, or a function that makes one; not int"),
        (models.Without, "Without has no __call__"),
        (models.Coroutines, "must be a plain function"),
    ],
)
def test_what_cannot_be_a_model_is_refused_at_once(model: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        pool.processes(model)


def test_a_local_class_is_refused_at_once() -> None:
    class Local(models.Doubling): ...

    with pytest.raises(TypeError, match=r"Local.* cannot go to another process"):
        pool.processes(Local).on("cpu")
    with pytest.raises(TypeError, match="or its arguments cannot go to another process"):
        pool.processes(models.Doubling, threading.Lock()).on("cpu")  # type: ignore[arg-type]


def test_devices_are_texts_and_at_least_one() -> None:
    with pytest.raises(ValueError, match="needs a device"):
        pool.processes(models.Doubling).on()
    with pytest.raises(TypeError, match="must be a str, not int: 0"):
        pool.processes(models.Doubling).on(0)  # type: ignore[arg-type]
