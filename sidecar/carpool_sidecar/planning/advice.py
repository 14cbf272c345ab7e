"""Which settings would have served the recorded requests best: the present ones, and others beside them.

One thing is changed at a time, so that each line tells what it alone would have done; then the best change of the batch
size and the best change of the policy are tried together. Other numbers of pods are tried with the present settings and
with the best ones. What is advised has to be better by more than chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from carpool_sidecar.planning import fitting, recorded, replay
from carpool_sidecar.recording import document

MOST = 30_000
"""Requests that are replayed, the latest."""

LEAST = 200
"""Fewer say nothing."""

LATENCIES = (0.0, 5.0, 20.0)  # milliseconds of the window policy
NOTICEABLE = 0.05  # a mean that is shorter by less is no reason to change anything
CLEAR = 0.001  # nor is a share that is larger by less
FAR = 0.25  # a replay that is so far from what was measured is no guide

_BEYOND = 4  # times the largest batch seen: what larger ones take is not guessed at


class Case(NamedTuple):
    """A replay: `changes` are the settings that differ from the present ones, by name, in the sidecar's units."""

    label: str
    changes: dict[str, Any]
    pods: int
    figures: replay.Figures


class Difference(NamedTuple):
    """A figure of the present settings: as it was measured, and as the replay has it. Seconds, instances, a share."""

    name: str
    measured: float
    replayed: float

    @property
    def relative(self) -> float:
        """How far off the replay is, as a share of what was measured; 0 if both are nothing."""
        if self.measured == self.replayed:
            return 0.0
        return (self.replayed - self.measured) / self.measured if self.measured else math.inf


class Advice(NamedTuple):
    """All cases, the present one first, and the one to take, which may be that. `slo` is None where none is given.

    `off` is how far the replay of the present settings is from what was measured: the larger difference of batch sizes
    and times. `notes` say what else to bear in mind.
    """

    setting: document.Setting
    slo: float | None
    share: float
    model: fitting.Model
    arrivals: recorded.Arrivals
    measured: replay.Measured
    cases: Sequence[Case]
    best: Case
    differences: Sequence[Difference]
    off: float
    notes: Sequence[str]


Progress = Callable[[str], None]
"""Hears of each replay before it starts."""


def advise(
    recording: document.Recording,
    slo: float | None = None,
    pods: int = 1,
    share: float = 0.99,
    tell: Progress = lambda label: None,
    most: int = MOST,
) -> Advice:
    """Replay what came under the settings in force. `slo` is seconds; without it shorter times are better.

    `pods` is how many pods had their part of the load. Raises `replay.Nothing` if too little was recorded.
    """
    blocks = recorded.latest(recording.present, most)
    count = sum(len(block.at) for block in blocks)
    if count < LEAST:
        raise replay.Nothing(
            f"{count} requests were recorded under the settings in force, and fewer than {LEAST} say nothing"
        )
    arrivals, model = recorded.arrivals(blocks), fitting.model(recording, blocks, tell=tell)
    setting = recording.head.settings
    objective = math.inf if slo is None else slo

    def case(label: str, changes: dict[str, Any], count: int = pods) -> Case:
        tell(label)
        changes = {name: value for name, value in changes.items() if getattr(setting, name) != value}
        changed = document.changed(setting, changes)
        factor = pods / count
        return Case(
            label, changes, count, replay.replay(changed, model.predictor, arrivals, objective, factor, model.own)
        )

    present = case("as it is", {})
    sizes = [case(*each) for each in _sizes(setting, model)]
    policies = [case(*each) for each in _policies(setting, model, slo)]
    best_size, best_policy = _best([present, *sizes], slo), _best([present, *policies], slo)
    cases = [present, *sizes, *policies]
    if best_size is not present and best_policy is not present:
        both = case(f"{best_size.label}; {best_policy.label}", best_size.changes | best_policy.changes)
        cases.append(both)
    best = _best(cases, slo)
    for number in _pods(pods):
        cases.append(case(_on(number), {}, number))
        if best is not present:
            cases.append(case(f"{_on(number)}; {best.label}", best.changes, number))
    measured = replay.measured(blocks, arrivals)
    differences = _differences(measured, present.figures)
    off = max(abs(each.relative) for each in differences[:2])
    notes = list(_notes(recording, model, arrivals, setting))
    return Advice(setting, slo, share, model, arrivals, measured, cases, best, differences, off, notes)


