"""The sidecar in front of Triton without its dynamic batcher, against Triton with it: same model, same binary.

Each system has one core for all its processes, the load the other. All are up at once and take turns. The sidecar's
policy and Triton's queue delay are tried in more than one setting; the best of each side is what counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import processes
from benchmarks.peers import carpool, contender, ground, peer, samples, triton
from benchmarks.peers import cells as peer_cells
from benchmarks.v2 import cells
from tests import loopback

DELAYS_MS = (0.0, 1.0, 5.0)
"""What Triton's batches wait for company; its guide says to try and see."""

CLOSED = peer_cells.Cell("closed", "64 callers", cells.TRITON_MODEL)


@dataclass(frozen=True)
class System:
    """One of the two sides. `policy` is the flags of a sidecar in front, None without one."""

    name: str
    model: peer.Model
    policy: tuple[str, ...] | None = None


def systems() -> list[System]:
    """All that take part."""
    model, batch = cells.TRITON_MODEL, str(cells.TRITON_MODEL.max_batch)
    alone = [System(f"Triton, delay {ms:g} ms", dataclasses.replace(model, wait_ms=ms)) for ms in DELAYS_MS]
    window = ("--policy", "window", "--max-batch-size", batch, "--max-latency", "5", "--max-in-flight", "2")
    adaptive = ("--policy", "adaptive", "--max-batch-size", batch)
    return [
        *alone,
        System("Carpool adaptive + Triton", model, adaptive),
        System("Carpool window + Triton", model, window),
    ]


class Sidecar:
    """A `peer.Peer`: the sidecar, as it is asked in front of Triton."""

    role = peer.SERVER

    def __init__(self, name: str, flags: Sequence[str]) -> None:
        self.name = name
        self._flags = flags

    def missing(self) -> str | None:
        return triton.PEER.missing()

    def prepare(self, cache: pathlib.Path, say: Callable[[str], None]) -> None:
        triton.PEER.prepare(cache, say)

    def version(self, cache: pathlib.Path) -> str:
        return carpool.SIDECAR.version(cache)

    def launch(self, cache: pathlib.Path, model: peer.Model, port: int, component_port: int) -> peer.Launch:
        (admin_port,) = loopback.free_ports(1)
        asked = triton.PEER.launch(cache, model, port, component_port)
        return dataclasses.replace(
            asked,
            argv=processes.sidecar_command(port, component_port, admin_port, self._flags),
            env={},
            ready_url=processes.ready_url(admin_port),
            needs_predictor=True,
        )


class Fronted(contender.Contender):
    """A sidecar and the Triton behind it, which has no batcher, on one core."""

    def _start_predictor(self, stack: contextlib.ExitStack) -> None:
        launch = triton.ALONE.launch(self._cache, self._model, self._component_port, 0)
        self._run(stack, "triton", contender.command(launch), launch.ready_url)


@dataclass
class Outcome:
    """What a system did in both cells; `offered` is the open loop's requests/s."""

    system: System
    closed: samples.Rounds
    open: samples.Rounds
    offered: float = 0.0


def missing() -> str | None:
    """Why this cannot be measured here; None if it can."""
    return triton.PEER.missing()


def run(
    cache: pathlib.Path, seconds: float, rounds: int, cores: ground.Cores, say: Callable[[str], None]
) -> list[Outcome]:
    """Both cells, in rounds that take turns.

    Raises `OSError` when Triton cannot be installed, `processes.ChildFailed` when something does not start, and
    `contender.PeerFailed` when it answers nothing, or wrong.
    """
    triton.PEER.prepare(cache, say)
    with contextlib.ExitStack() as stack:
        outcomes, running = [], []
        for system in systems():
            say(f"starting {system.name}")
            started = stack.enter_context(_contender(system, cache, cores))
            with started.awake():
                started.warm_up()
            running.append(started)
            outcomes.append(Outcome(system, samples.Rounds(), samples.Rounds()))
        _take_turns(running, [each.closed for each in outcomes], CLOSED, seconds, rounds, say)
        rates = {each.system.name: each.closed.median(lambda sample: sample.rate) or 0.0 for each in outcomes}
        share = cells.TRITON_LOAD * lower(rates) / cells.TRITON_MODEL.limit
        offered = peer_cells.Cell("open", f"{cells.TRITON_LOAD:.0%} load", cells.TRITON_MODEL, share)
        _take_turns(running, [each.open for each in outcomes], offered, seconds, rounds, say)
    for each in outcomes:
        each.offered = offered.offered
    return outcomes


def lower(rates: dict[str, float]) -> float:
    """The capacity of the side that has less, each at its best."""
    fronted = [rates[each.name] for each in systems() if each.policy is not None]
    return min(max(fronted), max(rates[each.name] for each in systems() if each.policy is None))


def _contender(system: System, cache: pathlib.Path, cores: ground.Cores) -> contender.Contender:
    if system.policy is None:
        return contender.Contender(triton.PEER, cache, system.model, cores)
    return Fronted(Sidecar(system.name, system.policy), cache, system.model, cores)


def _take_turns(
    running: Sequence[contender.Contender],
    found: Sequence[samples.Rounds],
    cell: peer_cells.Cell,
    seconds: float,
    rounds: int,
    say: Callable[[str], None],
) -> None:
    """A B A B: what disturbs the machine for a while disturbs everybody."""
    for number in range(rounds):
        for each, kept in zip(running, found, strict=True):
            say(f"{each.entrant.name}: {cell.title}, round {number + 1} of {rounds}")
            with each.awake():
                each.ask()
                kept.samples.append(each.measure(cell, seconds, seed=number + 1))
