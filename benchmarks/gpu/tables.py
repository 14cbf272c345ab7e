"""The figures as tables, and what was asked of them as verdicts. Everything is made of rows that may be from a file."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.table import Table as RichTable

from benchmarks.gpu import buys, callers, ceiling, policy
from benchmarks.gpu.measuring import Row
from benchmarks.gpu.results import Section


class Table(NamedTuple):
    """A heading, the titles of the columns and rows of text; the first column is to the left."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def is_for_readers(self) -> bool:
        """Whether it tells what batching buys, or how peers do. All other tables are for who works on Carpool."""
        return self.title.startswith(_FOR_READERS)

    def for_readers(self) -> Table:
        """Without columns that tell how the machine was busy with the measuring, and without those that are empty."""
        kept = [
            place
            for place, column in enumerate(self.columns)
            if column not in _OF_THE_MEASURING and any(row[place] for row in self.rows)
        ]
        rows = [[row[place] for place in kept] for row in self.rows]
        return Table(self.title, [self.columns[place] for place in kept], rows)


_FOR_READERS = ("Without and with the sidecar", "Requests/s by number", "p50 / p99 in ms by number")
_OF_THE_MEASURING = {"client's lag p99", "cores busy"}


class Verdict(NamedTuple):
    """A target, what was measured, and whether that meets it."""

    target: str
    measured: str
    is_met: bool


def of(section: Section) -> list[Table]:
    """All tables of a section; none for one of a kind that is not known here."""
    make = _MAKERS.get(section.kind)
    return make(section.content) if make else []


def verdicts(sections: Sequence[Section]) -> list[Verdict]:
    """What the targets come to, of the sections that are there."""
    return [
        verdict for section in sections for verdict in _JUDGES.get(section.kind, lambda content: [])(section.content)
    ]


def verdict_table(found: Sequence[Verdict]) -> Table:
    rows = [(verdict.target, verdict.measured, "met" if verdict.is_met else "missed") for verdict in found]
    return Table("Targets", ("target", "measured", ""), rows)


def markdown(table: Table) -> str:
    """The heading in bold and the table."""
    lines = [f"**{table.title}**", "", _line(table.columns), _line(["---", *["---:"] * (len(table.columns) - 1)])]
    return "\n".join([*lines, *map(_line, table.rows)])


def terminal(table: Table) -> RichTable:
    """For a person at a terminal."""
    made = RichTable(title=table.title, box=box.SIMPLE_HEAD, title_justify="left")
    for place, column in enumerate(table.columns):
        made.add_column(column, justify="right" if place else "left", no_wrap=not place)
    for row in table.rows:
        made.add_row(*row)
    return made


# --- how figures look -------------------------------------------------------------------------------------------------


def ms(seconds: float | None) -> str:
    """Milliseconds, with a digit more where they are few."""
    if seconds is None:
        return ""
    return f"{seconds * 1e3:,.2f}" if seconds < 0.01 else f"{seconds * 1e3:,.1f}"


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def cores(row: Row) -> str:
    """What each process kept busy, in cores."""
    return ", ".join(f"{name} {used:.2f}" for name, used in row["cpu"].items())


def state(row: Row) -> str:
    """What went wrong in a row, in words; empty if nothing did."""
    if row.get("is_saturated"):
        return "saturated"
    if row["errors"]:
        return "FAILED: " + ", ".join(f"{count} {what}" for what, count in row["errors"].items())
    if row.get("lag_p99", 0.0) > callers.LATE:
        return f"client late {row['lag_p99'] * 1e3:.1f} ms"
    return "" if row["requests"] else "FAILED: no answers"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _who(content: dict[str, Any]) -> str:
    return ", ".join(str(content[name]) for name in ("model", "precision") if name in content)


# --- sections ---------------------------------------------------------------------------------------------------------


def _batching(content: dict[str, Any]) -> list[Table]:
    columns = ("callers", "req/s", "times", "p50 ms", "p99 ms", "batch", "GPU busy", "J per 1,000", "cores busy", "")
    rows = []
    for row in content["rows"]:
        plain = _without(content["rows"], row["callers"])
        times = row["rate"] / plain["rate"] if plain and plain is not row and plain["rate"] else None
        rows.append(
            (
                f"{row['callers']}, {row['system']}",
                number(row["rate"]),
                "" if times is None else f"{times:.1f}x",
                ms(row["p50"]),
                ms(row["p99"]),
                number(row["mean_batch"], 1),
                share(row["gpu_busy"]),
                number(row["joules_per_1000"], 1),
                cores(row),
                state(row),
            )
        )
    return [
        Table(
            f"Without and with the sidecar: {_who(content)}, batches of {content['max_batch']} at most", columns, rows
        )
    ]


def _without(rows: Sequence[Row], callers: int) -> Row | None:
    return next((row for row in rows if row["callers"] == callers and row["system"] == "without"), None)


