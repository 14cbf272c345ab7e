"""`python -m benchmarks.cycle`: what a batch's way to the model and back takes, step by step, in KServe's scene.

Five callers share each batch of a predictor that takes 10 ms + 0.1 ms a row. Its model writes into each answer when it
got the batch and when it was done with it, and the clients know when they sent and got what: one clock for all, that of
the machine. The same batch sent to the predictor as one request tells how much of the way is the predictor's own.
A second table tells what the slowest hundredth of the requests waited for: a batch that had left without them, or the
step that took them longest beyond its median.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import uvloop
from rich import console
from rich.table import Table

from benchmarks import bodies, cells, client, command_line, machine, processes
from carpool_predictor import model
from carpool_predictor.models import echo
from tests import loopback

FIXED_MS, PER_ROW_MS = cells.SERIAL_FIXED_MS, cells.SERIAL_PER_INSTANCE_MS
PATH = "/v1/models/stamping:predict"
LEARNING = 100  # batches that are not counted: the policy learns, and interpreters warm up
_READY_SECONDS = 60.0


class Stamping(echo.QueuedEcho):
    """A model of that service time that answers each row with when its batch came, and when it was done."""

    def __init__(self, times: echo.ServiceTime | None = None) -> None:
        super().__init__(times or echo.ServiceTime(FIXED_MS / 1e3, PER_ROW_MS / 1e3))

    def prepare(self, rows: Sequence[model.Row]) -> echo.Queued:
        """The answers are not known yet: so many of them, and when it came."""
        came = time.perf_counter()
        return super().prepare(rows)._replace(answers=[b"%.7f" % came] * len(rows))

    def finish(self, computed: echo.Queued) -> Sequence[model.Row]:
        """Both times."""
        rows = super().finish(computed)
        left = time.perf_counter()
        return [b"[%b,%.7f]" % (came, left) for came in rows]


class Seen(NamedTuple):
    """One answer, on the clock of the machine: when its request was sent, was at the model, left it, and came back."""

    sent: float
    came: float
    left: float
    back: float


class Steps(NamedTuple):
    """Seconds of one batch: from its last caller's request to the model, there, and back to its first and last caller.

    Then until the last of the next batch's callers has sent.
    """

    there: float
    model: float
    first: float
    last: float
    again: float

    @property
    def all(self) -> float:
        return self.there + self.model + self.last + self.again


def steps(seen: Sequence[Seen], callers: int) -> Iterator[Steps]:
    """Of all batches that had all callers, and after which all of them came again."""
    batches: dict[float, list[Seen]] = {}
    for each in seen:
        batches.setdefault(each.came, []).append(each)
    whole = [batches[came] for came in sorted(batches)]
    for batch, following in itertools.pairwise(whole):
        if len(batch) == len(following) == callers:
            last_sent, came, left = max(each.sent for each in batch), batch[0].came, batch[0].left
            first, last = (chosen(each.back for each in batch) for chosen in (min, max))
            again = max(each.sent for each in following) - last
            yield Steps(came - last_sent, left - came, first - left, last - left, again)


class Slow(NamedTuple):
    """A request among the slowest: seconds that it took, what it waited for longer than most, and how much longer."""

    took: float
    why: str
    beyond: float


LEFT_OUT = "a batch that had left without it"


def slowest(seen: Sequence[Seen], share: float = 0.01) -> Iterator[Slow]:
    """The slowest requests, so large a share of all, and why they were that."""
    batches: dict[float, list[Seen]] = {}
    for each in seen:
        batches.setdefault(each.came, []).append(each)
    order = sorted(batches)
    before = {came: batches[earlier][0].left for earlier, came in itertools.pairwise(order)}
    last_sent = {came: max(each.sent for each in members) for came, members in batches.items()}

    def parts(each: Seen) -> dict[str, float]:
        return {
            "another caller of its batch, who sent later": last_sent[each.came] - each.sent,
            "the sidecar, before the model": each.came - last_sent[each.came],
            "the model": each.left - each.came,
            "the way back": each.back - each.left,
        }

    usual = {why: statistics.median(parts(each)[why] for each in seen) for why in parts(seen[0])} if seen else {}
    for each in sorted(seen, key=lambda each: each.back - each.sent)[len(seen) - int(len(seen) * share) :]:
        beyond = {why: seconds - usual[why] for why, seconds in parts(each).items()}
        if before.get(each.came, each.sent) > each.sent:
            yield Slow(each.back - each.sent, LEFT_OUT, before[each.came] - each.sent)
        else:
            why = max(beyond, key=lambda why: beyond[why])
            yield Slow(each.back - each.sent, why, beyond[why])


class Callers:
    """A closed loop of `client.Connection`s. `seen` grows until there are `most`."""

    def __init__(self, request: bytes, most: int) -> None:
        self.seen: list[Seen] = []
        self.error = ""
        self._request = request
        self._most = most
        self._sent: dict[client.Connection, float] = {}
        self.done = asyncio.Event()

    def answered(self, connection: client.Connection, status: int, body: bytes) -> None:
        """Implements `client.Receiver`."""
        back = time.perf_counter()
        if status != 200:
            self.lost(connection, f"status {status}")
            return
        came, left = msgspec.json.decode(body)["predictions"][0]
        self.seen.append(Seen(self._sent[connection], came, left, back))
        if len(self.seen) < self._most:
            self.send(connection)
        else:
            self.done.set()

    def lost(self, connection: client.Connection, reason: str) -> None:
        """Implements `client.Receiver`."""
        self.error = reason
        self.done.set()

    def send(self, connection: client.Connection) -> None:
        self._sent[connection] = time.perf_counter()
        connection.send(self._request)


async def ask(port: int, rows: int, callers: int, batches: int) -> list[Seen]:
    """So many callers of so many rows each, for so many batches. Raises `OSError` if one gets no answer."""
    row = bodies.exact(bodies.SMALLEST)[len(b'{"instances":[') : -len(b"]}")]
    body = b'{"instances":[' + b",".join([row] * rows) + b"]}"
    asking = Callers(client.post(processes.HOST, PATH, body), (batches + LEARNING) * callers)
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(lambda: client.Connection(asking), processes.HOST, port))[1]
        for _ in range(callers)
    ]
    for connection in opened:
        asking.send(connection)
    await asking.done.wait()
    for connection in opened:
        connection.close()
    if asking.error:
        raise OSError(f"a caller got no answer: {asking.error}")
    return asking.seen[LEARNING * callers :]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables. 0 if there are any."""
    options = _parser().parse_args(argv)
    command_line.end_on_sigterm()
    screen = console.Console(width=100)

    def tables() -> console.Group:
        through, alone = _measured(options)
        callers = cells.SCENE_CALLERS
        return console.Group(_table(list(steps(through, callers)), list(steps(alone, 1))), _slowest(through))

    return command_line.show(screen, tables, (processes.ChildFailed, OSError))


