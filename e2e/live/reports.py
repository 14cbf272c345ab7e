"""The results of a load in numbers: right answers, wrong ones, failures, latencies, and the longest gap."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from typing import Any, NamedTuple

from e2e.live import questions

MOST_WORDS = 160


class Outcome(NamedTuple):
    """One request: when it was sent and over (seconds since the load began), and what became of it.

    `kind` is "right", a verdict on a wrong answer, a status ("503"), or what happened to the connection.
    """

    sent: float
    over: float
    kind: str
    words: str = ""

    @property
    def is_right(self) -> bool:
        return self.kind == questions.Verdict.RIGHT

    @property
    def is_wrong(self) -> bool:
        return not self.is_right and self.kind in set(questions.Verdict)


@dataclasses.dataclass(frozen=True)
class Report:
    """All outcomes of a load, in the order in which they ended, and how often a request was sent a second time."""

    outcomes: tuple[Outcome, ...]
    seconds: float
    resent: int = 0

    @property
    def requests(self) -> int:
        return len(self.outcomes)

    @property
    def right(self) -> int:
        return sum(each.is_right for each in self.outcomes)

    @property
    def wrong(self) -> dict[str, int]:
        """Answers with status 200 that are not the answer to their question, by verdict. Should be empty, always."""
        return dict(collections.Counter(each.kind for each in self.outcomes if each.is_wrong))

    @property
    def failed(self) -> dict[str, int]:
        """Requests without an answer, by status or by what happened to the connection."""
        failures = (each.kind for each in self.outcomes if not each.is_right and not each.is_wrong)
        return dict(collections.Counter(failures).most_common())

    @property
    def words(self) -> dict[str, int]:
        """The texts of failed answers, by status: "503 no available server"."""
        told = (f"{each.kind} {each.words}".strip()[:MOST_WORDS] for each in self.outcomes if not each.is_right)
        return dict(collections.Counter(told).most_common())

    @property
    def worst_gap(self) -> float:
        """The longest time, in seconds, without a right answer, including the begin and the end of the load."""
        moments = [0.0, *(each.over for each in self.outcomes if each.is_right), self.seconds]
        return max(later - earlier for earlier, later in itertools.pairwise(moments))

    def latency(self, quantile: float) -> float:
        """Seconds to a right answer: of all of them, the one at a quantile from 0 to 1; 0 where there is none."""
        times = sorted(each.over - each.sent for each in self.outcomes if each.is_right)
        return times[min(len(times) - 1, int(quantile * len(times)))] if times else 0.0

    def recovery(self, since: float) -> float:
        """Seconds from a moment of the load until the last request that failed was over; 0 where none did."""
        return max(
            (each.over - since for each in self.outcomes if each.over >= since and not each.is_right), default=0.0
        )

    def by_second(self) -> list[tuple[int, int]]:
        """For each second of the load, the number of right answers and the number of other outcomes."""
        right = collections.Counter(int(each.over) for each in self.outcomes if each.is_right)
        other = collections.Counter(int(each.over) for each in self.outcomes if not each.is_right)
        return [(right[second], other[second]) for second in range(math.ceil(self.seconds))]

    @property
    def failing_seconds(self) -> int:
        """The number of seconds of the load in which a request failed."""
        return sum(1 for _, other in self.by_second() if other)

    def figures(self) -> dict[str, Any]:
        """The numbers for a table, ready for JSON."""
        return {
            "requests": self.requests,
            "right": self.right,
            "wrong": self.wrong,
            "failed": self.failed,
            "resent": self.resent,
            "failing_seconds": self.failing_seconds,
            "worst_gap_s": round(self.worst_gap, 2),
            "p50_ms": round(self.latency(0.5) * 1000),
            "p99_ms": round(self.latency(0.99) * 1000),
            "seconds": round(self.seconds, 1),
        }

    def __str__(self) -> str:
        """A table for people, under an assertion that failed or in a log."""
        rows = [f"{name:12} {value}" for name, value in self.figures().items()]
        rows += [f"  {count} x {words}" for words, count in self.words.items()]
        seconds = " ".join(f"{right}{f'!{other}' if other else ''}" for right, other in self.by_second())
        return "\n".join([*rows, f"right answers in each second (! others): {seconds}"])
