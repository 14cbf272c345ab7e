"""What small requests suffer while somebody sends large ones.

A prober sends small requests at a fixed pace, whether or not earlier ones are answered, and counts from the moment each
was due. Beside it one client sends large bodies, one after the other. Behind the sidecar is a stub that answers at once
and works on both in slices, so what holds the small ones up is the sidecar.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pathlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Protocol

from benchmarks import bodies, cells, client, heavy, lag_stub, lag_traffic, load, machine, metrics, processes
from benchmarks.peers import ground, kserve, peer, poisson
from tests import loopback

PACE = 200  # small requests/s
MOST_OUTSTANDING = 10_000  # more than a whole run sends: it goes on, however long it stalls
UNDER_WAY = 0.3  # seconds of large bodies before the first small one
QUIET_SECONDS = 3.0
"""After the load, before memory is read: the sidecar gives memory back one to two seconds after the last large body."""
LATE = 0.002  # seconds that the prober itself may be late (99th percentile) before the report says so

_LAG = "carpool_event_loop_lag_seconds"
_MARK = 4321
_PROCESSES = multiprocessing.get_context("spawn")
# Nothing waits for company, and there is a place at the predictor for small batches beside a large one.
_SETTINGS = ("--max-batch-size", str(cells.BATCH), "--max-latency", "0", "--max-in-flight", "8")


@dataclass
class Result:
    """What one scene showed. Times in seconds, memory in MB.

    `lag_p99` is the bound of the histogram's bucket below which 99 % of the loop's `lag_samples` lie (infinite above
    all bounds, None without that metric). `rss_peak_mb` is None where the system does not tell.
    """

    system: str
    scene: cells.Scene
    small: poisson.OpenLoop
    large: heavy.Measurement
    rss_peak_mb: float | None
    rss_after_mb: float
    lag_p99: float | None = None
    lag_samples: int = 0

    @property
    def errors(self) -> dict[str, int]:
        """Of both clients."""
        return dict(Counter(self.small.errors) + Counter(self.large.errors))

    @property
    def has_failed(self) -> bool:
        return bool(self.errors or not self.small.requests or (self.scene.size and not self.large.requests))


@dataclass
class Outcome:
    """All scenes, and who was left out of them, with the reason."""

    results: list[Result] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)


class System(Protocol):
    """A sidecar under test."""

    name: str

    def command(self, port: int, component_port: int, admin_port: int) -> tuple[Sequence[str], str]:
        """What starts it, and the URL that answers 200 once it is ready."""
        ...

    def lag(self, admin_port: int) -> metrics.Buckets:
        """The histogram of its loop's lag so far; empty if it has none."""
        ...


class Carpool:
    """The sidecar of this checkout; `extra` flags win over the scene's."""

    name = "Carpool"

    def __init__(self, extra: Sequence[str]) -> None:
        self._extra = extra

    def command(self, port: int, component_port: int, admin_port: int) -> tuple[Sequence[str], str]:
        arguments = [*_SETTINGS, *self._extra]
        return processes.sidecar_command(port, component_port, admin_port, arguments), processes.ready_url(admin_port)

    def lag(self, admin_port: int) -> metrics.Buckets:
        return metrics.buckets(metrics.page(admin_port), _LAG)


class KServe:
    """KServe's batcher, built on the first use. Raises `OSError` or `subprocess.CalledProcessError` if that fails."""

    name = kserve.PEER.name

    def __init__(self, cache: pathlib.Path, say: Callable[[str], None]) -> None:
        if reason := kserve.PEER.missing():
            raise OSError(reason)
        self._cache = cache
        kserve.PEER.prepare(cache, say)

    def command(self, port: int, component_port: int, admin_port: int) -> tuple[Sequence[str], str]:
        model = peer.Model(fixed_ms=0, per_row_ms=0, max_batch=cells.BATCH, wait_ms=0)
        launch = kserve.PEER.launch(self._cache, model, port, component_port)
        return launch.argv, launch.ready_url

    def lag(self, admin_port: int) -> metrics.Buckets:
        return {}


def run(
    scenes: Sequence[cells.Scene],
    seconds: float,
    extra: Sequence[str],
    cache: pathlib.Path,
    say: Callable[[str], None],
    advance: Callable[[], None],
) -> Outcome:
    """All scenes with each system that can be had here. Raises `processes.ChildFailed`, and `OSError`."""
    found, cores = Outcome(), ground.split_cores()
    systems: list[System] = [Carpool(extra)]
    try:
        systems.append(KServe(cache, say))
    except (OSError, subprocess.CalledProcessError) as error:
        found.absent[KServe.name] = str(error).strip() or "it could not be built"
    for scene in scenes:
        for system in systems if scene.has_peers else systems[:1]:
            say(f"{system.name} beside {scene.title}")
            found.results.append(measure(system, scene, seconds, cores))
            advance()
    return found


