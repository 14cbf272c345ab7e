"""`python -m benchmarks.culprits`: what clients that keep sending bad requests cost the others, on the real programs.

Starts `carpool-predictor` (10 ms + 0.1 ms an instance; it rejects a batch with a bad instance in it) and the sidecar
with its default settings, and calls them from good and bad clients in closed loops, each on a connection of its own. A
bad client sends the same bad request for ever, or with `--new` another one each time. Clients that are told to come
back later do so after a second at most. `benchmarks/sim/culprits.py` has the same and more in virtual time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import pathlib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import aiohttp
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import command_line, metrics, processes
from tests import loopback

PATH = "/v1/models/echo:predict"
READY_SECONDS = 30.0
POISON = '"bad"'
_LONGEST_PAUSE = 1.0
_DEFAULT_SHARES = "0,1,3,10,50"
_PREDICTOR = (
    "--models", "echo", "--echo-fixed-ms", "10", "--echo-per-instance-ms", "0.1", "--echo-poison", POISON,
)  # fmt: skip


class Run(NamedTuple):
    """Outcomes of good and bad requests by status, calls at the predictor, seconds from request to good answer."""

    good: Counter[int]
    bad: Counter[int]
    calls: float
    waits: list[float]
    seconds: float

    @property
    def calls_per_good(self) -> float:
        return self.calls / max(1, self.good[200])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table; 1 if a share of good or bad requests misses its target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.culprits", description=__doc__)
    parser.add_argument("--shares", default=_DEFAULT_SHARES, help="percent of bad clients among all, comma-separated")
    parser.add_argument("--good", type=int, default=32, help="good clients (default: 32)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run (default: 10)")
    parser.add_argument("--new", action="store_true", help="each bad request has content of its own")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there as well")
    options = parser.parse_args(argv)
    command_line.end_on_sigterm()
    shares = [float(share) / 100 for share in options.shares.split(",")]
    console = Console()
    runs: dict[float, Run] = {}
    for share in dict.fromkeys([0.0, *shares]):
        bad = max(1, round(options.good * share / (1 - share))) if share else 0
        console.print(f"{options.good} good and {bad} bad clients, {options.seconds:g} s", style="dim")
        runs[share] = _measure(options.good, bad, options.seconds, options.new)
    console.print(_table(runs))
    if options.json is not None:
        figures = {f"{share:g}": run._asdict() | {"waits": None} for share, run in runs.items()}
        options.json.write_text(json.dumps(figures, indent=1))
    return 0 if all(_is_met(run, runs[0.0]) for run in runs.values()) else 1


def _is_met(run: Run, without: Run) -> bool:
    good, bad = run.good[200] / max(1, run.good.total()), run.bad[400] / max(1, run.bad.total())
    return good >= 0.99 and (bad >= 0.95 or not run.bad) and run.calls_per_good <= 2 * without.calls_per_good


def _table(runs: dict[float, Run]) -> Table:
    table = Table(box=box.ROUNDED, title="Good clients beside some that send nothing but bad requests")
    for name in ("bad clients", "good answered", "bad told 400", "good/s", "p50", "p99", "calls per good", "met"):
        table.add_column(name, justify="right")
    without = runs[0.0]
    for share, run in runs.items():
        waits = sorted(run.waits)
        table.add_row(
            f"{share:.0%}",
            f"{run.good[200] / max(1, run.good.total()):.2%}",
            f"{run.bad[400] / run.bad.total():.2%}" if run.bad else "",
            f"{run.good[200] / run.seconds:.0f}",
            f"{waits[len(waits) // 2] * 1e3:.1f} ms",
            f"{waits[len(waits) * 99 // 100] * 1e3:.1f} ms",
            f"{run.calls_per_good / without.calls_per_good:.2f}x",
            "yes" if _is_met(run, without) else "no",
        )
    return table


def _measure(good: int, bad: int, seconds: float, is_new: bool) -> Run:
    port, component_port, admin_port = loopback.free_ports(3)
    with contextlib.ExitStack() as stack:
        predictor = stack.enter_context(
            processes.running("predictor", processes.predictor_command(component_port, _PREDICTOR))
        )
        predictor.wait_until_ready(processes.ready_url(component_port), READY_SECONDS)
        sidecar = stack.enter_context(
            processes.running("sidecar", processes.sidecar_command(port, component_port, admin_port, ()))
        )
        sidecar.wait_until_ready(processes.ready_url(admin_port), READY_SECONDS)
        run = asyncio.run(_call(port, good, bad, seconds, is_new))
        counted = metrics.read(admin_port)
    return run._replace(calls=counted["carpool_batches_total"])


async def _call(port: int, good: int, bad: int, seconds: float, is_new: bool) -> Run:
    run = Run(Counter(), Counter(), 0.0, [], seconds)
    url = f"http://{processes.HOST}:{port}{PATH}"
    end = time.perf_counter() + seconds

    async def client(number: int, is_bad: bool) -> None:
        told, sent = run.bad if is_bad else run.good, 0
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
            while time.perf_counter() < end:
                sent += 1
                extra = f',"{number} {sent}"' if is_new or not is_bad else ""
                row = POISON + extra if is_bad else extra.lstrip(",")
                began = time.perf_counter()
                async with session.post(url, data=f'{{"instances":[{row}]}}') as response:
                    await response.read()
                told[response.status] += 1
                if response.status == 200:
                    run.waits.append(time.perf_counter() - began)
                elif "Retry-After" in response.headers:
                    await asyncio.sleep(min(_LONGEST_PAUSE, float(response.headers["Retry-After"])))

    await asyncio.gather(*(client(number, number >= good) for number in range(good + bad)))
    return run


if __name__ == "__main__":
    sys.exit(main())
