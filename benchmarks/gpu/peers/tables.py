"""The comparison as tables: how much each system does, how long callers wait, what it costs, and who is out."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu import tables
from benchmarks.gpu.peers import comparison

KIND = "peers"  # of the section in a file of figures


def of(content: dict[str, Any]) -> list[tables.Table]:
    """All tables of what `comparison.measure` gave."""
    rows = content["rows"]
    counts = sorted({row["callers"] for row in rows})
    names = list(dict.fromkeys(row["system"] for row in rows))
    what = f"{content['model']}, {content['precision']}"
    found = [_rates(content, what, names, counts), _latencies(rows, what, names, counts)]
    found += [_costs(rows, what, names, counts)]
    out = [(each["name"], each["absence"]) for each in content["systems"] if each["absence"]]
    return [*found, tables.Table("Left out", ("system", "why"), out)] if out else found


def _rates(content: dict[str, Any], what: str, names: list[str], counts: list[int]) -> tables.Table:
    told = {each["name"]: each for each in content["systems"]}
    failed = {row["system"] for row in content["rows"] if row["errors"]}

    def cells(name: str) -> list[str]:
        rates = [tables.number(_median(content["rows"], name, count, "rate")) for count in counts]
        return [name, told[name]["version"], told[name]["setting"], *rates, "FAILED" if name in failed else ""]

    titles = ("system", "version", "largest batch, wait", *map(str, counts), "")
    return tables.Table(f"Requests/s by number of callers: {what}", titles, list(map(cells, names)))


def _latencies(rows: list[dict[str, Any]], what: str, names: list[str], counts: list[int]) -> tables.Table:
    def cell(name: str, count: int) -> str:
        found = comparison.medians(rows, name, count)
        return f"{tables.ms(found['p50'])} / {tables.ms(found['p99'])}" if found else ""

    made = [[name, *(cell(name, count) for count in counts)] for name in names]
    return tables.Table(f"p50 / p99 in ms by number of callers: {what}", ("system", *map(str, counts)), made)


def _costs(rows: list[dict[str, Any]], what: str, names: list[str], counts: list[int]) -> tables.Table:
    at = comparison.AT if comparison.AT in counts else counts[-1]

    def cells(name: str) -> list[str]:
        found = comparison.medians(rows, name, at)
        if not found:
            return [name, "", "", "", ""]
        per_request = found["cores"] / found["rate"] * 1e6 if found["cores"] and found["rate"] else None
        energy, cores = tables.number(found["joules_per_1000"], 1), tables.number(found["cores"], 2)
        return [name, tables.share(found["gpu_busy"]), energy, cores, tables.number(per_request)]

    titles = ("system", "GPU busy", "J per 1,000", "cores busy", "CPU us per request")
    return tables.Table(f"What {at} callers cost: {what}", titles, list(map(cells, names)))


def _median(rows: list[dict[str, Any]], name: str, count: int, key: str) -> float | None:
    return comparison.medians(rows, name, count).get(key)
