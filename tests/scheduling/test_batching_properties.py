"""What must hold for any history: arrivals, departures, failures, splits and changed limits in any order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from carpool.scheduling import messages
from carpool_sidecar import errors
from tests.scheduling.driven import DrivenScheduler, refused

AGEING, LEVEL_AGEING = 0.3, 0.7
CHOOSY = {"z": 3}  # keys whose predictor takes no more rows than that in a call
RETRIES = ("isolate", "closed", "smaller")  # batches formed when the limits may have been others
# Few contents and origins, so that strangers are suspected as well.
TRAITS = {
    "content": lambda request: int(request.tag[1:]) % 5,
    "origin": lambda request: int(request.tag[1:]) % 3,
}

ERRORS = st.sampled_from(
    [
        refused(400, b"bad"),
        refused(404, b"gone"),
        refused(500, b"bug"),
        refused(413, b"too large"),
        refused(422, b"batch size must be <= 2"),
        refused(500, b"CUDA out of memory", doubtful={500}),
        errors.Uneven(),
        errors.NotMergeable(),
        errors.UpstreamClosed(),
        errors.UpstreamUnreachable(),
        errors.UpstreamTimeout(),
    ]
)


def costs(rows: list[str], start: int, stop: int) -> list[int]:
    """Row `name/i` costs 0 to 4, as its number says."""
    return [int(row.rpartition("/")[2]) * 7 % 5 for row in rows[start:stop]]


Wanted = tuple[int, str, float | None, int]
WANTED = st.tuples(
    st.integers(1, 11), st.sampled_from("xyz"), st.none() | st.floats(0.01, 10), st.sampled_from([0, 0, 0, 1, -1])
)


def lengths(rows: list[str], start: int, stop: int) -> list[int]:
    """All rows of a request `r12` are equally long, up to 16."""
    return [int(row.partition("/")[0][1:]) * 7 % 17 for row in rows[start:stop]]


class AnyHistory(RuleBasedStateMachine):
    """Every request gets exactly one outcome, and a predicted one gets its own rows, all of them, in order."""

    names = Bundle("names")
    row_lengths: Callable[[Any, int, int], Sequence[int]] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.driven = DrivenScheduler(
            max_batch_size=4, max_latency=0.5, max_in_flight=2, max_queue_instances=40, timeout=5.0,
            row_costs=costs, priority_ageing=AGEING, level_ageing=LEVEL_AGEING, traits=TRAITS,
            row_lengths=type(self).row_lengths,
        )  # fmt: skip
        self.cap = 4
        self.checked = 0  # how many batches were looked at
        self.left: set[str] = set()  # requests whose first rows left
        self.small: set[str] = set()
        self.keys: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.count = 0

    @rule(target=names, wanted=WANTED)
    def submit(self, wanted: Wanted) -> str:
        about = self.named(*wanted)
        self.driven.submit(*about)
        return about[0]

    @rule(target=names, group=st.lists(WANTED, min_size=1, max_size=6))
    def submit_all(self, group: list[Wanted]) -> MultipleResults[str]:
        together = [self.named(*wanted) for wanted in group]
        self.driven.submit_all(*together)
        return multiple(*(about[0] for about in together))

    def named(self, rows: int, key: str, timeout: float | None, priority: int) -> tuple[Any, ...]:
        """What the scheduler is asked for, with a name."""
        self.count += 1
        name = f"r{self.count}"
        if rows <= self.driven.limits.small_batch_threshold:
            self.small.add(name)
        self.keys[name] = key
        size = sum(len(f"{name}/{i}") for i in range(rows))
        return name, rows, key, timeout, size, CHOOSY.get(key, math.inf), priority

    @rule(name=consumes(names))
    def cancel(self, name: str) -> None:
        if self.driven.requests[name].open:
            self.cancelled.add(name)
        self.driven.cancel(name)

    @rule(seconds=st.floats(0, 3))
    def pass_time(self, seconds: float) -> None:
        self.driven.pass_time(seconds)

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        if self.driven.out:
            self.driven.answer(data.draw(st.sampled_from(self.driven.out)))

    @rule(data=st.data(), error=ERRORS)
    def fail(self, data: st.DataObject, error: errors.CarpoolError) -> None:
        if self.driven.out:
            self.driven.fail(error, data.draw(st.sampled_from(self.driven.out)))

    @rule(data=st.data(), surplus=st.integers(-3, 3).filter(bool))
    def answer_with_wrong_count(self, data: st.DataObject, surplus: int) -> None:
        if self.driven.out:
            batch = data.draw(st.sampled_from(self.driven.out))
            self.driven.out.remove(batch)
            self.driven.do(self.driven.core.done(batch, ["wrong"] * max(0, batch.rows + surplus)))

    @rule(
        size=st.integers(1, 8),
        latency=st.sampled_from([0.0, 0.1, 0.5]),
        in_flight=st.integers(1, 3),
        room=st.sampled_from([math.inf, 25, 12, 1]),
        budget=st.sampled_from([math.inf, 9, 5, 1]),
        small=st.integers(0, 4),
    )
    def change_limits(self, size: int, latency: float, in_flight: int, room: float, budget: float, small: int) -> None:
        self.cap = max(self.cap, size)
        for name, request in self.driven.requests.items():
            if type(request.queue_key) is messages.Suspects:  # once cleared it counts as having come now
                (self.small.add if request.rows <= small else self.small.discard)(name)
        self.driven.change(
            max_batch_size=size, max_latency=latency, max_in_flight=in_flight,
            max_batch_bytes=room, max_batch_cost=budget, small_batch_threshold=small,
        )  # fmt: skip

    @invariant()
    def no_batch_exceeds_the_cap_or_mixes_keys(self) -> None:
        for batch in self.driven.sent:
            [key] = {self.keys[part.request.tag] for part in batch.parts}
            request, start, stop = batch.parts[0]
            if request.goes_whole and stop - start == request.rows == batch.rows:
                continue  # its parts could not be answered
            assert 0 < batch.rows <= min(self.cap, CHOOSY.get(key, math.inf))

    @invariant()
    def suspects_travel_alone(self) -> None:
        for batch in self.driven.sent:
            assert batch.reason != "suspect" or len(batch.parts) == 1

    @invariant()
    def batches_keep_their_budgets_and_their_order(self) -> None:
        for batch in self.driven.sent[self.checked :]:
            if batch.reason not in RETRIES:
                self.check_budgets(batch.rows, self.driven.rows_of(batch))
                self.check_order(batch)
        self.checked = len(self.driven.sent)

    def check_budgets(self, count: int, rows: list[str]) -> None:
        """Only an instance that is over a limit by itself exceeds it, alone."""
        limits = self.driven.limits
        assert count <= limits.max_batch_size
        assert count == 1 or sum(map(len, rows)) <= limits.max_batch_bytes
        assert count == 1 or sum(costs(rows, 0, count)) <= limits.max_batch_cost

    def check_order(self, batch: messages.Batch) -> None:
        """First in, first out inside a level and key; small ones and higher levels overtake, but only for a while."""
        for request, _, _ in batch.parts:
            if request.tag not in self.left:
                self.left.add(request.tag)
                for other in self.overtaken_by(request) if batch.reason != "suspect" else ():
                    levels = request.priority - other.priority
                    sizes = (request.tag in self.small) - (other.tag in self.small)
                    span = levels * LEVEL_AGEING + sizes * AGEING
                    if self.driven.limits.row_lengths is not None and not levels:
                        span = max(span, AGEING)
                    assert request.arrived < other.arrived + span

    def overtaken_by(self, request: messages.Request) -> list[messages.Request]:
        return [
            other
            for other in self.driven.requests.values()
            if other.open
            and other.queue_key == request.queue_key
            and other.sequence < request.sequence
            and other.tag not in self.left
        ]

    @invariant()
    def the_books_balance(self) -> None:
        core = self.driven.core
        requests = self.driven.requests.values()
        assert core.backlog.size + core.isolation.quarantine.size == sum(
            request.size_queued for request in requests if request.open and request.rows_queued
        )
        assert core.backlog.rows + core.isolation.quarantine.rows == sum(
            request.rows_queued for request in requests if request.open
        )
        assert all(request.is_queued == (request.rows_queued > 0) for request in requests if request.open)
        waiting = [core.backlog, core.isolation.quarantine._new, core.isolation.quarantine._known]
        for level in (-1, 0, 1):
            assert sum(backlog.ahead_of(level) for backlog in waiting) == sum(
                request.rows_queued for request in requests if request.open and request.priority >= level
            )
        assert core.ledger.held == sum(request.size for request in requests if request.open)
        assert len(core.in_flight) == len(self.driven.out)

    @invariant()
    def outcomes_are_exclusive_and_answers_are_right(self) -> None:
        answered, refused = set(self.driven.answers), set(self.driven.refusals)
        assert not answered & refused
        assert not (answered | refused) & self.cancelled
        for name, rows in self.driven.answers.items():
            assert rows == [f"{name}/{i}" for i in range(self.driven.requests[name].rows)]

    @invariant()
    def nobody_waits_beyond_the_deadline(self) -> None:
        for request in self.driven.requests.values():
            assert not request.open or request.deadline > self.driven.now

    def teardown(self) -> None:
        self.driven.do(self.driven.core.drain())
        self.driven.answer_all()
        self.batches_keep_their_budgets_and_their_order()
        assert self.driven.core.idle
        assert self.driven.core.ledger.held == 0
        outcomes = set(self.driven.answers) | set(self.driven.refusals) | self.cancelled
        assert outcomes == set(self.driven.requests)


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(stateful_step_count=40)


class AnyHistoryByLength(AnyHistory):
    """The same where rows of like length share a batch, and overtake others for that."""

    row_lengths = staticmethod(lengths)


TestAnyHistoryByLength = AnyHistoryByLength.TestCase
TestAnyHistoryByLength.settings = settings(stateful_step_count=40)


class PlainWindow:
    """The window policy as one would explain it: a list, scanned from the front, every time."""

    def __init__(self, size: int, latency: float) -> None:
        self.size, self.latency = size, latency
        self.waiting: list[tuple[float, str, str, int]] = []  # arrived, name, key, rows

    def next_batch(self, now: float) -> list[str] | None:
        if not self.waiting:
            return None
        oldest = self.waiting[0]
        if now >= oldest[0] + self.latency:
            return self.cut(oldest[2])
        filled: list[str] = []
        totals: dict[str, int] = {}
        for _, _, key, rows in self.waiting:
            totals[key] = totals.get(key, 0) + rows
            if totals[key] >= self.size and key not in filled:
                filled.append(key)
        return self.cut(filled[0]) if filled else None

    def cut(self, key: str) -> list[str]:
        taken: list[tuple[float, str, str, int]] = []
        for entry in [entry for entry in self.waiting if entry[2] == key]:
            if sum(rows for *_, rows in taken) + entry[3] > self.size:
                break
            taken.append(entry)
        self.waiting = [entry for entry in self.waiting if entry not in taken]
        return [name for _, name, _, _ in taken]


ARRIVALS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.01, 0.2, 0.5, 0.7]), st.sampled_from("xy"), st.integers(1, 4)), max_size=30
)


@given(arrivals=ARRIVALS, latency=st.sampled_from([0.0, 0.3, 0.5]))
def test_the_window_policy_sends_what_a_plain_list_scan_sends(arrivals, latency):
    """With one predictor that answers instantly, and requests that all fit a batch."""
    driven = DrivenScheduler(max_batch_size=4, max_latency=latency)
    plain = PlainWindow(4, latency)
    expected: list[list[str]] = []

    def settle(now: float) -> None:
        while (batch := plain.next_batch(now)) is not None:
            expected.append(batch)

    for number, (gap, key, rows) in enumerate(arrivals):
        end = driven.now + gap
        while plain.waiting and plain.waiting[0][0] + latency <= end:
            settle(plain.waiting[0][0] + latency)
        answer_spantime_passes(driven, gap)
        plain.waiting.append((end, str(number), key, rows))
        driven.submit(str(number), rows, key)
        settle(end)
        driven.answer_all()
    assert [driven.members(batch) for batch in driven.sent] == expected


def answer_spantime_passes(driven: DrivenScheduler, seconds: float) -> None:
    end = driven.now + seconds
    while (deadline := driven.core.next_deadline()) is not None and deadline <= end:
        driven.pass_time(max(0.0, deadline - driven.now))
        driven.answer_all()
    driven.now = end
