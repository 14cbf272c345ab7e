"""The engine that runs networks on devices: any bucket gives the same answer, batches overlap, failures stay alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_predictor import model

torch = pytest.importorskip("torch", reason="torch is missing: install the extra 'minilm' to test the engine")
np = pytest.importorskip("numpy")

from carpool_predictor.models import bucketing, devices, engine  # noqa: E402


class Sums:
    """For each row its length, then its numbers: their sum, and how wide the pass was."""

    kind = torch.int32
    outputs = 2

    def inputs(self, rows: int, width: int) -> int:
        return rows + rows * width

    def __call__(self, inputs: Any, rows: int, width: int) -> Any:
        lengths, numbers = inputs[:rows, None], inputs[rows : rows + rows * width].view(rows, width)
        seen = torch.where(torch.arange(width) < lengths, numbers, 0).sum(1).float()
        return torch.stack([seen, torch.full_like(seen, float(width))], 1)


class FakeGpu(devices.Cpu):
    """A device with memory of its own, to which copies are made as late as they may be, and which may be full.

    A batch takes `most` numbers at most. `costs` are the seconds of passes, one after the other.
    """

    records = True

    def __init__(self, most: int = 10**9) -> None:
        super().__init__()
        self.most = most
        self.recorded = self.replayed = self.recovered = 0

    def grow(self, buffers: devices.Buffers, inputs: int, outputs: int, kind: Any) -> None:
        if len(buffers.input_here) < inputs:
            buffers.input_here, buffers.input_there = (torch.full((inputs,), 7, dtype=kind) for _ in range(2))
        if len(buffers.output_here) < outputs:
            buffers.output_here, buffers.output_there = (torch.full((outputs,), 7.0) for _ in range(2))

    def upload(self, buffers: devices.Buffers, inputs: int) -> None:
        if inputs > self.most:
            raise MemoryError("fake")
        buffers.input_there[:inputs].copy_(buffers.input_here[:inputs])

    def wait(self, buffers: devices.Buffers) -> None:
        buffers.output_here.copy_(buffers.output_there)

    def record(self, step: devices.Step) -> devices.Step:
        self.recorded += 1
        step()

        def replay() -> None:
            self.replayed += 1
            step()

        return replay

    def seconds(self, step: devices.Step) -> float:
        return 1.0

    def recover(self) -> None:
        self.recovered += 1

    def failure(self, error: Exception, what: str) -> Exception:
        return model.OutOfMemory(f"GPU out of memory: {what}") if isinstance(error, MemoryError) else error


BUCKETS = bucketing.grid((1, 2, 4), (4, 8), 24)


def fill(batch: engine.Staged, rows: Sequence[Sequence[int]]) -> engine.Staged:
    for each, memory in zip(batch.passes, batch.inputs(), strict=True):
        memory[:] = 99
        lengths, numbers = memory[: each.rows], memory[each.rows :].reshape(each.rows, each.width)
        for place, index in enumerate(each.indices):
            lengths[place] = len(rows[index])
            numbers[place, : len(rows[index])] = rows[index]
    return batch


def sums(made: engine.Engine, rows: Sequence[Sequence[int]]) -> list[float]:
    batch = fill(made.stage([len(row) for row in rows]), rows)
    return [each[0] for each in made.result(made.start(batch)).tolist()]


def recorded(device: FakeGpu) -> engine.Engine:
    made = engine.Engine(Sums(), device, bucketing.AnyShape(1, 100))
    made.record(BUCKETS, 60.0)
    return made


ROWS = st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=12), min_size=1, max_size=20)


@given(ROWS)
def test_answers_are_the_same_in_any_bucket_and_in_order(rows: list[list[int]]) -> None:
    eager = engine.Engine(Sums(), devices.Cpu(), bucketing.AnyShape(1, 100))
    assert sums(eager, rows) == sums(recorded(FakeGpu()), rows) == [float(sum(row)) for row in rows]


@given(st.lists(ROWS, min_size=2, max_size=5))
def test_memory_that_is_used_again_shows_nothing_of_earlier_batches(batches: list[list[list[int]]]) -> None:
    made = recorded(FakeGpu())
    for rows in batches:
        assert sums(made, rows) == [float(sum(row)) for row in rows]


def test_usual_shapes_are_replayed_and_others_run_eagerly() -> None:
    device = FakeGpu()
    made = recorded(device)
    assert device.recorded == len(BUCKETS)
    assert sums(made, [[1], [2], [3]]) == [1.0, 2.0, 3.0]
    assert device.replayed == 1
    assert sums(made, [[1] * 9]) == [9.0]  # longer than any bucket
    assert device.replayed == 1


def test_what_there_is_no_time_to_record_runs_eagerly() -> None:
    device = FakeGpu()
    made = engine.Engine(Sums(), device, bucketing.AnyShape(1, 100))
    made.record(BUCKETS, -1.0)
    assert device.recorded == 0
    assert sums(made, [[1], [2, 3]]) == [1.0, 5.0]


def test_what_there_is_no_memory_to_record_runs_eagerly() -> None:
    class Small(FakeGpu):
        def record(self, step: devices.Step) -> devices.Step:
            if self.recorded < 2:
                self.recorded += 1
                raise MemoryError("fake")
            return super().record(step)

    made = recorded(Small())
    assert sums(made, [[1] * 8, [2] * 8, [1]]) == [8.0, 16.0, 1.0]


def test_a_batch_that_is_too_large_fails_alone_and_smaller_ones_go_on() -> None:
    device = FakeGpu()
    made = recorded(device)
    device.most = 20
    for _ in range(2 * engine.IN_FLIGHT):  # which would use up all buffers if they were lost
        rows = [[1, 2, 3]] * 50
        batch = fill(made.stage([3] * 50), rows)
        with pytest.raises(model.OutOfMemory, match="50 instances in one call"):
            made.start(batch)
        assert sums(made, [[1], [2]]) == [1.0, 2.0]
    assert device.recovered


def test_a_batch_for_which_there_is_no_room_from_the_start_fails_alone() -> None:
    class Full(FakeGpu):
        def grow(self, buffers: devices.Buffers, inputs: int, outputs: int, kind: Any) -> None:
            if inputs > 64:
                raise MemoryError("fake")
            super().grow(buffers, inputs, outputs, kind)

    made = recorded(Full())
    for _ in range(2 * engine.IN_FLIGHT):
        with pytest.raises(model.OutOfMemory):
            made.stage([8] * 50)
        assert sums(made, [[1], [2]]) == [1.0, 2.0]


def test_full_memory_ends_what_an_earlier_batch_has_claimed() -> None:
    class Counting(FakeGpu):
        claims = 0

        def grow(self, buffers: devices.Buffers, inputs: int, outputs: int, kind: Any) -> None:
            self.claims += len(buffers.input_here) < inputs
            super().grow(buffers, inputs, outputs, kind)

    device = Counting()
    made = recorded(device)
    for _ in range(2 * engine.IN_FLIGHT):
        sums(made, [[1] * 8] * 50)
    assert device.claims == engine.IN_FLIGHT  # each is claimed once
    device.most = 20
    batch = fill(made.stage([3] * 50), [[1, 2, 3]] * 50)
    with pytest.raises(model.OutOfMemory):
        made.start(batch)
    device.most = 10**9
    for _ in range(2 * engine.IN_FLIGHT):
        sums(made, [[1] * 8] * 50)
    assert device.claims == 2 * engine.IN_FLIGHT


def test_a_result_that_fails_gives_its_memory_back() -> None:
    class Failing(FakeGpu):
        fails = True

        def wait(self, buffers: devices.Buffers) -> None:
            if self.fails:
                raise RuntimeError("a cosmic ray")
            super().wait(buffers)

    device = Failing()
    made = recorded(device)
    for _ in range(2 * engine.IN_FLIGHT):
        with pytest.raises(RuntimeError, match="cosmic"):
            sums(made, [[1]])
    device.fails = False
    assert sums(made, [[1]]) == [1.0]


def test_batches_under_way_do_not_touch_each_other() -> None:
    made = recorded(FakeGpu())
    rows = [[[place] * 5, [place]] for place in range(engine.IN_FLIGHT)]
    batches = [fill(made.stage([5, 1]), each) for each in rows]
    started = [made.start(batch) for batch in batches]
    found = [made.result(batch)[:, 0].tolist() for batch in started]
    assert found == [[5.0 * place, 1.0 * place] for place in range(engine.IN_FLIGHT)]


def test_more_batches_than_there_is_memory_for_wait_for_their_turn() -> None:
    made = recorded(FakeGpu())
    batches = [fill(made.stage([1]), [[place]]) for place in range(engine.IN_FLIGHT)]
    staged = threading.Event()

    def one_more() -> None:
        made.result(made.start(fill(made.stage([1]), [[1]])))
        staged.set()

    thread = threading.Thread(target=one_more)
    thread.start()
    assert not staged.wait(0.05)
    made.result(made.start(batches[0]))
    thread.join(10)
    assert staged.is_set()


@pytest.mark.parametrize("name", ["cuda", "cuda:7"])
def test_a_gpu_that_is_not_there_is_refused_with_its_name(name: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(model.Unusable, match=f"--device {name}: torch finds no GPU"):
        devices.chosen(name, None)


def test_memory_of_the_cpu_that_is_not_to_be_had_is_told_so() -> None:
    device = devices.Cpu()
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**50)
    for error in (raised.value, MemoryError()):
        assert isinstance(device.failure(error, "2 instances"), model.OutOfMemory)
    other = ValueError("x")
    assert device.failure(other, "") is other
