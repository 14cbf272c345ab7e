"""What `carpool-sidecar advise` prints: a table for people, which ends with one sentence and flags; or JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from carpool.program import settings
from carpool.scheduling import own_time
from carpool_sidecar.planning import advice, replay

_WIDTH = 120


def text(found: advice.Advice, pods: int) -> str:
    """The answer for people; `pods` had the load."""
    arrivals = found.arrivals
    return "\n".join(
        [
            f"What {len(arrivals.times):,} requests of {_duration(arrivals.span)} ({_rate(arrivals.rate)} requests/s, "
            f"{_each(arrivals.mean_rows)}) would have met:",
            "",
            *_table(found, pods),
            "",
            *(line for paragraph in _trust(found) for line in textwrap.wrap(paragraph, _WIDTH)),
            "",
            *textwrap.wrap(sentence(found, pods), _WIDTH),
        ]
    )


def values(found: advice.Advice, pods: int) -> dict[str, Any]:
    """The same as JSON values; times are milliseconds."""
    predictor = found.model.predictor
    enough = advice.enough(found)
    return {
        "advice": sentence(found, pods),
        "flags": flags(found.best.changes),
        "best": found.best.label,
        "pods": pods,
        "pods_enough": enough.pods if enough else None,
        "slo_ms": None if found.slo is None else found.slo * 1000,
        "share": found.share,
        "requests": len(found.arrivals.times),
        "seconds": round(found.arrivals.span, 3),
        "rate": round(found.arrivals.rate, 6),
        "mean_instances": round(found.arrivals.mean_rows, 6),
        "predictor": {
            "service": found.model.predictor.words,
            "overhead_ms": round(predictor.overhead * 1000, 6),
            "workers": predictor.workers,
            "noise": round(predictor.variation, 6),
            "batches": found.model.batches,
            "largest_batch": found.model.largest,
        },
        "own_batch_ms": round(found.model.own.batch * 1000, 6),
        "own_request_ms": round(found.model.own.request * 1000, 6),
        "off": _finite(found.off),
        "differences": {
            each.name.replace(" ", "_"): {
                "measured": round(each.measured, 6),
                "replayed": round(each.replayed, 6),
                "relative": _finite(each.relative),
            }
            for each in found.differences
        },
        "cases": [_values(found, case) for case in found.cases],
        "notes": list(found.notes),
    }


def sentence(found: advice.Advice, pods: int) -> str:
    """One sentence of advice."""
    present, best = found.cases[0].figures, found.best.figures
    if found.best is found.cases[0]:
        said = "Leave the settings as they are: nothing that was tried would have been clearly better"
    else:
        said = f"Set {flags(found.best.changes)}: {_gain(found, best, present)}"
    if found.off > advice.FAR:
        said = f"Try it before you trust it, as the replay is far from what was measured: {said[0].lower()}{said[1:]}"
    return f"{said}{_about_pods(found, pods)}."


def flags(changes: dict[str, Any]) -> str:
    """Changes as they are written on the command line; what is to be left out stands behind "without"."""
    given = [f"{settings.flag(name)} {_written(value)}" for name, value in changes.items() if value not in (None, ())]
    left = [settings.flag(name) for name, value in changes.items() if value in (None, ())]
    if not given:
        return f"no {' and no '.join(left)}"
    return " ".join(given) + (f" without {' and '.join(left)}" if left else "")


# --- parts ----------------------------------------------------------------------------------------------------------


def _gain(found: advice.Advice, best: replay.Figures, present: replay.Figures) -> str:
    if found.slo is not None:
        return (
            f"{_share(best.in_time)} of the requests would have been answered within {found.slo * 1000:.10g} ms, in "
            f"place of {_share(present.in_time)}"
        )
    if abs(best.refused - present.refused) > advice.CLEAR:
        return f"{_share(best.refused)} of the requests would have been refused, in place of {_share(present.refused)}"
    return f"requests would have taken {_ms(best.mean)} ms on average, in place of {_ms(present.mean)}"


def _about_pods(found: advice.Advice, pods: int) -> str:
    if found.slo is None:
        return ""
    case = advice.enough(found)
    if case is None:
        return f"; {_share(found.share)} would have been kept by nothing that was tried"
    if case.pods == pods:
        return ""
    count = "1 pod" if case.pods == 1 else f"{case.pods:,} pods"
    same = " with these settings" if case.changes else ""
    verb = "been enough" if case.pods < pods else "been needed"
    return f"; {count}{same} would have {verb} for {_share(found.share)}"


def _table(found: advice.Advice, pods: int) -> Iterator[str]:
    in_time = [f"in {found.slo * 1000:.10g} ms"] if found.slo is not None else []
    heads = [
        ["", "pods", "requests/s", "busy", "mean", "wait", "mean", "p50", "p99", "refused", *in_time],
        ["", "", "per pod", "", "batch", "ms", "ms", "ms", "ms", "", *("" for _ in in_time)],
    ]
    rows = [*heads, _measured(found, pods), *(_cells(found, case, pods) for case in found.cases)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for label, *cells in rows:
        line = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield f"{label:<{widths[0]}}  {line}".rstrip()


def _measured(found: advice.Advice, pods: int) -> list[str]:
    measured = found.measured
    took = measured.everybody
    in_time = ["-"] if found.slo is not None else []
    return [
        "measured", f"{pods:,}", _rate(measured.rate), "-", f"{measured.mean_batch:.1f}", _ms(measured.wait),
        _ms(took.mean), f"~{_ms(took.p50)}", f"~{_ms(took.p99)}", _share(measured.refused), *in_time,
    ]  # fmt: skip


def _cells(found: advice.Advice, case: advice.Case, pods: int) -> list[str]:
    figures = case.figures
    label = f"{case.label}, replayed" if case is found.cases[0] else case.label
    mark = " *" if case is found.best and case is not found.cases[0] else ""
    in_time = [_share(figures.in_time)] if found.slo is not None else []
    return [
        label + mark, f"{case.pods:,}", _rate(figures.rate), f"{figures.busy:.0%}", f"{figures.mean_batch:.1f}",
        _ms(figures.wait), _ms(figures.mean), _ms(figures.p50), _ms(figures.p99), _share(figures.refused), *in_time,
    ]  # fmt: skip


def _trust(found: advice.Advice) -> Iterator[str]:
    batch, took, wait, late, refused = found.differences
    verdict = "far off: take the rest with care" if found.off > advice.FAR else "near enough to compare settings"
    yield (
        f"The replay of the present settings is {verdict}. Mean batch {batch.replayed:.1f} for {batch.measured:.1f} "
        f"measured ({_off(batch)}), mean time {_ms(took.replayed)} ms for {_ms(took.measured)} ({_off(took)}), mean "
        f"wait {_ms(wait.replayed)} ms for {_ms(wait.measured)}, p99 {_ms(late.replayed)} ms for {_ms(late.measured)} "
        f"in the sidecar's buckets, refused {_share(refused.replayed)} for {_share(refused.measured)}."
    )
    predictor = found.model.predictor
    at_once = "" if predictor.workers == 1 else f", {predictor.workers} at once"
    yield (
        f"Predictor: {found.model.predictor.words} ms for a batch of n{at_once}, noise {predictor.variation:.0%}, "
        f"{_ms(predictor.overhead)} ms around it; nearly all of {found.model.batches:,} batches seen had "
        f"at most {found.model.largest:,} instances. {own_words(found.model.own)}"
    )
    yield from found.notes


def own_words(own: own_time.OwnTime) -> str:
    """A sentence on the sidecar's own time, or that it is not known."""
    if not any(own):
        return "The sidecar's own time is not known, and counts for nothing here."
    return f"The sidecar's core: {own.batch * 1000:.3g} ms for a batch and {own.request * 1000:.3g} ms for a request."


def _values(found: advice.Advice, case: advice.Case) -> dict[str, Any]:
    figures: replay.Figures = case.figures
    shown: dict[str, Any] = {
        name: round(getattr(figures, name), 6) for name in ("requests", "rate", "busy", "mean_batch", "refused")
    }
    shown |= {f"{name}_ms": _finite(getattr(figures, name) * 1000) for name in ("wait", "mean", "p50", "p99")}
    if found.slo is not None:
        shown |= {"in_time": round(figures.in_time, 6), "margin": round(figures.margin, 6)}
    return {"label": case.label, "pods": case.pods, "changes": case.changes, **shown}


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _off(difference: advice.Difference) -> str:
    relative = difference.relative
    return f"{abs(relative):.0%} {'more' if relative > 0 else 'less'}" if round(abs(relative), 2) else "the same"


def _share(share: float) -> str:
    return f"{share:.1%}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


def _rate(rate: float) -> str:
    return f"{rate:,.4g}" if rate < 1000 else f"{rate:,.0f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"


def _each(rows: float) -> str:
    return "one instance each" if rows == 1 else f"{rows:.3g} instances each"


def _finite(value: float) -> float | None:
    return round(value, 6) if abs(value) < float("inf") else None
