"""Where a network computes: the CPU, or a GPU with streams, pinned memory and recorded passes.

A batch crosses the device in three steps, which three threads may take for three batches at once: its input is copied
there (`upload`), passes are computed, and the result is copied back (`download`). On a GPU none of them waits: copies
and passes lie in streams of their own, and events keep their order. `wait` returns once a batch's result is there.

A device is used by one thread at a time for each of `buffers`, for uploads to downloads, and for `wait`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

from carpool_predictor import model

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

_HALF_SINCE = (7, 0)  # compute capability: from there on, products of float16 run on tensor cores
_BRAIN_SINCE = (8, 0)
_TIMED = 3  # runs, of which the fastest counts

Step = Callable[[], None]


class Buffers:
    """Memory for one batch on its way: flat tensors, here and on the device, of at least the size that was asked for.

    On the CPU both are the same. `uploaded`, `computed` and `downloaded` are events of the device.
    """

    def __init__(self) -> None:
        self.input_here = self.input_there = self.output_here = self.output_there = torch.empty(0)
        self.uploaded: Any = None
        self.computed: Any = None
        self.downloaded: Any = None


class Device(Protocol):
    """What an engine needs of a device."""

    name: torch.device
    records: bool
    """Whether `record` is worth its time."""

    def grow(self, buffers: Buffers, inputs: int, outputs: int, kind: torch.dtype) -> None:
        """Make room for so many numbers of this kind that go in, and so many float32 that come out."""

    def computing(self) -> contextlib.AbstractContextManager[None]:
        """The context in which uploads, passes and downloads are ordered."""

    def upload(self, buffers: Buffers, inputs: int) -> None: ...

    def download(self, buffers: Buffers, outputs: int) -> None: ...

    def wait(self, buffers: Buffers) -> None:
        """Return once the result of what was downloaded last is in `output_here`."""

    def record(self, step: Step) -> Step:
        """A function that repeats what the step does on the device, with the same memory."""

    def seconds(self, step: Step) -> float:
        """How long the device takes for the step."""

    def claimed(self) -> int:
        """Bytes of the device's memory that torch holds."""

    def recover(self) -> None:
        """Wait for all that was begun, and give unused memory back. Raises what the device fails with."""

    def failure(self, error: Exception, what: str) -> Exception:
        """What to raise in place of an exception that computing `what` raised."""


class Cpu:
    """The CPU, with as many threads as torch was told."""

    records = False

    def __init__(self) -> None:
        self.name = torch.device("cpu")

    def grow(self, buffers: Buffers, inputs: int, outputs: int, kind: torch.dtype) -> None:
        if len(buffers.input_here) < inputs:
            buffers.input_here = buffers.input_there = torch.empty(inputs, dtype=kind)
        if len(buffers.output_here) < outputs:
            buffers.output_here = buffers.output_there = torch.empty(outputs)

    def computing(self) -> contextlib.AbstractContextManager[None]:
        made: contextlib.AbstractContextManager[None] = torch.inference_mode()
        return made

    def upload(self, buffers: Buffers, inputs: int) -> None: ...

    def download(self, buffers: Buffers, outputs: int) -> None: ...

    def wait(self, buffers: Buffers) -> None: ...

    def record(self, step: Step) -> Step:
        return step

    def seconds(self, step: Step) -> float:
        raise NotImplementedError("passes of the CPU are not measured")

    def claimed(self) -> int:
        return 0

    def recover(self) -> None: ...

    def failure(self, error: Exception, what: str) -> Exception:
        if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
            return model.OutOfMemory(f"device out of memory: {what} need more than the CPU has; send fewer")
        return error


