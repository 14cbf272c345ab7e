"""The comparison: each system tuned by a small sweep, then all of them up at once and measured in turns.

A sweep starts all settings of one peer together, asks each in turn with the same callers, and keeps the one with the
most requests/s. The systems that are left are then measured in rounds, A B A B, at each number of callers, so that what
disturbs the machine or the GPU for a while disturbs everybody. Whoever waits for his turn computes nothing.

Before anything counts, every system answers every sentence once from many callers at the same time, and each answer is
compared with the one that Carpool's predictor gives to that sentence alone. A wrong one ends it for that system.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Sequence
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import uvloop

from benchmarks import client, load, processes, wrk
from benchmarks.gpu import buys, measuring, systems
from benchmarks.gpu.peers import contenders

CALLERS = (128, 512, 32, 1)  # the most telling first, should time run out
QUICK_CALLERS = (1, 32)
AT = 128  # callers for whom settings are chosen
QUICK_AT = 32
ROUNDS = 2
SIZES = (32, 64, 128)
QUICK_SIZES = (32,)
WAITS = (1.0, 5.0)  # milliseconds
FRONTS = 4  # processes in front of the model, where there may be several
SWEEP_SECONDS = 1.0  # of a run of one setting
_CHECKING = 64  # callers while answers are compared
_CHECKING_SECONDS = 10.0  # for all to be asked; a server that does not answer is waited for a minute longer
_REFERENCE: systems.System = systems.Alone()


class AnsweredWrong(Exception):
    """A system's answers are not the model's; `str()` says how far off they are."""


FAILURES = (AnsweredWrong, processes.ChildFailed, wrk.WrkFailed, OSError, ValueError)


@dataclass(frozen=True)
class Candidate:
    """A system as it is set, in words, and what it is told."""

    system: systems.System
    setup: systems.Setup
    words: str


@dataclass
class Entrant:
    """One system in all its settings. `absence` says why it is left out, empty while it takes part."""

    name: str
    version: str
    candidates: list[Candidate]
    absence: str = ""
    sweep: list[dict[str, Any]] = field(default_factory=list)

    @property
    def chosen(self) -> Candidate:
        """The one that was best in the sweep; the first without one."""
        best = max(self.sweep, key=lambda row: float(row["rate"]), default=None)
        return next((each for each in self.candidates if best and each.words == best["setting"]), self.candidates[0])


def entrants(bench: measuring.Bench, model: systems.Model, precision: str, place: contenders.Place) -> list[Entrant]:
    """Everybody, Carpool first. Those that cannot be had here say why."""
    sizes = QUICK_SIZES if bench.quick else SIZES

    def setup(size: int) -> systems.Setup:
        return bench.setup(model, precision, size)

    size = sizes[-1]  # Carpool is told the largest and no more
    alone = systems.Alone("carpool-predictor alone", ("--max-batch-size", str(size)))
    found = [
        Entrant(each.name, "", [Candidate(each, setup(size), f"{size}, learned wait")])
        for each in (systems.Sidecar("Carpool sidecar"), alone)
    ]
    for peer in contenders.all_of(place):
        candidates = [Candidate(peer.tuned(each), setup(each.max_batch), str(each)) for each in tunings(peer, sizes)]
        found.append(Entrant(peer.name, peer.version, candidates, peer.missing(setup(sizes[0])) or ""))
    return found


def tunings(peer: contenders.Peer, sizes: Sequence[int]) -> list[contenders.Tuning]:
    """What is tried: each size with the shortest wait, the largest with a longer one, and with more front ends."""
    if peer.learns_to_wait:
        return [contenders.Tuning(size, None) for size in sizes]
    found = [contenders.Tuning(size, WAITS[0]) for size in sizes]
    if len(sizes) > 1:
        found += [contenders.Tuning(sizes[-1], wait) for wait in WAITS[1:]]
        found += [contenders.Tuning(sizes[-1], WAITS[0], FRONTS)] if peer.has_fronts else []
    return found


def seconds(bench: measuring.Bench, taking_part: Sequence[Entrant], rounds: int) -> float:
    """About how long `measure` takes."""
    one, swept = _turn(bench), _turn(dataclasses.replace(bench, seconds=SWEEP_SECONDS))
    sweeps = sum(15 + len(each.candidates) * swept for each in taking_part if len(each.candidates) > 1)
    return (
        sweeps
        + 12 * (1 + len(taking_part))
        + len(taking_part) * rounds * len(QUICK_CALLERS if bench.quick else CALLERS) * one
    )


def _turn(bench: measuring.Bench) -> float:
    """About how long one run of one system takes."""
    return bench.seconds + bench.warm_up + 0.5


def measure(
    bench: measuring.Bench,
    model: systems.Model,
    precision: str,
    field_: Sequence[Entrant],
    rounds: int = ROUNDS,
    reference: systems.System = _REFERENCE,
    until: float = math.inf,
) -> dict[str, Any]:
    """The rows of all rounds, and of each system what was chosen or why it is left out. `reference` answers right.

    Rounds that would not be over at `until`, by the monotonic clock, are left out, which is told.
    """
    rows: list[measuring.Row] = []
    right = _right_answers(bench, reference, bench.setup(model, precision))
    for entrant in field_:
        if not entrant.absence and len(entrant.candidates) > 1:
            _sweep(bench, entrant, right)
    with contextlib.ExitStack() as stack:
        running: dict[str, systems.Running] = {}
        present = [each for each in field_ if not each.absence]
        for entrant, begun in zip(present, _start(stack, [each.chosen for each in present]), strict=True):
            if isinstance(begun, Exception):
                entrant.absence = _explained(begun)
            elif problem := _problem(begun, right):
                entrant.absence = problem
            else:
                running[entrant.name] = begun
        for count, _ in itertools.product(QUICK_CALLERS if bench.quick else CALLERS, range(rounds)):
            if time.monotonic() + len(running) * _turn(bench) > until:
                bench.say(f"time is up: {count} callers are left out")
                continue
            for name, each in list(running.items()):
                try:
                    rows.append(bench.closed(name, each, count))
                except FAILURES as error:  # it is out, and costs nobody else theirs
                    next(one for one in present if one.name == name).absence = _explained(error)
                    del running[name]
    told = [
        {"name": each.name, "version": each.version, "setting": each.chosen.words, "absence": each.absence}
        | {"sweep": each.sweep}
        for each in field_
    ]
    return {"model": model.name, "precision": precision, "systems": told, "rows": rows}


def _sweep(bench: measuring.Bench, entrant: Entrant, right: Sequence[Sequence[float]]) -> None:
    """All settings of one system, one after the other under the same load; the failures of all end it."""
    bench.say(f"{entrant.name}: {len(entrant.candidates)} settings")
    bench = dataclasses.replace(bench, seconds=SWEEP_SECONDS)
    problem, at_once = "", bench.cores.is_pinned  # where there are cores for that
    with contextlib.ExitStack() as stack:
        for candidate, begun in zip(entrant.candidates, _start(stack, entrant.candidates, at_once), strict=True):
            if isinstance(begun, Exception):
                problem = _explained(begun)
            elif not (problem := _problem(begun, right)):
                try:
                    row = bench.closed(f"{entrant.name} ({candidate.words})", begun, QUICK_AT if bench.quick else AT)
                except FAILURES as error:
                    problem = _explained(error)
                else:
                    problem = ", ".join(f"{count} x {what}" for what, count in row["errors"].items())
                    entrant.sweep += [] if problem else [row | {"setting": candidate.words}]
    if not entrant.sweep:
        entrant.absence = problem
    if problem:
        bench.say(f"{entrant.name}: {problem}")


def _start(
    stack: contextlib.ExitStack, candidates: Sequence[Candidate], at_once: bool = False
) -> list[systems.Running | Exception]:
    """All of them; what did not start is its exception.

    One by one, as a model measures its passes while it warms up, and would find a GPU that others use. Those who start
    `at_once` do so as settings of one system, and are disturbed alike.
    """

    def start(candidate: Candidate) -> systems.Running | Exception:
        try:
            return stack.enter_context(candidate.system.running(candidate.setup))
        except FAILURES as error:
            return error

    with futures.ThreadPoolExecutor(len(candidates) if at_once else 1) as pool:
        return list(pool.map(start, candidates))


def _right_answers(bench: measuring.Bench, reference: systems.System, setup: systems.Setup) -> list[list[float]]:
    """To each sentence, asked one by one."""
    bench.say("the right answers")
    with reference.running(setup) as running, measuring.Asker(running) as asker:
        return [running.numbers(asker.ask(body)) for body in running.bodies]


def _problem(running: systems.Running, right: Sequence[Sequence[float]]) -> str:
    """What is wrong with its answers to many callers at once; empty if nothing is."""
    try:
        check(running, right)
    except FAILURES as error:
        return _explained(error)
    return ""


def check(running: systems.Running, right: Sequence[Sequence[float]]) -> None:
    """Ask for everything once, from many callers. Raises `AnsweredWrong` unless each answer is the caller's own."""
    answers: dict[int, bytes] = {}

    def keep(number: int, status: int, answer: bytes) -> None:
        if status == 200:
            answers[number] = answer

    host, _ = running.address
    requests = [client.post(host, running.path, body) for body in running.bodies]
    callers = min(_CHECKING, len(requests))
    uvloop.run(load.closed_loop(running.address, requests, callers, _CHECKING_SECONDS, on_answer=keep))
    if len(answers) < len(requests):
        raise AnsweredWrong(f"{len(requests) - len(answers)} of {len(requests)} requests got no answer")
    found = [running.numbers(answers[number]) for number in range(len(requests))]
    least = min(measuring.agreement([mine], [theirs]).cosine for mine, theirs in zip(found, right, strict=True))
    # Rounding of another batch's, in the coarsest precision there is.
    if least < min(buys.LEAST_COSINE.values()):
        raise AnsweredWrong(f"an answer differs from that to the same sentence alone (cosine {least:.4f})")


def medians(rows: Sequence[measuring.Row], name: str, count: int) -> dict[str, float | None]:
    """Over the rounds of one system at so many callers; None where nothing told. {} if it was not measured."""
    mine = [row for row in rows if (row["system"], row["callers"]) == (name, count)]
    if not mine:
        return {}

    def middle(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    found = {key: middle([row[key] for row in mine]) for key in ("rate", "p50", "p99", "gpu_busy", "joules_per_1000")}
    return found | {"cores": middle([sum(row["cpu"].values()) for row in mine])}


def _explained(error: Exception) -> str:
    """What went wrong, with the last line of the log if there is one."""
    last = str(getattr(error, "log", "")).strip().rpartition("\n")[2]
    return f"{error} ({last})" if last else str(error) or type(error).__name__