def enough(found: Advice) -> Case | None:
    """The case with the fewest pods that keeps the objective, with the best settings if they do; None if none does."""
    if found.slo is None:
        return None
    kept = [case for case in found.cases if case.figures.in_time >= found.share]
    return min(kept, key=lambda case: (case.pods, case.changes != found.best.changes), default=None)


# --- what is tried --------------------------------------------------------------------------------------------------

_Try = tuple[str, dict[str, Any]]


def _sizes(setting: document.Setting, model: fitting.Model) -> Iterator[_Try]:
    size = setting.max_batch_size
    yield from (("no batching", {"max_batch_size": 1, "allowed_batch_sizes": ()}) for _ in range(size > 1))
    if setting.allowed_batch_sizes:
        return  # the sizes that the predictor computes with are its own affair
    for other in (size // 2, size * 2, size * 4):
        if 1 < other <= max(size, _BEYOND * model.largest):
            yield f"max batch size {other}", {"max_batch_size": other}


def _policies(setting: document.Setting, model: fitting.Model, slo: float | None) -> Iterator[_Try]:
    is_adaptive = setting.policy == "adaptive"
    if not is_adaptive:
        yield "adaptive", {"policy": "adaptive", "max_latency": None, "max_in_flight": None}
    if setting.max_in_flight is not None:
        yield "in flight as learned", {"max_in_flight": None}
    if slo is not None and setting.slo != slo * 1000:
        told: dict[str, Any] = {"slo": slo * 1000}
        if not is_adaptive:
            told = {"policy": "adaptive", **told, "max_latency": None, "max_in_flight": None}
        yield "adaptive, told the objective", told
    for latency in LATENCIES:
        if is_adaptive or setting.max_latency != latency:
            changes: dict[str, Any] = {"max_latency": latency}
            if is_adaptive:
                changes = {"policy": "window", **changes, "max_in_flight": None}
            yield f"window of {latency:g} ms", changes


def _pods(pods: int) -> Iterable[int]:
    return sorted({math.ceil(pods / 2), max(1, pods - 1), pods + 1, pods * 2} - {pods})


def _on(pods: int) -> str:
    return f"{pods:,} pod" if pods == 1 else f"{pods:,} pods"


# --- what is better -------------------------------------------------------------------------------------------------


def _best(cases: Sequence[Case], slo: float | None) -> Case:
    """The best of those that are clearly better than the first; else the first."""
    present = cases[0]
    better = [case for case in cases[1:] if _is_better(case.figures, present.figures, slo)]
    if slo is None:
        return min(better, key=lambda case: (round(case.figures.refused, 3), case.figures.mean), default=present)
    return max(
        better,
        key=lambda case: (round(case.figures.in_time, 3), -len(case.changes), -case.figures.mean),
        default=present,
    )


def _is_better(one: replay.Figures, other: replay.Figures, slo: float | None) -> bool:
    if slo is not None:
        return one.in_time - other.in_time > max(CLEAR, one.margin)
    if abs(one.refused - other.refused) > CLEAR:
        return one.refused < other.refused
    return one.mean < (1 - NOTICEABLE) * other.mean


# --- how far to trust it --------------------------------------------------------------------------------------------


def _differences(measured: replay.Measured, replayed: replay.Figures) -> list[Difference]:
    return [
        Difference("mean batch", measured.mean_batch, replayed.mean_batch),
        Difference("mean time", measured.everybody.mean, replayed.everybody.mean),
        Difference("mean wait", measured.wait, replayed.wait),
        Difference("p99", measured.everybody.p99, replayed.everybody.p99),
        Difference("refused", measured.refused, replayed.refused),
    ]


def _notes(
    recording: document.Recording, model: fitting.Model, arrivals: recorded.Arrivals, setting: document.Setting
) -> Iterator[str]:
    returning = recording.head.learned.get("returning_share", 0.0)
    if returning > 0.5:
        yield (
            f"{returning:.0%} of the callers come back as soon as they are answered. Under other settings they would "
            "have come at other times, which no replay knows."
        )
    if not model.is_varied:
        yield "Batches were too much alike to tell what an instance takes: what larger or smaller ones take is a guess."
    if setting.max_batch_cost and setting.instance_cost != "bytes":
        yield "What an instance costs was not recorded: --max-batch-cost counts for nothing here."
    if arrivals.span < 10:
        yield f"It is {arrivals.span:.1f} s of traffic: other times may be different."
    if recording.damaged:
        lines = "1 damaged line was" if recording.damaged == 1 else f"{recording.damaged:,} damaged lines were"
        yield f"{lines} left out."
