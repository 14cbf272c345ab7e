"""What scenes measured as one table, for a terminal and for the page in docs, and as JSON.

A file has each scene with the facts of its own run (machine, versions, command, date), so that a run of one scene
renews that one and leaves the others.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import report
from benchmarks.scenes import catalogue, quiet, scene, stage
from benchmarks.sim import tables as plain

COMMAND = "python -m benchmarks.scenes --from … --page docs/scenes.md"
PAYS = 1.1
"""From how much less work for a row on the page says that batching pays; what is nearer to 1 is noise."""

Played = dict[str, dict[str, Any]]
"""By a scene's name: its `outcome`, the `facts` of its run, and the `plan` that it was played by."""


def read(file: pathlib.Path) -> Played:
    """What a file has; empty if there is none. Raises `ValueError` for one that no run of this program wrote."""
    if not file.exists():
        return {}
    found = json.loads(file.read_text())
    if not isinstance(found, dict) or not isinstance(found.get("scenes"), dict):
        raise ValueError(f"{file} has no scenes; `make scenes` writes such a file")
    return dict(found["scenes"])


def write(file: pathlib.Path, played: Played) -> None:
    """Keep it."""
    report.write(file, {"scenes": played})


def entry(outcome: stage.Outcome, plan: stage.Plan, facts: dict[str, Any]) -> dict[str, Any]:
    """A scene of `Played`."""
    return {"outcome": dataclasses.asdict(outcome), "plan": dataclasses.asdict(plan), "facts": facts}


@dataclasses.dataclass
class Figures:
    """The medians of a way's rounds: rate in rows/s, times in seconds, `gain` and `saved` beside those without."""

    rate: float
    p50: float
    p99: float
    work: float
    gain: float
    saved: float
    mean_batch: float | None
    wrong: int
    failed: int
    difference: float


def figures(rounds: Sequence[dict[str, Any]], way: str) -> Figures | None:
    """Those of a way; None if it was not measured."""
    mine = [each for each in rounds if each["way"] == way]
    if not mine:
        return None
    rate, p50, p99, work = (statistics.median(each[name] for each in mine) for name in ("rate", "p50", "p99", "work"))
    alone = [each for each in rounds if each["way"] == stage.WITHOUT]
    batches = [each["mean_batch"] for each in mine if each["mean_batch"] is not None]
    return Figures(
        rate=rate,
        p50=p50,
        p99=p99,
        work=work,
        gain=rate / statistics.median(each["rate"] for each in alone),
        saved=statistics.median(each["work"] for each in alone) / work,
        mean_batch=statistics.median(batches) if batches else None,
        wrong=sum(each["wrong"] for each in mine),
        failed=sum(sum(each["errors"].values()) for each in mine),
        difference=max(each["difference"] for each in mine),
    )


def table(played: Played, scenes: Sequence[scene.Scene]) -> plain.Table:
    """A row for each scene that was played."""
    many = f"{stage.ROWS_OF_MANY} rows a request"
    header = ["server", "model", "without: req/s", "p50 / p99 ms", many, "its own batching", "p99 ms"]
    header += ["with the sidecar", "p50 / p99 ms", "rows a call", "CPU ms a row", "answers", "others"]
    rows = [_row(each, played[each.name]) for each in scenes if each.name in played and _has_figures(played[each.name])]
    return plain.Table("Without, with the server's own batching, and with the sidecar", header, rows)


def verdicts(played: Played, scenes: Sequence[scene.Scene]) -> list[str]:
    """A sentence for each scene of which there is something to say."""
    lines = []
    for each in scenes:
        found = figures(played[each.name]["outcome"]["rounds"], stage.WITH) if each.name in played else None
        if found is not None:
            lines.append(f"- **{title(each)}**: {_verdict(each, played[each.name], found)}")
    return lines


def absences(played: Played, scenes: Sequence[scene.Scene]) -> list[str]:
    """Who is not in the table, and why."""
    reasons = {title(each): played[each.name]["outcome"]["absence"] for each in scenes if each.name in played}
    lines = [f"- {name}: {' '.join(reason.split())[:400]}" for name, reason in reasons.items() if reason]
    if waiting := [title(each) for each in scenes if each.name not in played]:
        lines.append(f"- Not measured yet: {'; '.join(waiting)}")
    return lines + [f"- {each.server}: {each.why}" for each in catalogue.MISSING]


