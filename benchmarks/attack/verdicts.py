"""When an attack counts as held, from what was seen beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks import load
from benchmarks.attack import target, victim

P99 = 0.100
"""Seconds that the victims' p99 may be, or `BUSY` times what it was before, where that is more; and on top what the
machine woke the victims late."""

BUSY = 3.0
MOST_BUSY = 0.500
"""Seconds beyond which no busy machine excuses a p99."""

MOST_KEPT = 60.0
"""MB that the server may have kept after the attack."""

MOST_PEAK = 1024 * 1.048576
"""MB that the server may ever have: the memory limit that the injector gives a sidecar by default (1 GiB)."""

MOST_FAILED = 0.01
"""Of the victims' calls during the attack."""


@dataclass
class Seen:
    """The victims' calls of one kind, during some time. Times in seconds."""

    calls: int = 0
    wrong: int = 0
    failed: int = 0
    p50: float = 0.0
    p99: float = 0.0

    @classmethod
    def of(cls, samples: Sequence[victim.Sample]) -> Seen:
        """What these come to; failed ones count in the percentiles as well."""
        ordered = sorted(each.seconds for each in samples)
        outcomes = [each.outcome for each in samples]
        return cls(
            calls=len(samples),
            wrong=outcomes.count(victim.WRONG),
            failed=outcomes.count(victim.FAILED),
            p50=load.percentile(ordered, 0.50),
            p99=load.percentile(ordered, 0.99),
        )


@dataclass
class Trial:
    """One attack on one server. Memory in MB; `before` and `during` by the kind of victim."""

    attack: str
    title: str
    server: str
    before: dict[str, Seen] = field(default_factory=dict)
    during: dict[str, Seen] = field(default_factory=dict)
    after: dict[str, Seen] = field(default_factory=dict)
    memory_before: float = 0.0
    memory_peak: float = 0.0
    memory_after: float = 0.0
    told: target.Told | None = None
    """None if the attacker itself failed."""

    death: str = ""
    """If the server is gone: its exit status and the end of its log."""

    trouble: str = ""
    """Why there is no result: the attacker's or the victims' own failure."""

    runs: int = 1

    def limit(self, kind: str) -> float:
        """The p99 that victims of this kind may have; what they themselves were woken late comes on top."""
        return max(P99, min(MOST_BUSY, BUSY * self.before[kind].p99)) + min(MOST_BUSY, self.late)

    @property
    def late(self) -> float:
        """The p99 of how late the victims' own process was woken during the attack: other programs' doing."""
        return self.during[victim.LATE].p99 if victim.LATE in self.during else 0.0

    @property
    def is_busy(self) -> bool:
        """Whether the machine was so busy before the attack that the limit was raised."""
        return any(BUSY * seen.p99 > P99 for seen in _judged(self.before).values())

    def misses(self) -> list[str]:
        """The targets that were missed, in words; none if the attack was held."""
        if self.trouble:
            return [self.trouble]
        if self.death:
            return [f"the server died, {self.death}"]
        return [*self._answers_missed(), *self.times_missed(), *self._memory_missed()]

    def times_missed(self) -> list[str]:
        """Those of time, which other programs on the machine can cause as well."""
        return [
            f"p99 of {kind} {1000 * seen.p99:.0f} ms, not {1000 * self.limit(kind):.0f}"
            for kind, seen in _judged(self.during).items()
            if seen.p99 > self.limit(kind)
        ]

    def _answers_missed(self) -> list[str]:
        missed = []
        for when in (self.before, self.during, self.after):
            for kind, seen in _judged(when).items():
                if seen.wrong:
                    missed.append(f"{seen.wrong} wrong answers of {kind}")
        for kind, seen in _judged(self.before).items():
            if seen.failed:
                missed.append(f"{seen.failed} calls of {kind} failed before the attack")
        for kind, seen in _judged(self.during).items():
            if not seen.calls:
                missed.append(f"no calls of {kind}")
            elif seen.failed > MOST_FAILED * seen.calls:
                missed.append(f"{seen.failed} of {seen.calls} calls of {kind} failed")
        for kind, seen in _judged(self.after).items():
            if seen.failed:
                missed.append(f"{seen.failed} calls of {kind} failed after the attack")
        return missed

    def _memory_missed(self) -> list[str]:
        missed = []
        kept = self.memory_after - self.memory_before
        if kept > MOST_KEPT:
            missed.append(f"{kept:.0f} MB kept")
        if self.memory_peak > MOST_PEAK:
            missed.append(f"peak of {self.memory_peak:.0f} MB")
        return missed


def _judged(seen: dict[str, Seen]) -> dict[str, Seen]:
    return {kind: each for kind, each in seen.items() if kind != victim.LATE}
