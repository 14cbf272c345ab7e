"""A batched function whose batches are computed in worker processes."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import pytest

import carpool

from . import models
from .conftest import On


async def test_items_of_many_callers_share_batches_in_processes(on: On) -> None:
    double = carpool.batched(on(models.Doubling), max_batch_size=4)
    assert await asyncio.gather(*(double(item) for item in range(20))) == [2 * item for item in range(20)]
    assert double(1, plus=5).result(30) == 7
    double.close().result(30)


def test_arguments_are_checked_against_the_model(on: On) -> None:
    double = carpool.batched(on(models.Doubling))
    with pytest.raises(TypeError, match="minus"):
        double(1, minus=5)


def test_two_devices_make_two_batches_at_once(on: On, pipe: Any) -> None:
    tell = carpool.batched(on(models.Telling, devices=("a", "b")), max_batch_size=1)
    read, written = tell(("read", pipe)), tell(("write", pipe, "met"))
    assert (read.result(30), written.result(30)) == ("met", None)


def test_each_worker_has_a_batch_from_the_first_call_on_whatever_the_others_do(on: On, tmp_path: Any) -> None:
    tell = carpool.batched(on(models.Telling, devices=("a", "b", "c", "d")), max_batch_size=1)
    pipes = [tmp_path / name for name in "abc"]
    for each in pipes:
        os.mkfifo(each)
    read = [tell(("read", each)) for each in pipes]
    for each in reversed(pipes):
        tell(("write", each, each.name)).result(30)
    assert [each.result(30) for each in read] == ["a", "b", "c"]


def test_callers_of_a_batch_whose_worker_died_get_worker_died_each_its_own(on: On) -> None:
    tell = carpool.batched(on(models.Telling), max_latency=0.1)
    futures = [tell(("about",)), tell(("die",)), tell(("about",))]
    told = [future.exception(30) for future in futures]
    assert [type(each) for each in told] == [carpool.WorkerDied] * 3
    assert len(set(map(id, told))) == 3
    assert tell(("about",)).result(30)[2] == 1


def test_with_resend_a_batch_whose_worker_died_is_tried_again_once(on: On, tmp_path: Any) -> None:
    there = on(models.DyingOnce, tmp_path / "marker", resend=True)
    assert carpool.batched(there, max_batch_size=2).map([1, 2]).result(30) == [1, 2]
    always = carpool.batched(on(models.Telling, resend=True))
    with pytest.raises(carpool.WorkerDied):
        always(("die",)).result(30)


def test_an_exception_in_the_process_fails_its_own_item_alone(on: On) -> None:
    choosy = carpool.batched(on(models.Choosy), max_latency=0.1)
    good, bad, other = (choosy(item) for item in (1, "odd", 3))
    assert (good.result(30), other.result(30)) == (1, 3)
    with pytest.raises(ValueError, match="it is odd") as raised:
        bad.result(30)
    assert "models.py" in str(raised.value.__cause__.__cause__)  # type: ignore[union-attr]


def test_callers_do_not_hang_while_no_model_can_be_made(on: On, tmp_path: Any) -> None:
    failing = carpool.batched(on(models.FailingUntilMarked, tmp_path / "marker"))
    with pytest.raises(carpool.WorkerDied, match="not mounted yet"):
        failing(1).result(30)


@pytest.mark.skipif(sys.version_info[:3] in ((3, 12, 0), (3, 12, 1)), reason="these start nothing while they exit")
def test_a_program_that_ends_still_gets_what_was_accepted(program: Any) -> None:
    running = program("""
        import carpool
        from tests.workers import models

        double = carpool.batched(carpool.processes(models.Doubling).on("cpu"))
        for item in range(3):
            double(item).add_done_callback(lambda future: print(future.result(), flush=True))
    """)
    assert running.communicate() == ("0\n2\n4\n", "")


def test_the_processes_end_once_the_last_function_that_uses_them_is_closed(on: On) -> None:
    there = on(models.Telling)
    one, other = carpool.batched(there), carpool.batched(there, max_batch_size=1)
    process = one(("about",)).result(30)[0]
    one.close().result(30)
    one.close().result(30)
    assert other(("about",)).result(30)[0] == process
    other.close().result(30)
    there.workers[0].join()
    assert not there.is_ready


def test_the_process_is_another(on: On) -> None:
    assert carpool.batched(on(models.Telling))(("about",)).result(30)[0] != os.getpid()