def _agreement(content: dict[str, Any]) -> list[Table]:
    columns = (
        "precision",
        "req/s",
        "p99 ms",
        "GPU busy",
        "J per 1,000",
        "MB",
        "one by one",
        "in batches",
        "least cosine",
        "",
    )
    rows = [
        (
            row["precision"],
            number(row["rate"]),
            ms(row["p99"]),
            share(row["gpu_busy"]),
            number(row["joules_per_1000"], 1),
            number(row["gpu_memory_mb"]),
            f"{row['single_difference']:.1e}",
            f"{row['batch_difference']:.1e}",
            f"{min(row['single_cosine'], row['batch_cosine']):.6f}",
            state(row),
        )
        for row in content["rows"]
    ]
    callers = content["rows"][0]["callers"]
    title = f"Precisions: {_who(content)}, {callers} callers; largest difference of a number to float32 one by one"
    return [Table(title, columns, rows)]


def _ceiling(content: dict[str, Any]) -> list[Table]:
    columns = ("", "callers", "embeddings/s", "p50 ms", "p99 ms", "batch", "CPU s per 1,000", "cores busy", "")
    rows = [
        (
            row["system"],
            str(row["callers"]),
            number(row["rate"]),
            ms(row["p50"]),
            ms(row["p99"]),
            number(row["mean_batch"], 1),
            number(row["cpu_per_1000"].get("sidecar"), 3),
            cores(row),
            state(row),
        )
        for row in content["rows"]
    ]
    size = f"{content['answer_bytes']:,} bytes an embedding"
    return [Table(f"The sidecar on one core, before a stub that answers at once, {size}", columns, rows)]


def _policy(content: dict[str, Any]) -> list[Table]:
    return [_service(content), _in_flight(content), *_sweeps(content), _forecasts(content)]


def _service(content: dict[str, Any]) -> Table:
    learned = [each for each in content["learned"] if each["turn"] == 0 and "service_fixed_seconds" in each]
    loads = [f"learned at {each['load']:.0%}" for each in learned]
    rows = []
    for row in content["service"]:
        guesses = [policy.predicted(each, row["size"]) for each in learned]
        texts = [f"{ms(guess)} ({guess / row['median'] - 1:+.0%})" for guess in guesses]
        rows.append((str(row["size"]), ms(row["median"]), number(row["size"] / row["median"]), *texts))
    return Table(f"S(n), ms: {_who(content)}", ("n", "measured", "instances/s", *loads), rows)


def _in_flight(content: dict[str, Any]) -> Table:
    columns = ("in flight", "callers", "req/s", "p50 ms", "p99 ms", "batch", "GPU busy", "")
    rows = [
        (
            row["in_flight"] if row["limit"] is None else f"{row['in_flight']} ({row['limit']:.0f})",
            str(row["callers"]),
            number(row["rate"]),
            ms(row["p50"]),
            ms(row["p99"]),
            number(row["mean_batch"], 1),
            share(row["gpu_busy"]),
            state(row),
        )
        for row in content["in_flight"]
    ]
    return Table(f"Batches in flight: {_who(content)}", columns, rows)


def _sweeps(content: dict[str, Any]) -> list[Table]:
    columns = ("policy", "p50 ms", "p99 ms", "answered/s", "batch", "GPU busy", "J per 1,000", "client's lag p99", "")
    tables = []
    for load in sorted({row["load"] for row in content["rows"]}):
        at = [row for row in content["rows"] if row["load"] == load]
        rows = [
            (
                row["system"],
                ms(row["p50"]),
                ms(row["p99"]),
                "" if row["is_saturated"] else number(row["rate"]),  # the client broke off before the time was over
                number(row["mean_batch"], 1),
                share(row["gpu_busy"]),
                number(row["joules_per_1000"], 1),
                ms(row["lag_p99"]),
                state(row),
            )
            for row in at
        ]
        title = f"{load:.0%} of {content['capacity']:,.0f} req/s, Poisson: {_who(content)}"
        tables.append(Table(title, columns, rows))
    return tables


def _forecasts(content: dict[str, Any]) -> Table:
    columns = (
        "load",
        "predictor as learned",
        "p50 ms: plan, measured",
        "p99 ms: plan, measured",
        "batch: plan, measured",
        "in time",
    )
    rows = []
    for row in content["forecasts"]:
        plan = row["plan"]
        if "failed" in plan:
            rows.append((f"{row['load']:.0%}", plan["failed"], "", "", "", ""))
            continue
        pairs = [_beside(plan[name], row[name], ms) for name in ("p50", "p99")]
        pairs.append(_beside(plan["mean_batch"], row["mean_batch"], lambda value: number(value, 1)))
        rows.append((f"{row['load']:.0%}", f"{plan['service']} ms", *pairs, f"{plan['in_time']:.2%}"))
    return Table(f"`carpool-sidecar plan` beside what callers got: {_who(content)}", columns, rows)


