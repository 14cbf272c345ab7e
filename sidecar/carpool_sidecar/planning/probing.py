"""What measured calls of several sizes say about batching: a line through them, where it bends, and what to choose."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from carpool_sidecar.planning import service_times

_NEARLY_BEST = 1.1  # of the least time for an instance; more instances in a batch only make callers wait
_WORTH_IT = 1.2
_BENT = 1.3  # times the line through all smaller sizes,
_BEFORE_A_BEND = 4  # of which there have to be some
_BAR = 40
_MOST_PAIRS = 200_000


class Measured(NamedTuple):
    """Calls with so many `rows`: how long each took, in seconds.

    `difference` is the largest between a number of an answer and the same number of the answer to the request alone,
    `others` how many values differ that are no numbers.
    """

    rows: int
    seconds: tuple[float, ...]
    difference: float = 0.0
    others: int = 0

    @property
    def median(self) -> float:
        """Seconds of a call."""
        return sorted(self.seconds)[len(self.seconds) // 2]

    @property
    def per_row(self) -> float:
        """Seconds for each instance."""
        return self.median / self.rows


class Limit(NamedTuple):
    """Calls with so many `rows` or more fail, by a `problem` in words; with 0 rows, even a request alone does."""

    rows: int
    problem: str

    def __str__(self) -> str:
        if not self.rows:
            return f"A request alone was not answered: {self.problem}."
        return f"It fails from {self.rows} instances on: {self.problem}."


class Probed(NamedTuple):
    """All that was found of one kind of request: sizes that were answered, ascending, and where they end.

    Unless it `is_steady`, one request alone gets another answer when it is sent again.
    """

    sizes: Sequence[Measured]
    limit: Limit | None = None
    is_steady: bool = True

    @property
    def tells(self) -> bool:
        """Whether anything follows for batches: one size that nothing speaks against is compared with no other."""
        return len(self.sizes) > 1 or (bool(self.sizes) and self.limit is not None)


class Advice(NamedTuple):
    """What follows.

    `line` is fitted to all sizes, `bend` the first size that takes well longer than smaller ones let expect, `largest`
    the largest batch that pays, `gain` how many times as many instances a second it serves as calls of one request.
    """

    line: service_times.Affine
    bend: int | None
    largest: int
    gain: float


def advise(found: Sequence[Measured]) -> Advice:
    """The conclusions from sizes that were answered, ascending, of which there has to be one."""
    line = fit(found)
    best = min(each.per_row for each in found)
    chosen = next(each for each in found if each.per_row <= _NEARLY_BEST * best)
    bend = next(
        (
            each.rows
            for place, each in enumerate(found)
            if place >= _BEFORE_A_BEND and each.median > _BENT * fit(found[:place]).seconds(each.rows, 0.0)
        ),
        None,
    )
    return Advice(line, bend, chosen.rows, found[0].per_row / chosen.per_row)


def pays_from(fixed: float, per_row: float, most: int) -> int:
    """The size from which on larger batches, up to `most`, make a row hardly cheaper, by a line through their times."""
    if fixed <= 0:
        return 1
    return min(most, math.ceil(fixed / (_NEARLY_BEST * (fixed / most + per_row) - per_row)))


def fit(found: Sequence[Measured]) -> service_times.Affine:
    """The line through medians with the least sum of squared relative errors; neither part of it is negative."""
    if len(found) == 1:
        return service_times.Affine(0.0, found[0].per_row)
    weights = [1 / each.median**2 for each in found]
    total = sum(weights)
    mean_rows = sum(weight * each.rows for weight, each in zip(weights, found, strict=True)) / total
    mean_time = sum(weight * each.median for weight, each in zip(weights, found, strict=True)) / total
    spread = sum(weight * (each.rows - mean_rows) ** 2 for weight, each in zip(weights, found, strict=True))
    both = sum(
        weight * (each.rows - mean_rows) * (each.median - mean_time)
        for weight, each in zip(weights, found, strict=True)
    )
    slope = max(0.0, both / spread)
    fixed = mean_time - slope * mean_rows
    return service_times.Affine(fixed, slope) if fixed > 0 else service_times.Affine(0.0, mean_time / mean_rows)


def compare(alone: Any, batched: Any, ignored: Sequence[str] = ()) -> tuple[float, int]:
    """The largest difference of two numbers at the same place of two JSON values, and how many other values differ.

    Members whose names are `ignored` are left out.
    """
    largest, others = 0.0, 0
    pairs = [(alone, batched)]
    for _ in range(_MOST_PAIRS):
        if not pairs:
            break
        one, two = pairs.pop()
        if isinstance(one, dict) and isinstance(two, dict):
            names = [name for name in one.keys() | two.keys() if name not in ignored]
            others += sum(name not in one or name not in two for name in names)
            pairs += [(one[name], two[name]) for name in names if name in one and name in two]
        elif isinstance(one, list) and isinstance(two, list):
            others += abs(len(one) - len(two))
            pairs += zip(one, two, strict=False)
        elif _is_number(one) and _is_number(two):
            largest = max(largest, abs(one - two))
        else:
            others += one != two
    return largest, others


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- for people -------------------------------------------------------------------------------------------------


def report(found: Probed) -> str:
    """A table with bars, and what follows from it, with settings."""
    settings = _settings(found.sizes, advise(found.sizes)) if found.sizes else ()
    return "\n".join([table(found), *settings])


def table(found: Probed) -> str:
    """A table with bars, and what follows from it, the settings left out."""
    if not found.sizes:
        return f"No batch was answered. {found.limit or ''}".rstrip()
    advice = advise(found.sizes)
    return "\n".join([*_table(found.sizes, advice), "", *_words(found, advice)])


def values(found: Probed) -> dict[str, Any]:
    """The same as JSON values; times are milliseconds."""
    sizes = [
        {
            "instances": each.rows, "ms": round(each.median * 1e3, 3), "ms_per_instance": round(each.per_row * 1e3, 4),
            "calls": len(each.seconds), "largest_difference": each.difference, "other_differences": each.others,
        }
        for each in found.sizes
    ]  # fmt: skip
    limit = found.limit
    answer: dict[str, Any] = {
        "sizes": sizes, "limit": None if limit is None else str(limit),
        "fails_from": None if limit is None else limit.rows, "steady": found.is_steady,
    }  # fmt: skip
    if sizes:
        advice = advise(found.sizes)
        answer |= {
            "fixed_ms": round(advice.line.fixed * 1e3, 3), "ms_per_instance": round(advice.line.per_row * 1e3, 4),
            "bends_at": advice.bend, "max_batch_size": advice.largest, "gain": round(advice.gain, 2),
        }  # fmt: skip
    return answer


class Kept(NamedTuple):
    """What `values` wrote into a file, as far as settings follow from it.

    `max_batch_size` is the largest batch that pays, `fails_from` the size that failed (None: none did). `changes` says
    that answers in a batch have other texts or another form than alone.
    """

    max_batch_size: int | None
    fails_from: int | None
    changes: bool


def read(text: bytes) -> Kept:
    """What `probe --json` or `doctor --json` printed; raises `ValueError` for anything else or without measurements."""
    sizes: Sequence[tuple[int, int]] = ()
    try:
        found = json.loads(text)
        found = found.get("probe", found)
        is_right = found is None
        if not is_right:
            sizes = [(each["instances"], each["other_differences"]) for each in found["sizes"]]
            changes = found["steady"] and any(n for _, n in sizes)
            kept = Kept(found.get("max_batch_size"), found["fails_from"] or None, changes)
            is_right = all(each is None or (type(each) is int and each > 0) for each in kept[:2])
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise ValueError("it is not what `carpool-sidecar probe --json` or `doctor --json` prints")
    if not sizes:
        raise ValueError("it has no measurements: no request was sent, or none was answered")
    return kept


def _table(found: Sequence[Measured], advice: Advice) -> Iterator[str]:
    most = max(each.per_row for each in found)
    yield f"{'instances':>9}  {'ms a call':>10}  {'line':>8}  {'ms an instance':>14}  {'difference':>10}"
    for each in found:
        bar = "█" * max(1, round(_BAR * each.per_row / most))
        line = advice.line.seconds(each.rows, 0.0) * 1e3
        difference = "other text" if each.others else f"{each.difference:.2g}"
        times = f"{each.median * 1e3:>10.2f}  {line:>8.2f}  {each.per_row * 1e3:>14.3f}"
        yield f"{each.rows:>9}  {times}  {difference:>10}  {bar}"


def _words(found: Probed, advice: Advice) -> Iterator[str]:
    """What was found, in sentences; the last says what batching buys."""
    sizes, line = found.sizes, advice.line
    if found.tells:
        yield f"A call takes {line.fixed * 1e3:.2f} ms, and {line.per_row * 1e3:.3f} ms for each instance."
    if advice.bend is not None:
        yield f"From {advice.bend} instances on it takes longer: the predictor's cores or its memory are full."
    if found.limit is not None:
        yield str(found.limit)
    if not found.is_steady:
        yield "One request alone gets another answer each time, so differences of answers say nothing here."
    elif any(each.others for each in sizes):
        yield "Answers in a batch have other texts or another form than alone: look at them before you batch."
    elif (largest := max(each.difference for each in sizes)) > 0:
        yield f"Numbers in a batch differ from those alone by at most {largest:.2g}: batches add in another order."
    if not found.tells:
        yield "Only one size could be measured, so nothing follows for batches."
    elif is_worth_it(sizes, advice):
        yield f"Batches of {advice.largest} serve {advice.gain:.1f} times as many instances a second."
    else:
        yield "Batching buys next to nothing here: an instance takes as long in a batch as alone."


def is_worth_it(found: Sequence[Measured], advice: Advice) -> bool:
    """Whether batches serve clearly more instances a second than calls of one request."""
    return advice.gain >= _WORTH_IT and advice.largest > found[0].rows


def _settings(found: Sequence[Measured], advice: Advice) -> Iterator[str]:
    if not is_worth_it(found, advice):
        return
    yield "Settings:"
    yield ""
    yield f"  carpool-sidecar --max-batch-size {advice.largest}"
    if len(found) > 1:
        points = ",".join(f"{rows}:{milliseconds:.2f}" for rows, milliseconds in _ascending(found))
        yield f"  carpool-sidecar plan --rate REQUESTS --slo MS --max-batch-size {advice.largest} --service {points}"


def _ascending(found: Sequence[Measured]) -> Iterator[tuple[int, float]]:
    """Sizes and milliseconds as `plan` takes them: a larger batch never takes less."""
    least = 0.0
    for each in found:
        least = max(least, each.median * 1e3)
        yield each.rows, least
