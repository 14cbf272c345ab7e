"""The run: everybody prepared, started and checked, and each cell measured in rounds that take turns."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from benchmarks import processes, wrk
from benchmarks.peers import cells, contender, ground, peer, samples

_MARKS = 512  # answers checked behind a sidecar, as many as benchmarks checks
_LARGE, _LARGE_MARKS = 100_000, 16
FAILURES = (contender.PeerFailed, processes.ChildFailed, wrk.WrkFailed, OSError, psutil.Error)


@dataclass
class Comparison:
    """How to run: for how long, how often, where things are, whom to tell."""

    cache: pathlib.Path
    seconds: float
    rounds: int
    cores: ground.Cores
    say: Callable[[str], None]
    advance: Callable[[], None]
    seed: int = 1

    def prepare(self, peers: Sequence[peer.Peer]) -> dict[str, samples.Outcome]:
        """Install whoever can be installed here."""
        outcomes: dict[str, samples.Outcome] = {}
        for each in peers:
            outcome = outcomes[each.name] = samples.Outcome(each.name, each.role)
            outcome.absence = each.missing() or ""
            if outcome.absence:
                continue
            try:
                each.prepare(self.cache, self.say)
                outcome.version = each.version(self.cache)
            except (OSError, LookupError, subprocess.CalledProcessError) as error:
                outcome.absence = f"it could not be prepared: {error}"
        return outcomes

    def servers(self, peers: Sequence[peer.Peer], outcomes: dict[str, samples.Outcome]) -> None:
        """Whole servers, one model after the other: everybody starts, then each cell goes round."""
        for model, group in cells.by_model(cells.SERVER_CELLS) if peers else ():
            with contextlib.ExitStack() as stack:
                running = self._start_all(stack, peers, outcomes, model, None)
                for cell in group:
                    self._rounds(cell, running, outcomes)

    def sidecars(self, peers: Sequence[peer.Peer], outcomes: dict[str, samples.Outcome]) -> None:
        """Sidecars, all in front of the same predictor. Where it costs nothing, a stub stands in for it: Carpool's
        own predictor would be the limit."""
        for model, group in cells.by_model(cells.SIDECAR_CELLS) if peers else ():
            as_stub = model.limit == float("inf")
            if as_stub:
                self._check_echo(peers, outcomes, model)
            with contextlib.ExitStack() as stack:
                port = stack.enter_context(ground.predictor(model, self.cores.load, as_stub))
                behind = ground.Behind(port, as_stub)
                running = self._start_all(stack, peers, outcomes, model, behind)
                for cell in group:
                    self._rounds(cell, running, outcomes)

    def _check_echo(self, peers: Sequence[peer.Peer], outcomes: dict[str, samples.Outcome], model: peer.Model) -> None:
        """Each sidecar in front of a predictor that gives whole rows back, which the stub does not."""
        with contextlib.ExitStack() as stack:
            port = stack.enter_context(ground.predictor(model, self.cores.load))
            self._start_all(stack, peers, outcomes, model, ground.Behind(port, is_stub=False))

    def _start_all(
        self,
        stack: contextlib.ExitStack,
        peers: Sequence[peer.Peer],
        outcomes: dict[str, samples.Outcome],
        model: peer.Model,
        behind: ground.Behind | None,
    ) -> list[contender.Contender]:
        """Those that start and answer; they are left asleep."""
        running: list[contender.Contender] = []
        for each in peers:
            outcome = outcomes[each.name]
            if outcome.absence:
                continue
            self.say(f"starting {each.name}")
            try:
                started = contender.Contender(each, self.cache, model, self.cores, behind)
                stack.enter_context(started)
                with started.awake():
                    trouble = started.warm_up()
            except FAILURES as error:
                outcome.absence = f"it did not start: {explain(error)}"
            else:
                running.append(started)
                outcome.trouble = trouble or outcome.trouble
        return running

    def _rounds(
        self, cell: cells.Cell, running: Sequence[contender.Contender], outcomes: dict[str, samples.Outcome]
    ) -> None:
        """A B A B: what disturbs the machine for a while disturbs everybody."""
        self.say(f"measuring: {cell.title}")
        for number in range(self.rounds):
            for each in running:
                outcome = outcomes[each.entrant.name]
                rounds = outcome.rounds(cell.name)
                if not (rounds.is_over or is_hopeless(cell, outcome)):
                    self._round(cell, each, rounds, number)
                self.advance()

    def _round(self, cell: cells.Cell, each: contender.Contender, rounds: samples.Rounds, number: int) -> None:
        """One peer's turn. What goes wrong is written down, and costs nobody else theirs."""
        try:
            with each.awake():
                if cell.size is not None and number == 0:
                    each.check_marks(cell.size, _MARKS if cell.size < _LARGE else _LARGE_MARKS)
                each.ask()
                rounds.samples.append(each.measure(cell, self.seconds * cell.longer, self.seed + number))
        except FAILURES as error:
            rounds.failures.append(explain(error))
            rounds.is_over = isinstance(error, contender.AnsweredWrong) or len(rounds.failures) > 1


def is_hopeless(cell: cells.Cell, outcome: samples.Outcome) -> bool:
    """Whether a lower load was too much already."""
    lower = [other.name for other in cells.OPEN if cell.load and other.load and other.load < cell.load]
    return any(outcome.cells[name].is_saturated for name in lower if name in outcome.cells)


def explain(error: Exception) -> str:
    """What went wrong, with the last line of the log if there is one."""
    last = str(getattr(error, "log", "")).strip().rpartition("\n")[2]
    return f"{error} ({last})" if last else str(error)
