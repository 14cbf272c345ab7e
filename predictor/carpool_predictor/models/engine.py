"""Runs a network over batches of any size, as fast as the device allows.

A batch is cut into passes (`bucketing`). On a GPU the usual shapes of passes are recorded as CUDA graphs when the
model warms up: a pass of MiniLM's is about 100 kernels, whose launches take longer than the kernels themselves, and a
graph is one launch. Inputs are padded to the shape of the graph. A shape that has none runs eagerly.

A batch goes through `stage`, `start` and `result`, which may be called for different batches at the same time, each
from one thread. So one is tokenised and another written as JSON while the GPU computes a third.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import time
import traceback
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from carpool.program import logs
from carpool_predictor import model
from carpool_predictor.models import bucketing, devices

log = logging.getLogger("carpool.predictor.engine")

IN_FLIGHT = 3
"""Batches that may be between `stage` and `result`: one is laid ready, one computed, one written."""

_TELLS_EVERY = 2.0  # seconds, of the progress of warming up

Numbers = np.ndarray[Any, Any]


class Network(Protocol):
    """A network as the engine runs it. Its inputs are flat numbers of one kind, so that one copy moves them all."""

    kind: torch.dtype
    outputs: int
    """Numbers that come out for each row, as float32."""

    def inputs(self, rows: int, width: int) -> int:
        """How many numbers go into a pass."""

    def __call__(self, inputs: torch.Tensor, rows: int, width: int) -> torch.Tensor:
        """`inputs` numbers to [rows, outputs]. Rows that are padding may come out as anything."""


class Staged:
    """One batch between `stage` and `result`: fill what `inputs` gives for each pass."""

    def __init__(self, passes: Sequence[bucketing.Pass], sizes: Sequence[int], buffers: devices.Buffers) -> None:
        self.passes = passes
        self.sizes = sizes
        self.buffers = buffers
        self.facts: Any = None
        """Whatever the model wants to remember of the batch."""

    @property
    def rows(self) -> int:
        return sum(len(each.indices) for each in self.passes)

    def inputs(self) -> list[Numbers]:
        """The memory of each pass, to be filled from end to end."""
        memory: Numbers = self.buffers.input_here.numpy()
        made, at = [], 0
        for size in self.sizes:
            made.append(memory[at : at + size])
            at += size
        return made


class Engine:
    """A network on a device."""

    # Mutable state: the shapes and graphs, until `record` returns; and the buffers that no batch has.
    def __init__(self, network: Network, device: devices.Device, eager: bucketing.Shapes) -> None:
        self._network = network
        self._device = device
        self._eager = eager
        self._shapes = eager
        self._graphs: dict[bucketing.Bucket, devices.Step] = {}
        self._input = self._output = torch.empty(0)
        self._free: queue.SimpleQueue[devices.Buffers] = queue.SimpleQueue()
        for _ in range(IN_FLIGHT):
            self._free.put(devices.Buffers())

    # --- warming up ---------------------------------------------------------------------------------------------

    def record(self, buckets: Sequence[bucketing.Bucket], seconds: float) -> None:
        """Record passes of these shapes, the largest first, for so many seconds at most, and measure them.

        What there is no time or memory for runs eagerly, and the log tells of it.
        """
        if not self._device.records or not buckets:
            return
        started = told = time.monotonic()
        costs: dict[bucketing.Bucket, float] = {}
        self._claim(buckets)
        with self._device.computing():
            for bucket in buckets:
                now = time.monotonic()
                if now - started > seconds:
                    break
                if now - told > _TELLS_EVERY:
                    log.info("recording passes", extra=logs.facts(done=len(costs), of=len(buckets)))
                    told = now
                try:
                    costs[bucket] = self._record(bucket)
                except model.DeviceLost:
                    raise
                except Exception as error:
                    facts = logs.facts(rows=bucket.rows, width=bucket.width, error=str(error))
                    log.warning("a pass cannot be recorded", extra=facts)
        self._device.recover()
        usable = {bucket: cost for bucket, cost in costs.items() if bucketing.Bucket(1, bucket.width) in costs}
        self._shapes = bucketing.Buckets(usable, self._eager)
        seconds_taken, claimed = round(time.monotonic() - started, 1), self._device.claimed()
        facts = logs.facts(passes=len(costs), of=len(buckets), seconds=seconds_taken, claimed_bytes=claimed)
        if len(costs) < len(buckets):
            log.warning("not all passes were recorded, for lack of time or memory; the rest runs eagerly", extra=facts)
        else:
            log.info("passes recorded", extra=facts)

    def _claim(self, buckets: Sequence[bucketing.Bucket]) -> None:
        """The memory that all graphs read from and write to, one after the other."""
        inputs = max(self._network.inputs(*bucket) for bucket in buckets)
        outputs = max(bucket.rows for bucket in buckets) * self._network.outputs
        # Ones: in place of sizes, no row is empty.
        self._input = torch.ones(inputs, dtype=self._network.kind, device=self._device.name)
        self._output = torch.ones(outputs, device=self._device.name)
        self._device.recover()

    def _record(self, bucket: bucketing.Bucket) -> float:
        """Seconds that a pass of this shape takes. Raises `model.OutOfMemory`."""
        inputs = self._network.inputs(*bucket)
        count = bucket.rows * self._network.outputs

        def step() -> None:
            found = self._network(self._input[:inputs], *bucket)
            self._output[:count].copy_(found.reshape(-1))

        try:
            replay = self._device.record(step)
            cost = self._device.seconds(replay)
        except Exception as error:
            raise self._failure(error, f"passes of {bucket.rows} x {bucket.width}") from None
        self._graphs[bucket] = replay
        return cost

    # --- a batch ------------------------------------------------------------------------------------------------

    def stage(self, lengths: Sequence[int]) -> Staged:
        """Make room for a batch of inputs of these lengths; waits while `IN_FLIGHT` others are under way.

        Raises `model.OutOfMemory`. Each is to be given to `start`, then to `result`.
        """
        passes = bucketing.plan(lengths, self._shapes)
        sizes = [self._network.inputs(each.rows, each.width) for each in passes]
        buffers = self._free.get()
        try:
            outputs = len(lengths) * self._network.outputs
            self._device.grow(buffers, _roomy(sum(sizes)), _roomy(outputs), self._network.kind)
        except Exception as error:
            self._free.put(devices.Buffers())
            raise self._failure(error, f"{len(lengths)} instances in one call") from None
        return Staged(passes, sizes, buffers)

    def start(self, batch: Staged) -> Staged:
        """Have it computed. On a GPU this returns at once.

        Raises `model.OutOfMemory`, and `model.DeviceLost`; then the batch is no more.
        """
        buffers, size = batch.buffers, self._network.outputs
        try:
            with self._device.computing():
                self._device.upload(buffers, sum(batch.sizes))
                at = row = 0
                for each, inputs in zip(batch.passes, batch.sizes, strict=True):
                    found = self._pass(buffers.input_there[at : at + inputs], each)
                    count = len(each.indices) * size
                    buffers.output_there[row : row + count].copy_(found[:count])
                    at, row = at + inputs, row + count
                self._device.download(buffers, row)
        except Exception as error:
            self._drop()
            raise self._failure(error, f"{batch.rows} instances in one call") from None
        return batch

    def _pass(self, inputs: torch.Tensor, each: bucketing.Pass) -> torch.Tensor:
        """The flat numbers that come out."""
        replay = self._graphs.get(bucketing.Bucket(each.rows, each.width))
        if replay is None:
            return self._network(inputs, each.rows, each.width).reshape(-1)
        self._input[: len(inputs)].copy_(inputs)
        replay()
        return self._output

    def result(self, batch: Staged) -> Numbers:
        """Wait for it: [rows, outputs], in the order of the lengths."""
        outputs = self._network.outputs
        found: Numbers = np.empty((batch.rows, outputs), np.float32)
        try:
            self._device.wait(batch.buffers)
            order = [index for each in batch.passes for index in each.indices]
            found[order] = batch.buffers.output_here[: found.size].numpy().reshape(found.shape)
        except Exception as error:
            raise self._failure(error, f"{batch.rows} instances in one call") from None
        finally:
            self._free.put(batch.buffers)
        return found

    def _drop(self) -> None:
        """Let go of a batch that was not computed, and of its memory."""
        try:
            self._device.recover()  # what was begun may still read from there
        finally:
            self._free.put(devices.Buffers())

    def _failure(self, error: Exception, what: str) -> Exception:
        """What an exception means, once the device is able to go on."""
        failure = self._device.failure(error, what)
        if isinstance(failure, model.OutOfMemory):
            log.warning("out of memory", extra=logs.facts(what=what, error=str(error)))
            traceback.clear_frames(error.__traceback__)  # which hold what was computed so far
            self._shrink()
            self._device.recover()
        return failure

    def _shrink(self) -> None:
        """Let go of memory that an earlier, larger batch had."""
        with contextlib.suppress(queue.Empty):
            for _ in range(IN_FLIGHT):
                self._free.get_nowait()
                self._free.put(devices.Buffers())


def _roomy(count: int) -> int:
    """A power of two, so that a buffer grows seldom."""
    return 1 << max(0, math.ceil(math.log2(max(1, count))))
