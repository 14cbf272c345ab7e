"""The run: each cell in rounds that take turns, so that what disturbs the machine for a while disturbs both sides."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks import golang
from benchmarks.peers import ground, samples
from benchmarks.v2 import before_triton, cells, rpc, stand

T = TypeVar("T")


@dataclass
class Side:
    """One format, or one way, and its rounds."""

    title: str
    rounds: samples.Rounds = field(default_factory=samples.Rounds)

    def median(self, value: Callable[[stand.Sample], float | None]) -> float | None:
        """Of a figure over the rounds."""
        return self.rounds.median(value)  # type: ignore[arg-type]  # they are all of this kind

    @property
    def rate(self) -> float:
        return self.rounds.median(lambda sample: sample.rate) or 0.0


@dataclass
class DuelOutcome:
    """What a duel came to."""

    duel: cells.Duel
    first: Side
    second: Side

    @property
    def ratio(self) -> float:
        """Requests/s of the second over those of the first."""
        return self.second.rate / self.first.rate if self.first.rate else 0.0


@dataclass
class Outcome:
    """Everything; `absent` says of what was not measured why."""

    duels: list[DuelOutcome] = field(default_factory=list)
    rpc: list[Side] = field(default_factory=list)
    triton: list[before_triton.Outcome] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)


@dataclass
class Run:
    """How to run: for how long, how often, where things are built, whom to tell."""

    cache: pathlib.Path
    seconds: float
    rounds: int
    say: Callable[[str], None]
    cores: ground.Cores = field(default_factory=ground.split_cores)

    def all(self, names: set[str]) -> Outcome:
        """The cells of these names.

        Raises `processes.ChildFailed`, `wrk.WrkFailed`, `stand.WrongAnswers`, `rpc.LoadFailed`,
        `contender.PeerFailed` and `OSError`.
        """
        found = Outcome()
        found.duels = [self.duel(duel) for duel in cells.DUELS if duel.name in names]
        if cells.RPC in names and not (reason := golang.missing()):
            found.rpc = self.rpc()
        elif cells.RPC in names:
            found.absent[cells.RPC] = f"{reason}; its callers and its predictor are in Go"
        if cells.TRITON in names and not (reason := before_triton.missing()):
            found.triton = before_triton.run(self.cache, self.seconds, self.rounds, self.cores, self.say)
        elif cells.TRITON in names:
            found.absent[cells.TRITON] = str(reason)
        return found

    def duel(self, duel: cells.Duel) -> DuelOutcome:
        """Two formats through one sidecar."""
        sent = (duel.first(), duel.second())
        sides = [Side(each.name) for each in sent]
        with self._stand().http([*cells.settings(duel.batch), *duel.flags], duel.stub) as on:
            for each in sent:
                on.check(each, duel.connections)
                on.measure(each, duel.connections, 1.0)  # warm-up
            for number, each, side in self._turns(list(zip(sent, sides, strict=True))):
                self.say(f"{duel.title}: {each.name}, round {number} of {self.rounds}")
                side.rounds.samples.append(on.measure(each, duel.connections, self.seconds))
        return DuelOutcome(duel, *sides)

    def rpc(self) -> list[Side]:
        """Through the sidecar, and straight to the predictor."""
        program = rpc.program(self.cache)
        program.prepare(self.say)
        through, direct = Side("through the sidecar"), Side("straight to the predictor")
        with self._stand().rpc(lambda port: rpc.serve(program.built, port), cells.settings()) as on:
            ways = [(on.grpc_port, through), (on.component_port, direct)]
            for port, _ in ways:
                rpc.measure(program.built, on, 1.0, port)  # warm-up
            for number, port, side in self._turns(ways):
                self.say(f"gRPC {side.title}, round {number} of {self.rounds}")
                side.rounds.samples.append(rpc.measure(program.built, on, self.seconds, port))
        return [through, direct]

    def _stand(self) -> stand.Stand:
        return stand.Stand(self.cores)

    def _turns(self, pairs: Sequence[tuple[T, Side]]) -> Iterator[tuple[int, T, Side]]:
        for number in range(self.rounds):
            for what, side in pairs:
                yield number + 1, what, side
