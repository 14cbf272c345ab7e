"""`python -m benchmarks.overload`: what becomes of callers when more come than the predictor can serve.

Open loop: requests leave when they are due, answered or not. The predictor works on one batch at a time, so the most
that can be answered is known, and callers come at shares of that. Then so many callers connect and ask at one moment.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import bodies, cells, client, command_line, load, machine, processes
from benchmarks.peers import poisson
from benchmarks.scale import read_answer
from tests import loopback

PATH = "/v1/models/echo:predict"
SHARES = (0.9, 1.1, 1.3)
"""Requests that come, as shares of what the predictor can answer."""

NEWCOMERS = (64, 256, 1024)
"""Callers who connect and ask at one moment."""

_QUEUE = 512  # rows that may wait: a fifth of a second's work
_SEED = 20261123
_OUTSTANDING = 20_000


@dataclass
class Offered:
    """One row: requests/s that came and were answered, how many were refused by status, and seconds until an answer."""

    share: float
    seen: poisson.OpenLoop
    seconds: float

    @property
    def refused(self) -> dict[str, int]:
        return {kind: count for kind, count in self.seen.errors.items() if kind in ("status 429", "status 503")}

    @property
    def lost(self) -> int:
        """Requests that were neither answered nor refused in words."""
        return sum(self.seen.errors.values()) - sum(self.refused.values())


@contextlib.contextmanager
def _sidecar() -> Iterator[int]:
    """The port of a sidecar with a core of its own, in front of a serial predictor, which shares its core with us."""
    cores = machine.split_cores() or (None, None)
    port, component, admin = loopback.free_ports(3)
    behind = ["--models", "echo", "--echo-answer", "instance"]
    behind += [
        "--echo-fixed-ms",
        str(cells.SERIAL_FIXED_MS),
        "--echo-per-instance-ms",
        str(cells.SERIAL_PER_INSTANCE_MS),
    ]
    flags = ["--max-batch-size", str(cells.BATCH), "--max-queue-instances", str(_QUEUE)]
    with (
        processes.running("predictor", processes.predictor_command(component, behind), cores[0]) as predictor,
        processes.running("sidecar", processes.sidecar_command(port, component, admin, flags), cores[1]) as sidecar,
    ):
        predictor.wait_until_ready(processes.ready_url(component), 60.0)
        sidecar.wait_until_ready(processes.ready_url(admin), 60.0)
        with machine.pinned(cores[0]):
            yield port


def offer(port: int, share: float, seconds: float) -> Offered:
    """Callers come at a share of the limit for so long."""
    times = poisson.draw(share * cells.SERIAL_LIMIT, seconds, _SEED)
    request = client.post(processes.HOST, PATH, bodies.exact(37))
    return Offered(share, poisson.run((processes.HOST, port), request, times, _OUTSTANDING), seconds)


def newcomers(port: int, count: int) -> list[float]:
    """So many connect and ask at one moment: seconds until each has its answer, in the order in which they are read."""
    request = client.post(processes.HOST, PATH, bodies.exact(37))
    with contextlib.ExitStack() as stack:
        begun = time.perf_counter()
        opened = [stack.enter_context(socket.create_connection((processes.HOST, port))) for _ in range(count)]
        for each in opened:
            each.sendall(request)
        found = []
        for each in opened:
            read_answer(each)
            found.append(time.perf_counter() - begun)
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. 0 if every caller was answered or refused."""
    options = _parser().parse_args(argv)
    command_line.end_on_sigterm()
    console = Console(width=150, highlight=False)
    style = box.MARKDOWN if options.markdown else box.SIMPLE_HEAD
    overload = Table(
        "offered", "of the limit", "answered/s", "429", "503", "lost", "p50 ms", "p99 ms", "late", box=style
    )
    new = Table("callers at once", "half answered after ms", "all answered after ms", box=style)
    lost = 0
    try:
        for share in SHARES:
            with _sidecar() as port:
                offer(port, 0.8, 1.0)  # the sidecar learns how long the predictor takes
                row = offer(port, share, options.seconds)
            lost += row.lost
            overload.add_row(
                f"{row.seen.sent / row.seconds:,.0f}", f"{share:.0%}", f"{row.seen.requests / row.seconds:,.0f}",
                f"{row.refused.get('status 429', 0):,}", f"{row.refused.get('status 503', 0):,}", f"{row.lost:,}",
                f"{row.seen.p50 * 1e3:,.1f}", f"{row.seen.p99 * 1e3:,.1f}", f"{row.seen.lag_p99 * 1e3:.1f} ms",
            )  # fmt: skip
        with _sidecar() as port:
            newcomers(port, NEWCOMERS[0])
            for count in NEWCOMERS:
                times = sorted(newcomers(port, count))
                new.add_row(f"{count:,}", f"{load.percentile(times, 0.5) * 1e3:,.0f}", f"{times[-1] * 1e3:,.0f}")
    except (processes.ChildFailed, OSError) as error:
        console.print(f"[bold red]bench failed:[/] {error}", soft_wrap=True)
        return 1
    console.print(overload)
    console.print(new)
    return 1 if lost else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0, metavar="X", help="of each row; default: %(default)s")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    return parser


if __name__ == "__main__":
    sys.exit(main())
