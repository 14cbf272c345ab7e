"""What the adaptive policy learns from, and how soon it believes it."""

from __future__ import annotations

import random

import pytest

from carpool.scheduling import limits, messages, tuning
from carpool.scheduling.arrivals import ReturningCallers
from carpool.scheduling.predictor_model import LatencyModel, PredictorModel


def seconds(size: float) -> float:
    return 0.010 + 0.0005 * size


def batch(rows: int) -> messages.Batch:
    request = messages.Request("key", rows)
    return messages.Batch("id", "key", [messages.Part(request, 0, rows)], messages.Reason.FULL)


class TestLatencyModel:
    def test_an_affine_predictor_is_learned_from_a_few_batches(self):
        learned = LatencyModel()
        for size in (1, 8, 32, 16, 4):
            learned.observe(size, seconds(size))
        assert learned(24) == pytest.approx(seconds(24), rel=1e-6)
        assert learned.is_trusted
        assert learned.is_varied

    def test_while_one_size_was_seen_all_time_counts_as_fixed(self):
        learned = LatencyModel()
        for _ in range(10):
            learned.observe(4, 0.02)
        assert learned(32) == pytest.approx(0.02)
        assert not learned.is_varied

    def test_noise_moves_the_prediction_little_and_the_margin_as_it_should(self):
        learned, chance = LatencyModel(), random.Random(1)
        for _ in range(300):
            size = chance.randint(1, 32)
            learned.observe(size, seconds(size) * chance.lognormvariate(0, 0.2))
        assert learned(16) == pytest.approx(seconds(16), rel=0.15)
        assert 0.1 < learned.spread < 0.3
        assert learned.pessimistic(16) == pytest.approx(learned(16) * (1 + tuning.Z * learned.spread))

    @pytest.mark.parametrize("factor", [3.0, 1 / 3])
    def test_a_changed_predictor_is_believed_after_a_few_batches(self, factor):
        learned, chance = LatencyModel(), random.Random(1)
        for _ in range(200):
            size = chance.randint(1, 32)
            learned.observe(size, seconds(size))
        for _ in range(10):
            size = chance.randint(1, 32)
            learned.observe(size, factor * seconds(size))
        assert learned(16) == pytest.approx(factor * seconds(16), rel=0.2)

    def test_one_odd_batch_is_not_a_change(self):
        learned, chance = LatencyModel(), random.Random(1)
        for _ in range(200):
            size = chance.randint(1, 32)
            learned.observe(size, seconds(size))
        learned.observe(16, 10 * seconds(16))
        assert learned.changes == 0

    def test_a_slow_first_batch_is_forgotten(self):
        """Models compile, caches fill: the first answer often takes seconds."""
        learned = LatencyModel()
        learned.observe(1, 8.0)
        for _ in range(12):
            learned.observe(1, 0.01)
        assert learned(1) < 0.05


class TestReturns:
    def come_back(
        self, returns: ReturningCallers, batches: int, size: int, after: float, fraction: float = 1.0
    ) -> float:
        now = 0.0
        for _ in range(batches):
            returns.completed(size, now, span=0.005)
            for _ in range(int(size * fraction)):
                returns.arrived(1, now + after)
            now += 0.1
        returns.completed(size, now, span=0.005)
        return now

    def test_callers_of_a_closed_loop_are_expected_back_together(self):
        returns = ReturningCallers()
        now = self.come_back(returns, batches=30, size=8, after=0.0005)
        assert returns.expected() == pytest.approx(8, abs=0.1)
        assert returns.until_back(now, shortest=0.0, longest=0.01) == pytest.approx(1.25 * 0.0005, rel=0.05)
        returns.arrived(1, now + 0.0004)
        assert returns.expected() == pytest.approx(7, abs=0.1)

    def test_callers_who_do_not_come_back_are_not_waited_for(self):
        returns = ReturningCallers()
        self.come_back(returns, batches=30, size=8, after=0.02)
        assert returns.expected() == 0.0

    def test_callers_who_all_stay_away_once_are_still_expected_and_not_after_that(self):
        returns = ReturningCallers()
        now = self.come_back(returns, batches=30, size=8, after=0.0005)
        returns.completed(8, now + 0.1, span=0.005)
        assert returns.are_sure
        assert returns.fraction == pytest.approx(1.0, abs=0.01)
        for number in range(2, 6):
            returns.completed(8, now + number / 10, span=0.005)
        assert not returns.are_sure

    def test_independent_callers_are_no_closed_loop(self):
        """About half of a batch comes in the first half of it."""
        returns, chance, now = ReturningCallers(), random.Random(3), 0.0
        sure = 0
        for _ in range(2000):
            returns.completed(4, now, span=0.005)
            for since in sorted(chance.uniform(0, 0.01) for _ in range(chance.choice((3, 4, 5)))):
                returns.arrived(1, now + since)
            now += 0.01
            sure += returns.are_sure
        assert sure < 20

    def test_independent_callers_of_a_quick_predictor_are_not_taken_for_returning_ones(self):
        """A batch takes little longer than the shortest span, so many come within it by chance."""
        returns, chance, now = ReturningCallers(), random.Random(3), 0.0
        expected = 0.0
        for _ in range(2000):
            returns.completed(30, now, span=0.0006)
            expected += max(0.0, returns.expected()) / 2000
            for since in sorted(chance.uniform(0, 0.0015) for _ in range(chance.randint(25, 35))):
                returns.arrived(1, now + since)
            now += 0.0015
        assert expected < 0.1 * 30

    def test_callers_of_a_quick_predictor_who_come_back_are_seen_as_such(self):
        returns, now = ReturningCallers(), 0.0
        for _ in range(50):
            returns.completed(8, now, span=0.0006)
            for _ in range(8):
                returns.arrived(1, now + 0.0002)
            now += 0.0015
        assert returns.are_sure


