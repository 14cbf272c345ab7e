"""The test stand: predictor and sidecar on their cores, and the measuring of one cell.

Between cells only what differs is restarted, so the sidecar that idles at the end has been through all body sizes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from dataclasses import dataclass

import uvloop

from benchmarks import bodies, cells, client, load, machine, metrics, mix, processes, wrk
from carpool_sidecar.planning import engine
from tests import loopback

PATH = "/v1/models/echo:predict"
READY_SECONDS = 60.0
LEARNING_SECONDS = 1.0
"""How long the adaptive policy learns, under the load of its cell, before anything is counted."""


@dataclass
class Result:
    """What one cell measured. CPU in seconds, `busy` in shares of one core, memory in MB.

    `others_busy` is what everything but the sidecar took of its core: a large share means a disturbed run.
    `simulated` is what the simulator says of the same cell, if it was asked.
    """

    cell: cells.Cell
    measured: load.Measurement
    wrong_answers: int
    mean_batch: float | None = None
    sidecar_cpu_per_1000: float | None = None
    sidecar_busy: float | None = None
    predictor_busy: float | None = None
    sidecar_rss_mb: float | None = None
    others_busy: float | None = None
    simulated: engine.Summary | None = None

    @property
    def has_failed(self) -> bool:
        return bool(self.measured.errors or self.wrong_answers or not self.measured.requests)

    @property
    def of_simulated(self) -> float | None:
        """Measured over simulated requests per second; None without a simulation."""
        return self.measured.rate / self.simulated.throughput if self.simulated else None


@dataclass
class Idle:
    """The sidecar without load: share of a core, and memory in MB after all that went before."""

    seconds: float
    busy: float
    rss_mb: float


class Stand:
    """Use as a context manager; everything it started is stopped at the end.

    `extra` are more flags of the sidecar. With `sampled`, which needs wrk, all requests are traced, see `wrk.measure`.
    """

    def __init__(self, generator: str, extra: list[str], sampled: int | None = None) -> None:
        cores = machine.split_cores()
        self._cores = {"predictor": cores[0], "sidecar": cores[1]} if cores else {}
        self._generator = generator
        self._extra = extra
        self._sampled = sampled
        self._port, self._component_port, self._admin_port = loopback.free_ports(3)
        # What runs now, and the flags it was started with.
        self._predictor: processes.Child | None = None
        self._sidecar: processes.Child | None = None
        self._flags: dict[str, object] = {}
        self._stacks = {"predictor": contextlib.ExitStack(), "sidecar": contextlib.ExitStack()}

    def __enter__(self) -> Stand:
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("sidecar", "predictor"):
            self._stacks[name].close()

    def measure(self, cell: cells.Cell, seconds: float) -> Result:
        """Check the answers of a cell, then load it. Raises `processes.ChildFailed` and `wrk.WrkFailed`."""
        self._prepare(cell)
        wrong = self._check(cell)
        if cell.system is not None:
            self._load(cell, LEARNING_SECONDS)
        neighbours = self._neighbours()
        before, start = self._reading(cell), time.monotonic()
        measured = _with_refusals(cell, self._load(cell, seconds))
        after, elapsed = self._reading(cell), time.monotonic() - start
        result = Result(cell, measured, wrong)
        result.predictor_busy = (after["predictor"] - before["predictor"]) / elapsed
        if self._sidecar is not None and cell.sidecar is not None:
            used = after["sidecar"] - before["sidecar"]
            result.sidecar_busy = used / elapsed
            result.sidecar_cpu_per_1000 = used / measured.requests * 1000 if measured.requests else None
            result.others_busy = neighbours.share() if neighbours else None
            result.mean_batch = metrics.mean_batch_size(before, after)
            result.sidecar_rss_mb = machine.rss_megabytes(self._sidecar.pid)
        return result

    def idle(self, cell: cells.Cell, seconds: float) -> Idle:
        """Leave the sidecar alone for a while. `cell` says how to start it if it does not run yet."""
        if self._sidecar is None:
            self._prepare(cell)
        assert self._sidecar is not None
        time.sleep(1.0)  # the last of the connections' ends
        before, start = machine.cpu_seconds(self._sidecar.pid), time.monotonic()
        time.sleep(seconds)
        used, elapsed = machine.cpu_seconds(self._sidecar.pid) - before, time.monotonic() - start
        return Idle(elapsed, used / elapsed, machine.rss_megabytes(self._sidecar.pid))

    def _prepare(self, cell: cells.Cell) -> None:
        arguments = cell.predictor_arguments
        if self._flags.get("predictor") != arguments:
            command = processes.predictor_command(self._component_port, arguments)
            self._predictor = self._start("predictor", command, self._component_port)
            self._flags["predictor"] = arguments
        # What the adaptive policy learned in another cell must not help or harm it in this one.
        is_stale = cell.system is not None or self._flags.get("sidecar") != cell.sidecar
        if cell.sidecar is not None and is_stale:
            ports = (self._port, self._component_port, self._admin_port)
            command = processes.sidecar_command(*ports, [*cell.sidecar, *self._extra])
            self._sidecar = self._start("sidecar", command, self._admin_port)
            self._flags["sidecar"] = cell.sidecar
        if cell.sidecar is not None and self._sidecar is not None:
            self._sidecar.wait_until_ready(processes.ready_url(self._admin_port), READY_SECONDS)

    def _start(self, name: str, command: list[str], port: int) -> processes.Child:
        self._stacks[name].close()
        child = self._stacks[name].enter_context(processes.running(name, command, self._cores.get(name)))
        child.wait_until_ready(processes.ready_url(port), READY_SECONDS)
        return child

    def _reading(self, cell: cells.Cell) -> dict[str, float]:
        """CPU seconds of both, and the sidecar's metrics."""
        assert self._predictor is not None
        found = {"predictor": machine.cpu_seconds(self._predictor.pid)}
        if cell.sidecar is not None and self._sidecar is not None:
            found |= metrics.read(self._admin_port)
            found["sidecar"] = machine.cpu_seconds(self._sidecar.pid)
        return found

    def _neighbours(self) -> machine.Neighbours | None:
        """Whoever else works on the sidecar's core."""
        if self._sidecar is None or not self._cores:
            return None
        return machine.Neighbours([self._sidecar.pid], self._cores["sidecar"])

    def _address(self, cell: cells.Cell) -> load.Address:
        return (processes.HOST, self._component_port if cell.sidecar is None else self._port)

    def _load(self, cell: cells.Cell, seconds: float) -> load.Measurement:
        host, port = self._address(cell)
        body = bodies.exact(cell.size)
        mixed = [] if cell.mix is None else mix.requests(cell.mix, host, PATH, cell.size)
        if self._generator == "wrk":
            url = f"http://{host}:{port}{PATH}"
            cores = self._cores.get(cell.load_beside)
            return wrk.measure(url, body, cell.connections, seconds, cores, sampled=self._sampled, prepared=mixed)
        requests = itertools.cycle(mixed or [client.post(host, PATH, body)])
        with machine.pinned(self._cores.get(cell.load_beside)):
            return uvloop.run(load.closed_loop((host, port), requests, cell.connections, seconds))

    def _check(self, cell: cells.Cell) -> int:
        """Send distinct instances from all connections at once; the number of answers that were not one's own."""
        distinct = [bodies.distinct(cell.size, number) for number in range(bodies.check_count(cell.size))]
        wrong = bodies.Check(cell.answer, distinct)
        requests = [client.post(processes.HOST, PATH, body) for body in distinct]
        with machine.pinned(self._cores.get(cell.load_beside)):
            run = load.closed_loop(self._address(cell), requests, cell.connections, on_answer=wrong.look_at)
            uvloop.run(run)
        return wrong.count


def _with_refusals(cell: cells.Cell, measured: load.Measurement) -> load.Measurement:
    """The same, with the refusals that a mix asks for among the answers; if there are others, none counts as one."""
    if cell.mix is None:
        return measured
    refused = sum(measured.errors.get(kind, 0) for kind in ("status", "status 400"))
    total = measured.requests + refused
    expected = mix.refused(cell.mix, total)
    if not 0.9 * expected <= refused <= 1.1 * expected:
        return measured
    errors = {kind: count for kind, count in measured.errors.items() if kind not in ("status", "status 400")}
    return dataclasses.replace(measured, requests=total, errors=errors)