class Gpu:
    """One GPU of CUDA's. Raises `model.Unusable` if there is none, or it cannot do what is asked.

    `memory` bounds what torch may claim there: a share of all its memory up to 1.0, or a number of bytes; None: all.
    """

    records = True

    def __init__(self, name: str, memory: float | None = None) -> None:
        self.name = torch.device(name)
        self._memory = memory
        if not torch.cuda.is_available():
            raise model.Unusable(
                f"--device {name}: torch finds no GPU; is this its build for CUDA, and is one visible?"
            )
        count = torch.cuda.device_count()
        number = self.name.index or 0
        if number >= count:
            raise model.Unusable(f"--device {name}: of CUDA's GPUs {count} are visible, cuda:0 to cuda:{count - 1}")
        self.name = torch.device("cuda", number)
        torch.cuda.set_device(self.name)
        self._limit(memory)
        self._computes, self._uploads, self._downloads = (torch.cuda.Stream(self.name) for _ in range(3))
        self._pool = torch.cuda.graph_pool_handle()
        self._has_recorded = False

    def _limit(self, memory: float | None) -> None:
        if memory is None:
            return
        total = torch.cuda.get_device_properties(self.name).total_memory
        share = memory if memory <= 1 else memory / total
        if share > 1:
            raise model.Unusable(f"--gpu-memory: {memory:.0f} bytes are more than the {total} of {self.name}")
        torch.cuda.set_per_process_memory_fraction(share, self.name)

    def grow(self, buffers: Buffers, inputs: int, outputs: int, kind: torch.dtype) -> None:
        if buffers.uploaded is None:
            buffers.uploaded, buffers.computed = (torch.cuda.Event() for _ in range(2))
            # So that whoever waits sleeps: containers with GPUs have few CPUs.
            buffers.downloaded = torch.cuda.Event(blocking=True)
        if len(buffers.input_here) < inputs:
            buffers.input_here = buffers.input_there = torch.empty(0)  # given back first
            buffers.input_there = torch.empty(inputs, dtype=kind, device=self.name)
            buffers.input_here = torch.empty(inputs, dtype=kind, pin_memory=True)
        if len(buffers.output_here) < outputs:
            buffers.output_here = buffers.output_there = torch.empty(0)
            buffers.output_there = torch.empty(outputs, device=self.name)
            buffers.output_here = torch.empty(outputs, pin_memory=True)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        with torch.inference_mode(), torch.cuda.stream(self._computes):
            yield

    def upload(self, buffers: Buffers, inputs: int) -> None:
        with torch.cuda.stream(self._uploads):
            buffers.input_there[:inputs].copy_(buffers.input_here[:inputs], non_blocking=True)
            buffers.uploaded.record()
        self._computes.wait_event(buffers.uploaded)

    def download(self, buffers: Buffers, outputs: int) -> None:
        buffers.computed.record(self._computes)
        with torch.cuda.stream(self._downloads):
            self._downloads.wait_event(buffers.computed)
            buffers.output_here[:outputs].copy_(buffers.output_there[:outputs], non_blocking=True)
            buffers.downloaded.record()

    def wait(self, buffers: Buffers) -> None:
        buffers.downloaded.synchronize()

    def record(self, step: Step) -> Step:
        step()  # chooses kernels and makes workspaces, which must not be part of the graph
        self._computes.synchronize()
        if self._memory is not None:
            torch.cuda.empty_cache()  # a graph takes nothing of what was claimed for the step before it
        graph = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin(pool=self._pool)
            try:
                step()
            finally:
                graph.capture_end()
        except Exception:
            if not self._has_recorded:  # a pool whose only graph failed cannot be used again
                self._pool = torch.cuda.graph_pool_handle()
            raise
        self._has_recorded = True
        replay: Step = graph.replay
        return replay

    def seconds(self, step: Step) -> float:
        times: list[float] = []
        for _ in range(_TIMED):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            step()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return min(times)

    def claimed(self) -> int:
        return int(torch.cuda.memory_reserved(self.name))

    def recover(self) -> None:
        torch.cuda.synchronize(self.name)
        torch.cuda.empty_cache()

    def failure(self, error: Exception, what: str) -> Exception:
        # Pinned memory and cuBLAS have words of their own, not the allocator's class.
        if isinstance(error, torch.cuda.OutOfMemoryError) or re.search(r"out of memory|ALLOC_FAILED", str(error)):
            room = torch.cuda.mem_get_info(self.name)[1]
            limit = "" if self._memory is None else f" (--gpu-memory {self._memory:g})"
            return model.OutOfMemory(
                f"CUDA out of memory: {what} need more than there is of {room / 2**30:.1f} GiB{limit}; send fewer"
            )
        if re.match(r"CUDA error|CUDA driver error", str(error)):
            return model.DeviceLost(f"{self.name} failed: {str(error).partition(chr(10))[0]}")
        return error


def chosen(name: str, memory: float | None) -> Device:
    """The device of this name: auto, cpu, cuda or cuda:N. Raises `model.Unusable`."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return Cpu() if name == "cpu" else Gpu(name, memory)


def precision(wanted: str, device: torch.device) -> torch.dtype:
    """The type of weights and activations. `auto` is float16 on a GPU that is fast with it, else float32.

    Raises `model.Unusable` for one that the GPU computes without hardware.
    """
    if device.type == "cpu":
        return PRECISIONS["float32" if wanted == "auto" else wanted]
    able = torch.cuda.get_device_capability(device)
    if wanted == "auto":
        return PRECISIONS["float16" if able >= _HALF_SINCE else "float32"]
    if wanted == "bfloat16" and able < _BRAIN_SINCE:
        raise model.Unusable("--precision bfloat16 needs a GPU of compute capability 8.0 or more; float16 runs here")
    return PRECISIONS[wanted]


def converted(weights: Mapping[str, torch.Tensor], kind: torch.dtype) -> dict[str, torch.Tensor]:
    """Weights as numbers of this kind. Whole numbers stay as they are."""
    return {name: each.to(kind) if each.is_floating_point() else each for name, each in weights.items()}
