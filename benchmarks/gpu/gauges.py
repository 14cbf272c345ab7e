"""What a GPU and the processes beside it do during a measurement: busy share, energy, memory, CPU.

NVML tells the share of time in which some kernel ran, in periods of a sixth of a second or more, so a watch is to last
seconds; the energy is counted by the GPU itself, in millijoules since the driver was loaded. Without a GPU the same
watch tells only of the CPU.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import psutil

from benchmarks import machine

# Seconds between samples. NVML has nothing newer than a sixth of a second, and what it is asked and what is launched
# may wait for each other in the driver.
PERIOD = 0.2
_STALE = 0.8  # seconds at the beginning of a watch in which NVML may still tell of the time before


class NoGpu(Exception):
    """There is no GPU that can be watched; `str()` says what is missing."""


class Gpu(Protocol):
    """One GPU. Units: shares of 1, joules, watts, MB (10^6 bytes), MHz. None where it does not tell."""

    def facts(self) -> dict[str, Any]: ...

    def busy(self) -> float | None: ...

    def joules(self) -> float | None: ...

    def watts(self) -> float | None: ...

    def memory(self) -> float | None: ...

    def clock(self) -> float | None: ...


class NvidiaGpu:
    """The first GPU that NVML knows of. Raises `NoGpu` where there is none, or no package to ask with."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise NoGpu("no package to ask the GPU with: `pip install nvidia-ml-py`") from None
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        except pynvml.NVMLError as error:
            raise NoGpu(f"no NVIDIA GPU is found: {error}") from None

    def facts(self) -> dict[str, Any]:
        """Name, driver, CUDA version, memory in MB, and the most watts that it may take."""
        nvml = self._nvml
        cuda = nvml.nvmlSystemGetCudaDriverVersion()
        return {
            "name": nvml.nvmlDeviceGetName(self._handle),
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "memory_mb": round(nvml.nvmlDeviceGetMemoryInfo(self._handle).total / 1e6),
            "most_watts": self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1e3),
        }

    def busy(self) -> float | None:
        return self._ask(lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100)

    def joules(self) -> float | None:
        return self._ask(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3)

    def watts(self) -> float | None:
        return self._ask(lambda: self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3)

    def memory(self) -> float | None:
        return self._ask(lambda: self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used / 1e6)

    def clock(self) -> float | None:
        sm = self._nvml.NVML_CLOCK_SM
        return self._ask(lambda: float(self._nvml.nvmlDeviceGetClockInfo(self._handle, sm)))

    def _ask(self, question: Any) -> float | None:
        try:
            return float(question())
        except self._nvml.NVMLError:  # not offered by this GPU
            return None


class NoneThere:
    """The GPU of a run on the CPU: tells nothing."""

    def facts(self) -> dict[str, Any]:
        return {}

    def busy(self) -> float | None:
        return None

    joules = watts = memory = clock = busy


class Watch:
    """What one measurement showed. Complete once the block of `watching` has ended.

    `busy` is the mean share of time in which the GPU worked, `joules` what it took, `watts` that over the time,
    `memory` the most MB in use on it, by anybody, `clock` its mean MHz. `cpu` has the cores that each process kept
    busy: 1.0 is one whole core.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.busy: float | None = None
        self.joules: float | None = None
        self.watts: float | None = None
        self.memory: float | None = None
        self.clock: float | None = None
        self.cpu: dict[str, float] = {}


@contextlib.contextmanager
def watching(gpu: Gpu, pids: Mapping[str, int]) -> Iterator[Watch]:
    """Watch the GPU and these processes during a block."""
    watch, sampler = Watch(), _Sampler(gpu)
    before, energy, start = cpu_seconds(pids), gpu.joules(), time.monotonic()
    sampler.start()
    try:
        yield watch
    finally:
        sampler.stop()
        watch.seconds = time.monotonic() - start
        after, energy_after = cpu_seconds(pids), gpu.joules()
        watch.cpu = {name: (after[name] - before[name]) / watch.seconds for name in pids}
        if energy is not None and energy_after is not None:
            watch.joules = energy_after - energy
            watch.watts = watch.joules / watch.seconds
        watch.busy, watch.clock = mean(sampler.busy), mean(sampler.clock)
        watch.memory = max(sampler.memory, default=None)


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """CPU seconds so far of each process with its children, without those children that are named themselves."""
    whole = {}
    for name, pid in pids.items():
        try:
            whole[name] = machine.cpu_seconds(pid)
        except psutil.NoSuchProcess:
            whole[name] = 0.0
    own = dict(whole)
    for name, pid in pids.items():
        for other, child in pids.items():
            if other != name and _is_below(child, pid):
                own[name] -= whole[other]
    return own


def mean(values: list[float]) -> float | None:
    """None of nothing."""
    return sum(values) / len(values) if values else None


def _is_below(pid: int, ancestor: int) -> bool:
    try:
        return any(parent.pid == ancestor for parent in psutil.Process(pid).parents())
    except psutil.NoSuchProcess:
        return False


class _Sampler(threading.Thread):
    """Asks the GPU again and again, in a thread of its own."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(name="gpu-sampler", daemon=True)
        self._gpu = gpu
        self._ended = threading.Event()
        self.busy: list[float] = []
        self.clock: list[float] = []
        self.memory: list[float] = []

    def run(self) -> None:
        stale = time.monotonic() + _STALE
        while not self._ended.wait(PERIOD):
            asked = ((self.busy, self._gpu.busy()), (self.clock, self._gpu.clock()), (self.memory, self._gpu.memory()))
            if time.monotonic() < stale:
                continue
            for kept, value in asked:
                if value is not None:
                    kept.append(value)

    def stop(self) -> None:
        self._ended.set()
        self.join()
