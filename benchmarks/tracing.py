"""`python -m benchmarks.tracing`: what `--tracing otlp` costs, beside the same sidecar without it.

Every round measures each way once, so that what else the machine does meets all of them. A receiver beside the load
takes what is exported.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import threading
from collections.abc import Iterator, Sequence
from http import server
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import cells, machine, stand, wrk

CELL = cells.BODY_CELLS[0]
ROUNDS, SECONDS = 5, 3.0


class Way(NamedTuple):
    """One way to be traced: flags of the sidecar, variables, and how many of a hundred callers are sampled.

    `base` is the number of the way that it is compared with.
    """

    title: str
    base: int
    flags: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    sampled: int | None = 1


_ON = ("--tracing", "otlp")
WAYS = (
    Way("off, callers are traced", 0),
    Way("on, no caller is sampled", 0, _ON, sampled=0),
    Way("on, 1 % of the callers are sampled", 0, _ON),
    Way("on, all callers are sampled", 0, _ON, sampled=100),
    Way("off, callers have no traces", 4, sampled=None),
    Way(
        "on, 1 % of the batches are sampled",
        4,
        _ON,
        (("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0.01")),
        None,
    ),
)


class _Sink(server.BaseHTTPRequestHandler):
    """Takes spans, and counts requests."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def _receiver() -> Iterator[str]:
    receiving = server.ThreadingHTTPServer(("127.0.0.1", 0), _Sink)
    receiving.daemon_threads = True
    thread = threading.Thread(target=receiving.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{receiving.server_port}"
    finally:
        receiving.shutdown()
        receiving.server_close()
        thread.join()


def measure(way: Way, endpoint: str, seconds: float) -> stand.Result:
    """One cell of the benchmark, in this way."""
    added = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **dict(way.variables)}
    before = dict(os.environ)
    os.environ.update(added)
    try:
        with stand.Stand("wrk", list(way.flags), way.sampled) as tested:
            return tested.measure(CELL, seconds)
    finally:
        os.environ.clear()
        os.environ.update(before)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all ways so many times, and print the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracing", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="only off and 1 %% of the callers")
    options = parser.parse_args(argv)
    ways = [WAYS[0], WAYS[2]] if options.quick else list(WAYS)
    if not wrk.is_available():
        sys.exit("this needs wrk")
    console = Console(width=150, highlight=False)
    found: dict[Way, list[stand.Result]] = {way: [] for way in ways}
    with _receiver() as endpoint:
        for number in range(options.rounds):
            for way, results in found.items():
                results.append(measure(way, endpoint, options.seconds))
                rate = results[-1].measured.rate
                console.print(f"round {number + 1}: {way.title}: {rate:,.0f} requests/s")
    console.print(_table(found))
    console.print(f"{options.rounds} rounds of {options.seconds:g} s; {machine.describe()}")
    return 1 if any(result.has_failed for results in found.values() for result in results) else 0


def _table(found: dict[Way, list[stand.Result]]) -> Table:
    table = Table()
    for name in ("tracing", "requests/s", "of off", "round by round", "CPU ms per 1000", "of off", "MB"):
        table.add_column(name)
    for way, results in found.items():
        base = WAYS[way.base]
        rates = [result.measured.rate for result in results]
        without = [result.measured.rate for result in found[base]]
        cpu, cpu_without = _cpu(results), _cpu(found[base])
        paired = [rate / other for rate, other in zip(rates, without, strict=True)]
        table.add_row(
            way.title,
            f"{statistics.median(rates):,.0f}",
            f"{statistics.median(rates) / statistics.median(without):.1%}",
            f"{min(paired):.0%} to {max(paired):.0%}, median {statistics.median(paired):.1%}",
            f"{cpu * 1000:.1f}",
            f"{cpu / cpu_without:.1%}",
            f"{results[-1].sidecar_rss_mb or 0:.0f}",
        )
    return table


def _cpu(results: Sequence[stand.Result]) -> float:
    return statistics.median([result.sidecar_cpu_per_1000 or 0.0 for result in results])


if __name__ == "__main__":
    sys.exit(main())
