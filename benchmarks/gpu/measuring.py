"""One measurement: a system under a load, with the GPU and the CPU watched, as a row of plain values.

Rows are dictionaries of JSON values, so that those of other runs, read from a file, are the same as these. Times are
seconds, rates requests per second of one instance each, energy joules for 1,000 requests, CPU whole cores.
"""

from __future__ import annotations

import http.client
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from benchmarks import load, metrics
from benchmarks.gpu import callers, gauges, systems

Row = dict[str, Any]
Seen = TypeVar("Seen")
WARM_UP = 1.0  # seconds of the same load before anything counts: the policy learns, clocks rise
_ASKING_SECONDS = 60.0


@dataclass(frozen=True)
class Bench:
    """What every section measures with. `say` tells a person what happens; a run lasts `seconds`."""

    gpu: gauges.Gpu
    callers: callers.Callers
    cores: systems.Cores
    device: str
    seconds: float
    warm_up: float
    quick: bool
    say: Callable[[str], None]
    max_batch: int | None = None

    def setup(self, model: systems.Model, precision: str, max_batch: int | None = None) -> systems.Setup:
        """What a system is told: the largest batch is that of the command line, else this one, else the model's."""
        size = self.max_batch or max_batch or model.max_batch
        return systems.Setup(model, self.device, precision, size, self.cores)

    def closed(self, name: str, running: systems.Running, count: int) -> Row:
        """So many callers who wait for their answers."""
        self.callers.closed(running, count, self.warm_up)
        row, watch, measured = self._watched(running, lambda: self.callers.closed(running, count, self.seconds))
        row |= {"system": name, "callers": count, "seconds": measured.seconds, **closed_figures(measured)}
        return self._told(row | per_thousand(watch, measured.requests))

    def poisson(self, name: str, running: systems.Running, rate: float, seed: int) -> Row:
        """A Poisson stream of so many requests a second."""
        self.callers.poisson(running, rate, self.warm_up, seed + 1)
        row, watch, seen = self._watched(running, lambda: self.callers.poisson(running, rate, self.seconds, seed))
        row |= {"system": name, "offered": rate, "seconds": self.seconds, **vars(seen)}
        row["rate"] = seen.requests / self.seconds
        return self._told(row | per_thousand(watch, seen.requests))

    def _watched(self, running: systems.Running, work: Callable[[], Seen]) -> tuple[Row, gauges.Watch, Seen]:
        """Do the work, and what was watched meanwhile as a row."""
        before = _metrics(running)
        with gauges.watching(self.gpu, running.pids) as watch:
            seen = work()
        row: Row = {
            "gpu_busy": watch.busy,
            "gpu_watts": watch.watts,
            "gpu_memory_mb": watch.memory,
            "gpu_mhz": watch.clock,
            "cpu": watch.cpu,
            "mean_batch": metrics.mean_batch_size(before, _metrics(running)) if before else None,
        }
        return row, watch, seen

    def _told(self, row: Row) -> Row:
        load_text = f"{row['callers']} callers" if "callers" in row else f"{row['offered']:,.0f}/s offered"
        batch = f", batches of {row['mean_batch']:.1f}" if row["mean_batch"] else ""
        busy = "" if row["gpu_busy"] is None else f", GPU {row['gpu_busy']:.0%}"
        failed = f"  FAILED: {row['errors']}" if row["errors"] else ""
        rate = "too many waiting" if row.get("is_saturated") else f"{row['rate']:,.0f}/s"
        self.say(
            f"  {row['system']}, {load_text}: {rate}, p50 {row['p50'] * 1e3:.1f} ms, "
            f"p99 {row['p99'] * 1e3:.1f} ms{batch}{busy}{failed}"
        )
        return row


def closed_figures(measured: load.Measurement) -> Row:
    """What callers saw, by the names that an open loop's figures have."""
    return {
        "requests": measured.requests,
        "rate": measured.rate,
        "p50": measured.p50,
        "p99": measured.p99,
        "errors": measured.errors,
    }


def per_thousand(watch: gauges.Watch, requests: int) -> Row:
    """For 1,000 requests: joules of the GPU, None where it does not count them, and CPU seconds of each process."""
    joules = watch.joules / requests * 1000 if watch.joules is not None and requests else None
    used = {name: busy * watch.seconds / requests * 1000 for name, busy in watch.cpu.items()} if requests else {}
    return {"joules_per_1000": joules, "cpu_per_1000": used}


class Agreement(NamedTuple):
    """How far answers are from others: the largest difference of a number, and the least cosine."""

    difference: float
    cosine: float


def agreement(found: Sequence[Sequence[float]], wanted: Sequence[Sequence[float]]) -> Agreement:
    """Of as many vectors. Raises `ValueError` if they differ in number or length."""
    difference, cosine = 0.0, 1.0
    for mine, theirs in zip(found, wanted, strict=True):
        difference = max([difference, *(abs(a - b) for a, b in zip(mine, theirs, strict=True))])
        length = math.sqrt(sum(a * a for a in mine) * sum(b * b for b in theirs))
        cosine = min(cosine, sum(a * b for a, b in zip(mine, theirs, strict=True)) / length if length else 0.0)
    return Agreement(difference, cosine)


class Asker:
    """One connection for requests one after another. Use as a context manager."""

    def __init__(self, running: systems.Running) -> None:
        host, port = running.address
        self._path = running.path
        self._connection = http.client.HTTPConnection(host, port, timeout=_ASKING_SECONDS)

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, body: bytes) -> bytes:
        """The answer to a JSON request. Raises `OSError` for a status that is not 200."""
        self._connection.request("POST", self._path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        read = answer.read()
        if answer.status != 200:
            raise OSError(f"{self._path} was answered {answer.status}: {read[:200]!r}")
        return read

    def times(self, body: bytes, seconds: float, least: int = 10) -> list[float]:
        """Seconds of each request, ascending: for so long, and so many at least."""
        took: list[float] = []
        until = time.perf_counter() + seconds
        while len(took) < least or time.perf_counter() < until:
            begun = time.perf_counter()
            self.ask(body)
            took.append(time.perf_counter() - begun)
        return sorted(took)


def _metrics(running: systems.Running) -> dict[str, float]:
    return {} if running.admin_port is None else metrics.read(running.admin_port)