def _beside(said: float, was: float | None, text: Callable[[float], str]) -> str:
    return f"{text(said)}, {text(was)} ({said / was - 1:+.0%})" if was else text(said)


# --- targets ----------------------------------------------------------------------------------------------------------


def _judge_batching(content: dict[str, Any]) -> list[Verdict]:
    rows = {(row["system"], row["callers"]): row for row in content["rows"] if not state(row)}
    plain, batched = rows.get(("without", buys.AT)), rows.get(("with", buys.AT))
    if plain is None or batched is None:
        return []
    times, who = batched["rate"] / plain["rate"], _who(content)
    found = [
        Verdict(
            f"{who}: {buys.TIMES:g} times the req/s at {buys.AT} callers", f"{times:.1f} times", times >= buys.TIMES
        )
    ]
    busy = [row["gpu_busy"] for (system, _), row in rows.items() if system == "with" and row["gpu_busy"] is not None]
    if busy:
        found.append(Verdict(f"{who}: GPU busy at least {buys.BUSY:.0%}", share(max(busy)), max(busy) >= buys.BUSY))
    return found


def _judge_agreement(content: dict[str, Any]) -> list[Verdict]:
    found = []
    for row in content["rows"]:
        least = min(row["single_cosine"], row["batch_cosine"])
        target = f"{content['model']}, {row['precision']}: cosine to float32 at least {row['least_cosine']:g}"
        found.append(Verdict(target, f"{least:.6f}", least >= row["least_cosine"]))
    return found


def _judge_ceiling(content: dict[str, Any]) -> list[Verdict]:
    ours = [row for row in content["rows"] if row["system"] == "the sidecar" and not state(row)]
    client = next((row for row in content["rows"] if row["system"] == "the client alone"), None)
    if not ours:
        return []
    best = max(ours, key=lambda row: row["rate"])
    target = f"the sidecar alone: {ceiling.TARGET:,.0f} embeddings/s on one core"
    note = f" (the client alone: {client['rate']:,.0f}/s)" if client else ""
    return [Verdict(target, f"{best['rate']:,.0f}/s{note}", best["rate"] >= ceiling.TARGET)]


def _judge_policy(content: dict[str, Any]) -> list[Verdict]:
    return [*_beside_best_window(content), *_near(content)]


def _beside_best_window(content: dict[str, Any]) -> list[Verdict]:
    """The mean of the adaptive policy's runs beside that of the best window for that very load, by p99 and by p50."""
    found = []
    for load in sorted({row["load"] for row in content["rows"]}):
        sound = [row for row in content["rows"] if row["load"] == load and not row["errors"]]
        mine = [row for row in sound if row["system"] == policy.ADAPTIVE]
        windows: dict[str, list[dict[str, Any]]] = {}
        for row in sound:
            if row["system"] != policy.ADAPTIVE:
                windows.setdefault(row["system"], []).append(row)
        steady = {name: rows for name, rows in windows.items() if not any(row["is_saturated"] for row in rows)}
        for figure in ("p50", "p99"):
            if not mine or not steady:
                continue
            means = {name: statistics.fmean([row[figure] for row in rows]) for name, rows in steady.items()}
            ours, best = statistics.fmean([row[figure] for row in mine]), min(means, key=lambda name: means[name])
            target = f"{_who(content)}, {load:.0%}: adaptive's {figure} as good as the best window's ({best})"
            # The best of many was lucky as well.
            is_met = not any(row["is_saturated"] for row in mine) and ours <= policy.LUCK * means[best]
            found.append(Verdict(target, f"{ms(ours)} ms beside {ms(means[best])} ms", is_met))
    return found


def _near(content: dict[str, Any]) -> list[Verdict]:
    found = []
    for row in content["forecasts"]:
        target = f"{_who(content)}, {row['load']:.0%}: plan within {policy.WITHIN:.0%}"
        if "failed" in row["plan"]:
            found.append(Verdict(target, row["plan"]["failed"], False))
            continue
        off = {name: row["plan"][name] / row[name] - 1 for name in ("p50", "p99", "mean_batch") if row[name]}
        words = ", ".join(f"{name.replace('_', ' ')} {value:+.0%}" for name, value in off.items())
        found.append(Verdict(target, words, all(abs(value) <= policy.WITHIN for value in off.values())))
    return found


_MAKERS: dict[str, Callable[[dict[str, Any]], list[Table]]] = {
    "batching": _batching,
    "agreement": _agreement,
    "ceiling": _ceiling,
    "policy": _policy,
}
_JUDGES: dict[str, Callable[[dict[str, Any]], list[Verdict]]] = {
    "batching": _judge_batching,
    "agreement": _judge_agreement,
    "ceiling": _judge_ceiling,
    "policy": _judge_policy,
}