def page(played: Played, scenes: Sequence[scene.Scene]) -> str:
    """The table for the docs, with where and when it was measured."""
    parts = [_heading(played, scenes), plain.markdown(table(played, scenes))]
    if missing := absences(played, scenes):
        parts.append("**Not played**\n\n" + "\n".join(missing))
    return "\n\n".join(part for part in parts if part) + "\n"


def title(each: scene.Scene) -> str:
    """What a scene is called in sentences."""
    return f"{each.server}, {each.model}"


def _has_figures(played: dict[str, Any]) -> bool:
    return bool(played["outcome"]["rounds"])


def _row(each: scene.Scene, played: dict[str, Any]) -> list[str]:
    rounds = played["outcome"]["rounds"]
    base, many, own, ours = (figures(rounds, way) for way in (stage.WITHOUT, stage.MANY, stage.OWN, stage.WITH))
    assert base is not None
    assert ours is not None
    return [
        f"{each.server} {played['outcome']['version']}",
        each.model,
        plain.rate_text(base.rate),
        _times(base),
        _gain(many) if many else "",
        _gain(own) if own else ("always on" if each.always else "none"),
        f"{own.p99 * 1000:,.0f}" if own else "",
        _gain(ours),
        _times(ours),
        f"{ours.mean_batch:.1f}" if ours.mean_batch else "",
        f"{base.work * 1000:.2f} / {ours.work * 1000:.2f} ({ours.saved:.1f}x)",
        _answers(ours),
        f"{_others(rounds):.0%}",
    ]


def _answers(found: Figures) -> str:
    if found.wrong or found.failed:
        return f"{found.wrong} wrong, {found.failed} failed"
    return "equal" if not found.difference else f"within {found.difference:.0e}"


def _verdict(each: scene.Scene, played: dict[str, Any], ours: Figures) -> str:
    rounds = played["outcome"]["rounds"]
    own, others = figures(rounds, stage.OWN), _others(rounds)
    if ours.wrong:
        told = f"not to be used as it is: {ours.wrong} answers were not the row's own"
    elif ours.saved >= PAYS:
        told = f"the sidecar gives {_worth(ours, others)}"
    elif ours.saved > 1 / PAYS:
        told = f"the sidecar changes next to nothing: {_worth(ours, others)}"
    else:
        told = f"batching does not pay: {_worth(ours, others)} with the sidecar"
    if own is not None:
        told += f"; its own batching {own.saved:.1f} times as many"
    if own is not None and own.wrong:
        told += f", of which {own.wrong} were not the row's own"
    if each.always:
        told += f"; {each.always}"
    return told + (f"; {each.remark}." if each.remark else ".")


def _worth(found: Figures, others: float) -> str:
    """A gain in words. Where others took the cores, who competes with more threads gets more of them, whatever they do:
    answers a second are no gain then."""
    told = f"{found.saved:.1f} times as many rows for the same processor time"
    return told if others > quiet.QUIET else f"{found.gain:.1f} times as many answers, {told}"


def _others(rounds: Sequence[dict[str, Any]]) -> float:
    return statistics.median(each["others"] for each in rounds)


def _heading(played: Played, scenes: Sequence[scene.Scene]) -> str:
    """Where, when and how: once, if all were the same."""
    found = [played[each.name] for each in scenes if each.name in played and _has_figures(played[each.name])]
    return "\n".join(dict.fromkeys(map(_conditions, found)))


def _conditions(one: dict[str, Any]) -> str:
    facts, plan, here = one["facts"], one["plan"], one["facts"]["machine"]
    how = f"{plan['callers']} callers, medians of {plan['rounds']} rounds of {plan['seconds']:g} s"
    where = f"{here['cpu']}, {here['usable_cores']} cores for server, sidecar and callers together"
    software = f"Python {here['python']}; sidecar as {facts['sidecar']}"
    return f"{facts['date'][:10]}; {where}; {software}; {how}."


def _gain(found: Figures) -> str:
    return f"{plain.rate_text(found.rate)} ({found.gain:.1f}x)"


def _times(found: Figures) -> str:
    return f"{found.p50 * 1000:,.0f} / {found.p99 * 1000:,.0f}"
