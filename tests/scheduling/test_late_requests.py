"""The adaptive policy drops what would be late, but never what a batch of the same step carries."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.scheduling import adaptive, limits, messages, scheduler


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
