"""The ring of arrivals: what it keeps, for how long, and that its size is bounded."""

from __future__ import annotations

import sys

import pytest

from carpool import errors, measures
from carpool.scheduling import messages
from carpool_sidecar.recording import document, ring

KEY = ("/v1/models/m:predict", ())


class Site:
    """A ring with a clock that is set by hand, and what was counted beside it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.counted = [measures.Histogram(bounds) for bounds in (*[measures.SECONDS] * 3, measures.SIZES)]
        self.ring = ring.Ring(self.measured, lambda: self.now)
        self.ring.changed(document.Setting(policy="window"))

    def measured(self) -> ring.Measures:
        return ring.Measures(*(histogram.read() for histogram in self.counted))

    def request(self, rows: int = 1, size: int = 10, arrived: float | None = None, key=KEY) -> messages.Request:
        request = messages.Request(key, rows, size)
        request.arrived = self.now if arrived is None else arrived
        return request

    def send(self, *requests: messages.Request, key=KEY) -> messages.Batch:
        parts = [messages.Part(request, 0, request.rows) for request in requests]
        batch = messages.Batch("id", key, parts, messages.Reason.FULL)
        batch.dispatched = self.now
        for request in requests:
            request.take(request.rows)  # as the scheduler does
        self.ring.sent(batch, [request.arrived for request in batch.newcomers])
        return batch

    @property
    def times(self) -> list[float]:
        return [time for block in self.ring.blocks() for time in block.times]


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.parametrize("count", [1, 7, 8, 40])
def test_each_arrival_is_kept_with_its_time_rows_bytes_and_key(site, count):
    requests = [site.request(rows=n + 1, size=1000 * n, arrived=99 + n / 1000) for n in range(count)]
    batch = site.send(*requests)
    site.ring.answered(batch, 0.25)
    [block] = site.ring.blocks()
    assert list(block.times) == [99 + n / 1000 for n in range(count)]
    assert list(block.rows) == [n + 1 for n in range(count)]
    assert list(block.sizes) == [1000 * n for n in range(count)]
    assert len(block.keys) == count
    assert set(block.keys) == {hash(KEY) & 0xFFFFFFFF}
    assert (list(block.sent), list(block.batch_rows), list(block.batch_seconds)) == ([100.0], [batch.rows], [0.25])


def test_what_is_older_than_ten_minutes_is_not_told(site):
    site.send(site.request())
    site.now += ring.BLOCK_SECONDS
    site.send(site.request())  # ends the first block
    site.now += ring.SECONDS - 1
    assert site.times == [100, 130]
    site.now += 2
    assert site.times == []
    site.send(site.request())
    assert site.times == [site.now]


def test_so_many_arrivals_are_kept_and_no_more_whatever_comes(site):
    for number in range(5_000):
        site.now += 0.001
        batch = site.send(*(site.request() for _ in range(1 + number % 60)))
        site.ring.answered(batch, 0.001)
    kept = site.ring.blocks()
    arrivals = sum(len(block.times) for block in kept)
    assert ring.MOST - 2 * ring.BLOCK < arrivals <= ring.MOST + ring.BLOCK
    assert site.times[-1] == site.now
    columns = ("times", "rows", "sizes", "keys", "sent", "batch_rows", "batch_seconds")
    memory = sum(sys.getsizeof(getattr(block, name)) for block in kept for name in columns)
    assert memory < 4 * 2**20


def test_so_many_batches_are_kept_and_no_more_if_few_requests_are_cut_into_many(site):
    for _ in range(30_000):
        site.now += 0.001
        batch = site.send(site.request(rows=1))
        for _ in range(5):
            site.ring.answered(batch, 0.001)
    assert sum(len(block.sent) for block in site.ring.blocks()) <= ring.MOST + ring.BLOCK


def test_a_reader_does_not_disturb_what_is_written(site):
    site.send(site.request())
    [before] = site.ring.blocks()
    site.send(site.request())
    assert len(before.times) == 1
    [after] = site.ring.blocks()
    assert len(after.times) == 2


def test_a_block_has_what_was_counted_while_it_was_written(site):
    site.counted[0].observe(0.1)
    site.ring.seal()  # empty: nobody hears of it, and the next one begins here
    site.counted[0].observe_all([0.2, 0.3])
    site.send(site.request())
    [block] = site.ring.blocks()
    assert (block.after.wait.count - block.before.wait.count) == 2
    assert block.after.wait.sum - block.before.wait.sum == pytest.approx(0.5)


@pytest.mark.parametrize("error", [errors.Overloaded("x", 1), errors.WouldBeLate(), errors.MemoryFull("x", 1)])
def test_who_is_turned_away_counts_as_an_arrival(site, error):
    site.ring.refused(site.request(rows=3, size=7), error)
    [block] = site.ring.blocks()
    assert (list(block.rows), list(block.sizes), block.refused) == ([3], [7], 1)


@pytest.mark.parametrize("error", [errors.UpstreamBroken("x"), errors.Draining(), errors.NotIsolated()])
def test_who_was_sent_and_then_refused_does_not_count_twice(site, error):
    request = site.request()
    site.send(request)
    site.ring.refused(request, error)
    assert (len(site.times), site.ring.blocks()[0].refused) == (1, 0)


def test_who_is_too_late_counts_once_whether_it_was_sent_or_not(site):
    sent, waiting = site.request(), site.request()
    site.send(sent)
    for request in (sent, waiting):
        site.ring.refused(request, errors.DeadlineExceeded())
    assert (len(site.times), site.ring.blocks()[0].refused) == (2, 1)


def test_each_block_is_handed_over_once_when_it_is_sealed(site):
    heard: list[ring.Block] = []
    site.ring.on_sealed = heard.append
    for _ in range(ring.BLOCK + 1):
        site.send(site.request())
    assert [len(block.times) for block in heard] == [ring.BLOCK]
    site.ring.seal()
    site.ring.seal()
    assert [len(block.times) for block in heard] == [ring.BLOCK, 1]
