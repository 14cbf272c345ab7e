"""Several probes, callers and moments: how checks of the predictor's readiness are combined, shared and told."""

from __future__ import annotations

import asyncio
import logging

import pytest

from carpool_sidecar.upstream import probes
from tests.upstream.probed import Clock, Predictor, Ready


@pytest.fixture
def predictor(probed_predictor: Predictor) -> Predictor:
    return probed_predictor


async def test_a_list_is_ready_when_all_of_it_is(predictor: Predictor, ready_if: Ready, closed_port: int) -> None:
    assert await ready_if(predictor.probe(), probes.tcp_probe(predictor.port)).check()
    checked = ready_if(predictor.probe(), probes.tcp_probe(closed_port))
    assert not await checked.check()
    assert checked.last_error.startswith("tcpSocket")
    assert "httpGet" not in checked.last_error


async def test_every_failure_of_a_list_is_named(predictor: Predictor, ready_if: Ready) -> None:
    predictor.status = 503
    checked = ready_if(predictor.probe("/a"), predictor.probe("/b"))
    assert not await checked.check()
    assert "/a: answered 503; httpGet" in checked.last_error
    assert checked.last_error.endswith("/b: answered 503")


@pytest.mark.looptime
async def test_probes_of_a_list_run_side_by_side(predictor: Predictor, ready_if: Ready, looptime: float) -> None:
    predictor.gate.clear()
    await ready_if(predictor.probe(timeout=5.0), predictor.probe(timeout=5.0)).check()
    assert 5 <= looptime < 6


async def test_before_the_first_check_it_says_that_nobody_asked(ready_if: Ready) -> None:
    assert ready_if().last_error == "the predictor was not asked yet"


async def test_nothing_is_asked_unless_somebody_asks(predictor: Predictor, ready_if: Ready) -> None:
    before = asyncio.all_tasks()
    ready_if(predictor.probe())
    assert asyncio.all_tasks() == before
    assert predictor.requests == []


async def test_callers_that_come_together_share_one_check(predictor: Predictor, ready_if: Ready) -> None:
    checked = ready_if(predictor.probe())
    assert await asyncio.gather(*(checked.check() for _ in range(20))) == [True] * 20
    assert len(predictor.requests) == 1


@pytest.mark.parametrize("status", [200, 503])
async def test_a_result_is_reused_for_a_second(
    predictor: Predictor, ready_if: Ready, clock: Clock, status: int
) -> None:
    predictor.status = status
    checked = ready_if(predictor.probe())
    first = await checked.check()
    predictor.status = 703 - status
    clock.now += 0.99
    assert await checked.check() is first
    assert len(predictor.requests) == 1
    clock.now += 0.01
    assert await checked.check() is not first
    assert len(predictor.requests) == 2


async def test_a_caller_that_leaves_does_not_disturb_the_others(predictor: Predictor, ready_if: Ready) -> None:
    predictor.gate.clear()
    checked = ready_if(predictor.probe())
    leaver, stayer = asyncio.create_task(checked.check()), asyncio.create_task(checked.check())
    await predictor.asked.wait()
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    predictor.gate.set()
    assert await stayer


@pytest.mark.looptime
async def test_closing_ends_a_check_that_is_under_way_at_once(
    predictor: Predictor, ready_if: Ready, looptime: float
) -> None:
    predictor.gate.clear()
    checked = ready_if(predictor.probe(timeout=60.0))
    waiting = asyncio.create_task(checked.check())
    await predictor.asked.wait()
    await checked.close()
    assert not await waiting
    assert looptime < 1


async def test_each_probe_has_a_connection_of_its_own(predictor: Predictor, ready_if: Ready, clock: Clock) -> None:
    checked = ready_if(predictor.probe())
    for _ in range(3):
        assert await checked.check()
        clock.now += 1
    assert len(predictor.requests) == len(predictor.connections) == 3


async def test_each_change_is_told_once(
    predictor: Predictor, ready_if: Ready, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "carpool.sidecar.upstream")
    checked = ready_if(predictor.probe())
    for status in (503, 503, 200, 200, 503, 404, 503, 200):
        predictor.status = status
        await checked.check()
        clock.now += 1
    told = [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name.startswith("carpool.sidecar")
    ]
    ready = ("INFO", "the predictor is ready")
    assert told == [ready, ("WARNING", "the predictor is not ready any more"), ready]
