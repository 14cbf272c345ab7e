"""The way out with clients who have to be turned away: it takes no time from those who wait for answers."""

from __future__ import annotations

import asyncio

import pytest

from carpool.scheduling import ledger
from carpool_sidecar import drain as lifecycle

pytestmark = pytest.mark.looptime


async def answered() -> None:
    """Nothing is left to answer."""


async def never() -> None:
    """Clients that do not say whether they know."""
    await asyncio.Event().wait()


async def refused_after(quiet_period: float, longest: float, *, busy: bool = False) -> float:
    """When a drain began to refuse."""
    life = lifecycle.Lifecycle(ledger.Ledger())
    loop = asyncio.get_running_loop()
    began = loop.time()
    draining = asyncio.ensure_future(life.drain(answered, quiet_period, longest, never))
    while not draining.done():
        await asyncio.sleep(0.01)
        if life.phase is lifecycle.Phase.QUIET and busy:
            life.check_open()
    return loop.time() - began


async def test_clients_that_do_not_answer_are_not_waited_for_longer_than_two_seconds() -> None:
    assert await refused_after(1, 12) == pytest.approx(3, abs=0.05)


async def test_nor_longer_than_half_the_time_there_is_for_late_requests() -> None:
    assert await refused_after(0, 0.25) == pytest.approx(0.125, abs=0.02)


async def test_requests_that_never_stop_and_such_clients_together_leave_as_much_time_for_answers() -> None:
    assert await refused_after(1, 6, busy=True) == pytest.approx(6, abs=0.05)


async def test_all_clients_that_know_are_reason_enough_to_go_on() -> None:
    life, asked = lifecycle.Lifecycle(ledger.Ledger()), []

    async def turn_away() -> None:
        asked.append(life.phase)

    await life.drain(answered, 0, 6, turn_away)
    assert asked == [lifecycle.Phase.QUIET]
    assert life.phase is lifecycle.Phase.DRAINED


async def test_a_quiet_period_that_would_leave_no_time_for_answers_is_cut_short() -> None:
    assert await refused_after(24, 11) == pytest.approx(20, abs=0.05)
    assert await refused_after(24, 2) == pytest.approx(3, abs=0.05)


async def test_a_bug_in_the_way_out_is_the_drains_own_failure() -> None:
    async def broken() -> None:
        raise ZeroDivisionError("bug")

    life = lifecycle.Lifecycle(ledger.Ledger())
    with pytest.raises(ZeroDivisionError):
        await life.drain(broken, 0, 6)
    with pytest.raises(ZeroDivisionError):  # whoever joins learns of it, too
        await life.drain(answered, 0, 6)
    assert life.phase is not lifecycle.Phase.DRAINED
    await life.until_drained(1)