def _measured(options: argparse.Namespace) -> tuple[list[Seen], list[Seen]]:
    """With the sidecar, and without it. Raises `processes.ChildFailed` and `OSError`."""
    of_predictor, of_sidecar = machine.split_cores() or (None, None)
    port, component_port, admin_port = loopback.free_ports(3)
    served = processes.predictor_command(component_port, ["--models", f"stamping={__package__}.cycle:Stamping"])
    before = processes.sidecar_command(port, component_port, admin_port, shlex.split(options.sidecar_args))
    with (
        processes.running("predictor", served, of_predictor) as predictor,
        processes.running("sidecar", before, of_sidecar) as sidecar,
    ):
        predictor.wait_until_ready(processes.ready_url(component_port), _READY_SECONDS)
        sidecar.wait_until_ready(processes.ready_url(admin_port), _READY_SECONDS)
        count = cells.SCENE_CALLERS
        with machine.pinned(of_sidecar):  # as in the scene
            through = uvloop.run(ask(port, 1, count, options.batches))
            alone = uvloop.run(ask(component_port, count, 1, options.batches))
    return through, alone


def _table(through: Sequence[Steps], alone: Sequence[Steps]) -> Table:
    """Raises `OSError` if there is nothing to show."""
    if not through or not alone:
        raise OSError("no batch had all callers")
    callers = cells.SCENE_CALLERS
    what = f"{callers} callers, {FIXED_MS:g} + {PER_ROW_MS:g} ms, {len(through)} batches"
    title = f"{what}: milliseconds, the median and what 9 of 10 are below"
    table = Table("step", "with the sidecar", "the predictor alone", title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, what in (
        ("the last caller has sent: to the model", "there"),
        ("in the model", "model"),
        ("the model is done: to the first caller", "first"),
        ("the model is done: to the last caller", "last"),
        ("until the last caller has sent again", "again"),
        ("all", "all"),
    ):
        table.add_row(name, *(_told([getattr(each, what) for each in found]) for found in (through, alone)))
    rate = callers / statistics.median(each.all for each in through)
    table.caption = f"{rate:,.0f} requests/s at the median"
    return table


def _slowest(seen: Sequence[Seen]) -> Table:
    found = list(slowest(seen))
    took = sorted(each.took for each in found)
    title = f"the slowest {len(found)} of {len(seen)} requests: {took[0] * 1e3:.1f} to {took[-1] * 1e3:.1f} ms"
    table = Table("what they waited for", "requests", "ms longer than most", title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for why, count in collections.Counter(each.why for each in found).most_common():
        table.add_row(why, str(count), _told([each.beyond for each in found if each.why == why]))
    return table


def _told(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    return f"{statistics.median(ordered) * 1e3:.3f}, {ordered[len(ordered) * 9 // 10] * 1e3:.3f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cycle", description="Where the time of a batch goes, in KServe's scene."
    )
    parser.add_argument("--batches", type=int, default=300, metavar="N", help="so many (default: %(default)s)")
    parser.add_argument(
        "--sidecar-args",
        default=f"--policy adaptive --max-batch-size {cells.BATCH}",
        metavar="FLAGS",
        help="the sidecar's flags (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