def measure(system: System, scene: cells.Scene, seconds: float, cores: ground.Cores) -> Result:
    """One scene with one system, freshly started: its peak is the scene's own."""
    port, component_port, admin_port, rpc_port, component_rpc_port = loopback.free_ports(5)
    address = (processes.HOST, port)
    large = lag_traffic.of(scene) if scene.size else None
    settings = large.settings if large is not None else ()
    if large is not None and large.is_rpc:
        settings = (*settings, "--grpc-port", str(rpc_port), "--component-grpc-port", str(component_rpc_port))
    with contextlib.ExitStack() as stack:
        stand_in = lag_stub.command(sys.executable, component_port, component_rpc_port)
        behind = stack.enter_context(processes.running("stub", stand_in, cores.load))
        behind.wait_until_ready(processes.ready_url(component_port), ground.READY_SECONDS)
        argv, ready_url = system.command(port, component_port, admin_port)
        argv = [*argv, *settings]
        child = stack.enter_context(processes.running(system.name.split()[0].lower(), argv, cores.peer))
        child.wait_until_ready(ready_url, ground.READY_SECONDS)
        before = system.lag(admin_port)
        with machine.pinned(cores.load), _beside(address, rpc_port, scene) as seen:
            small = _probe(address, seconds)
        after = system.lag(admin_port)
        peak = machine.peak_rss_megabytes(child.pid)
        time.sleep(QUIET_SECONDS)
        result = Result(system.name, scene, small, seen[0], peak, machine.rss_megabytes(child.pid))
    result.lag_samples = metrics.count_between(before, after)
    result.lag_p99 = metrics.quantile_between(before, after, 0.99)
    return result


@contextlib.contextmanager
def _beside(address: load.Address, rpc_port: int, scene: cells.Scene) -> Iterator[list[heavy.Measurement]]:
    """The scene's large requests, under way for the length of a `with` block; what came of them, after that.

    They are sent by a process of their own: threads of one Python take turns of up to 5 ms, in which the prober would
    be late.
    """
    seen: list[heavy.Measurement] = []
    if not scene.size:
        yield seen
        seen.append(heavy.Measurement())
        return
    ours, theirs = _PROCESSES.Pipe()
    child = _PROCESSES.Process(target=_send, args=(theirs, address, rpc_port, scene), name="large bodies")
    child.start()
    theirs.close()
    try:
        _hear(ours, scene)
        time.sleep(UNDER_WAY)
        yield seen
        ours.send("enough")
        seen.append(_hear(ours, scene))
    finally:
        ours.close()
        child.join(heavy.PATIENCE)
        child.kill()
        child.join()


def _hear(ours: Connection, scene: cells.Scene) -> heavy.Measurement:
    try:
        told: heavy.Measurement = ours.recv()
    except EOFError:
        raise processes.ChildFailed(f"the client that sends {scene.title} ended too early") from None
    return told


def _send(theirs: Connection, address: load.Address, rpc_port: int, scene: cells.Scene) -> None:
    """The process that sends large requests, until it is told that they are enough."""
    large = lag_traffic.of(scene)
    if large.is_rpc:
        exchange: heavy.Sender = heavy.RpcSender((processes.HOST, rpc_port), large.request, large.is_right)
    else:
        exchange = heavy.Sender(address, large.request, large.is_right)
    with exchange as sender, contextlib.suppress(EOFError):
        theirs.send(heavy.Measurement())  # under way
        theirs.recv()
    with contextlib.suppress(BrokenPipeError):
        theirs.send(sender.measurement())


def _probe(address: load.Address, seconds: float) -> poisson.OpenLoop:
    request = client.post(processes.HOST, lag_traffic.SMALL_PATH, bodies.exact(bodies.SMALLEST, _MARK))
    times = [number / PACE for number in range(round(seconds * PACE))]
    right = [bodies.mark(_MARK)]
    return poisson.run(
        address,
        request,
        times,
        MOST_OUTSTANDING,
        lambda answer: lag_traffic.predictions(answer) == right,
        heavy.PATIENCE,
    )
