"""Callers choose batch keys, contents and how they leave: whatever they choose, the scheduler keeps a bounded amount.

An hour of virtual time, each key used once by two requests whose fate differs from key to key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from carpool import errors
from carpool.scheduling import adaptive, limits, messages, scheduler, window
from tests import growth
from tests.scheduling.driven import refused

KEYS = 16_000
SECONDS = 3600.0
_LATE = 200  # events until a batch comes back whose callers have given up
_WAYS = 12

TRAITS = {
    "content": lambda request: request.tag,
    "origin": lambda request: f"origin-{request.tag}",
}


class Hour:
    """Drives a scheduler through keys; `policy` is made of the limits."""

    def __init__(self, policy: Callable[[limits.Limits], Any]) -> None:
        self.now = 1000.0
        self._limits = limits.Limits(max_batch_size=8, max_latency=0.01, max_in_flight=64, timeout=0.2)
        self._ids = self.answered = self.refused = 0
        self._late: list[tuple[int, messages.Batch]] = []
        self.core = scheduler.Scheduler(self._limits, policy(self._limits), lambda: self.now, self._new_id, TRAITS)

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:036d}"

    def use(self, keys: range) -> None:
        """Use these keys, at the pace of `KEYS` in an hour, then let everything end."""
        for number in keys:
            self._pass(SECONDS / KEYS)
            requests = [self._request(number, place) for place in range(2)]
            for request in requests:
                self._do(self.core.submit(request))
            if number % _WAYS == 0:
                self._do(self.core.cancel(requests[0]))
        self._pass(60.0)
        while self._late:
            self._do(self.core.done(self._late.pop()[1], range(0)))
        self._pass(60.0)

    def _request(self, number: int, place: int) -> messages.Request:
        key = (f"/v1/models/model-{number}:predict", (("X-Key", str(number)),))
        return messages.Request(key, 4, 100, [number] * 4, f"{number}-{place}", priority=number % 3 - 1)

    def _pass(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.core.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self._do(self.core.poll())
        self.now = end

    def _do(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, messages.Dispatch):
                self._come_back(effect.batch)
            elif isinstance(effect, messages.Abandon):
                self._late = [(due, batch) for due, batch in self._late if batch is not effect.batch]
                self._do(self.core.failed(effect.batch, errors.Abandoned()))
            elif isinstance(effect, messages.Answer):
                self.answered += 1
            else:
                self.refused += 1

    def _come_back(self, batch: messages.Batch) -> None:
        way = int(batch.parts[0].request.tag.partition("-")[0]) % _WAYS
        if way == 1:
            self._do(self.core.failed(batch, refused(413, rows=batch.rows)))
        elif way == 2:
            self._do(self.core.failed(batch, refused(400)))
        elif way == 3:
            self._do(self.core.failed(batch, refused(500, doubtful={500})))
        elif way == 4:
            self._late.append((self._ids + _LATE, batch))
        else:
            self._do(self.core.done(batch, [0] * batch.rows))
        while self._late and self._late[0][0] <= self._ids:
            _, late = self._late.pop(0)
            self._do(self.core.done(late, [0] * late.rows))


@pytest.mark.parametrize("policy", [window.Window, adaptive.Adaptive])
def test_an_hour_of_keys_that_never_come_back_leaves_no_more_than_its_first_half(policy):
    hour = Hour(policy)
    hour.use(range(KEYS // 2))
    objects, size = growth.kept(hour.core)
    hour.use(range(KEYS // 2, KEYS))
    later_objects, later_size = growth.kept(hour.core)
    assert hour.answered + hour.refused > 1.8 * KEYS
    assert hour.core.idle
    assert later_objects <= 1.05 * objects + 5_000  # heaps drop what is stale when they come to it
    assert later_size <= 1.05 * size + 500_000
    assert later_size < 4_000_000
