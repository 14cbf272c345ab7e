"""The adaptive policy drops what would be late, but never what a batch of the same step carries."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import adaptive, limits, messages, scheduler
from tests.scheduling.driven import DrivenScheduler


class Scene:
    """A policy that has learned: a batch takes 100 ms, whatever its size."""

    def __init__(self) -> None:
        self.now = 0.0
        bounds = limits.Limits(
            max_batch_size=32, max_in_flight=8, timeout=60.0, max_latency=0.02, learns_in_flight=True
        )
        numbers = itertools.count()
        self.core = scheduler.Scheduler(
            bounds, adaptive.Adaptive(bounds), lambda: self.now, lambda: f"batch-{next(numbers)}"
        )
        for count in range(60):
            batches = self.dispatched(self.submit(1 + count % 32))
            self.now += 0.1
            for batch in batches:
                self.core.done(batch, [b"1"] * batch.rows)
            self.now += 0.05

    def submit(self, rows: int, timeout: float | None = None) -> list[messages.Effect]:
        return list(self.core.submit(messages.Request("key", rows, rows, [b"x"] * rows, timeout=timeout)))

    @staticmethod
    def dispatched(effects: list[messages.Effect]) -> list[messages.Batch]:
        """The batches that leave, each of which must be whole when the effects are carried out."""
        batches = [effect.batch for effect in effects if isinstance(effect, messages.Dispatch)]
        for batch in batches:
            assert all(part.request.payload is not None for part in batch.parts), "a part without its payload"
        return batches


@pytest.mark.parametrize("timeout", [0.2, 0.25, 0.3, 0.35, 0.4])
def test_a_request_whose_first_rows_leave_in_this_step_is_not_dropped_in_it(timeout):
    scene = Scene()
    [first] = scene.dispatched(scene.submit(1))
    scene.now += 0.02
    waiting = scene.dispatched(scene.submit(1) + scene.submit(40, timeout))
    scene.now += 0.08
    assert scene.dispatched(list(scene.core.done(first, [b"1"]))) or waiting


@given(
    requests=st.lists(
        st.tuples(st.integers(1, 80), st.none() | st.floats(0.05, 0.6), st.floats(0, 0.12)), min_size=1, max_size=25
    )
)
def test_every_batch_that_leaves_has_all_its_payloads(requests):
    scene = Scene()
    out: list[messages.Batch] = []
    for rows, timeout, pause in requests:
        out += scene.dispatched(scene.submit(rows, timeout))
        scene.now += pause
        out += scene.dispatched(list(scene.core.poll()))
        if out and pause > 0.06:
            batch = out.pop(0)
            out += scene.dispatched(list(scene.core.done(batch, [b"1"] * batch.rows)))


def test_a_crowd_at_a_fresh_sidecar_is_not_turned_away_for_a_few_batches_that_something_else_held_up(driven_of):
    """Whoever accepts thousands of connections shares the core: the first batches take long, and the others do not."""
    driven = driven_of(
        adaptive.Adaptive, max_batch_size=32, max_in_flight=8, learns_in_flight=True, max_queue_instances=10_000
    )
    number = 0
    for held_up in (0.05, 0.4, 0.2, 0.33, 0.45, 0.3, 0.006, 0.006):
        for _ in range(1100):
            driven.submit(f"crowd-{number}")
            number += 1
        driven.pass_time(held_up)
        driven.answer()
    for _ in range(1200):
        driven.submit(f"crowd-{number}")
        number += 1
    assert not driven.refusals


def taught(driven_of: type[DrivenScheduler]) -> DrivenScheduler:
    """Batches of 4 take 100 ms, as calls that came one by one have shown; what comes at once is another question."""
    driven = driven_of(adaptive.Adaptive, max_batch_size=4, learns_in_flight=True, max_in_flight=8, timeout=0.5)
    for number in range(8):
        driven.submit(f"lesson-{number}", rows=1 + number % 4)
        driven.pass_time(0.1)
        driven.answer()
        driven.pass_time(0.3)
    return driven


def test_nobody_is_refused_while_nothing_speaks_against_batches_that_are_worked_on_at_once(driven_of):
    driven = taught(driven_of)
    for number in range(40):
        driven.submit(f"crowd-{number}")
    assert not driven.refusals


def test_who_cannot_be_answered_in_time_even_if_all_goes_well_is_refused_at_once(driven_of):
    driven = taught(driven_of)
    for number in range(2):
        driven.submit(f"beside-{number}", rows=4)
    for _ in range(2):  # one after the other
        driven.pass_time(0.1)
        driven.answer()
    driven.pass_time(0.3)
    for number in range(40):
        driven.submit(f"crowd-{number}")
    assert 12 <= 40 - len(driven.refusals) <= 24