class Bench:
    """A predictor with `workers` serial workers and `overhead` seconds of overlappable round trip, driven by hand."""

    def __init__(self, workers: int = 1, overhead: float = 0.004, noise: float = 0.0) -> None:
        self.device = PredictorModel(limits.Limits(learns_in_flight=True))
        self.overhead = overhead
        self.now = 0.0
        self.free = [0.0] * workers
        self.out: list[tuple[float, messages.Batch]] = []
        self.chance = random.Random(2)
        self.noise = noise

    def send(self, size: int) -> None:
        sent = batch(size)
        sent.dispatched = self.now
        self.device.sent(sent, self.now)
        worker = min(range(len(self.free)), key=self.free.__getitem__)
        start = max(self.now + self.overhead / 2, self.free[worker])
        self.free[worker] = start + seconds(size) * self.chance.lognormvariate(0, self.noise)
        self.out.append((self.free[worker] + self.overhead / 2, sent))

    def wait_for_one(self) -> None:
        self.out.sort(key=lambda entry: entry[0])
        self.now, answered = self.out.pop(0)
        self.device.completed(answered, self.now)

    def run(self, batches: int, in_flight: int | None = None) -> None:
        """With so many in flight all the time; None: as many as the policy allows."""
        for _ in range(batches):
            while len(self.out) < (in_flight or self.device.workers + 1):
                self.send(self.chance.randint(1, 32))
            self.wait_for_one()
        while self.out:
            self.wait_for_one()


class TestDevice:
    def test_overhead_is_what_a_queued_batch_does_not_pay(self):
        bench = Bench(overhead=0.004)
        bench.run(10, in_flight=1)
        bench.run(30, in_flight=2)
        assert bench.device.overhead == pytest.approx(0.004, rel=0.1)
        assert bench.device.work(16) == pytest.approx(seconds(16), rel=0.1)
        assert bench.device.workers == 1

    def test_it_knows_when_the_predictor_runs_dry(self):
        bench = Bench(overhead=0.004)
        bench.run(10, in_flight=1)
        bench.run(30, in_flight=2)
        bench.send(32)
        assert bench.device.free_at == pytest.approx(bench.now + seconds(32), rel=0.1)
        bench.send(8)
        assert bench.device.free_at == pytest.approx(bench.now + seconds(32) + seconds(8), rel=0.1)
        assert not bench.device.is_idle

    def test_a_measured_round_trip_is_believed_until_there_are_samples(self):
        device = PredictorModel(limits.Limits(learns_in_flight=True))
        assert not device.knows_overhead
        device.hint_overhead(0.002)
        assert device.knows_overhead
        assert device.overhead == 0.002

    @pytest.mark.parametrize("workers", [2, 4])
    def test_parallel_workers_are_found(self, workers):
        bench = Bench(workers=workers)
        bench.run(10, in_flight=1)
        bench.run(400)
        assert bench.device.workers == workers

    @pytest.mark.parametrize("noise", [0.0, 0.5])
    def test_a_serial_predictor_is_not_taken_for_a_parallel_one(self, noise):
        bench = Bench(workers=1, noise=noise)
        bench.run(20, in_flight=1)
        wrong = 0
        for _ in range(100):
            bench.run(10)
            wrong += bench.device.workers > 1
        assert wrong <= 10

    def test_a_worker_that_is_gone_is_noticed(self):
        bench = Bench(workers=2)
        bench.run(10, in_flight=1)
        bench.run(200)
        assert bench.device.workers == 2
        bench.free = [bench.now]
        bench.run(200)
        assert bench.device.workers == 1
