"""What the sidecar did with all streams, kept. `python -m tests.http1.freeze` runs them and shows what differs.

With `--write` it keeps the new outcomes; names of groups run these alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import logging
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import looptime

from carpool_sidecar import config
from carpool_sidecar.app import wiring
from carpool_sidecar.upstream import probes
from tests import loopback
from tests.http1 import corpus, exchange

KEPT = pathlib.Path(__file__).with_name("outcomes.json.gz")
_FIRST_NUMBER = 500_000
# Every request finds a free place at the predictor: batches hold what one client sent at once, and nobody waits.
_CHOSEN: dict[str, Any] = {
    **exchange.TIMES, "policy": "window", "max_latency": 0.0, "max_in_flight": 1000, "max_batch_size": 8,
    "retry_budget": 100.0,
    "max_body_bytes": 400_000, "max_queue_instances": 64, "max_queue_bytes": 1 << 30, "quiet_period": 0.0,
}  # fmt: skip
_AT_ONCE = 300  # clients
# Newer Pythons call 413 what RFC 9110 does, and read JSON so deep that older ones call it nested too deeply to its end.
_BY_INTERPRETER = (
    ("413 Request Entity Too Large", "413 Content Too Large"),
    ('41⏎⏎{"error":"the body is nested too deeply"}', '36⏎⏎{"error":"Input data was truncated"}'),
)
_SLOT, _LONG = 0.1, 2.0  # seconds: those who have the predictor to themselves; longer waits leave no connection

Outcomes = dict[str, str]
"""By stream: what happened."""


class Site:
    """A sidecar and its predictor, in a loop of virtual time unless a test says otherwise.

    Without a `short_way` plain predict requests are served as any others are.
    """

    def __init__(self, short_way: bool = True, predictor: exchange.Predictor | None = None, **chosen: Any) -> None:
        self._number = _FIRST_NUMBER
        self._short_way = short_way
        self._chosen = {**_CHOSEN, **chosen}
        self.predictor = predictor or exchange.Predictor()

    async def start(self) -> None:
        """Listen."""
        self.port, admin_port, component_port = loopback.free_ports(3)
        await self.predictor.listen(component_port)
        ports: dict[str, Any] = {"port": self.port, "admin_port": admin_port, "component_port": component_port}
        settings = config.Settings(host="127.0.0.1", admin_host="127.0.0.1", **ports, **self._chosen)
        clock = asyncio.get_running_loop().time
        probe = probes.tcp_probe(component_port)
        self.sidecar = wiring.Sidecar(settings, (probe,), clock, cpu_clock=lambda: 0.0)
        await self.sidecar.start()
        if not self._short_way and self.sidecar._http is not None:
            self.sidecar._http.reader = None  # as where nothing is batched

    async def stop(self) -> None:
        """Close everything."""
        await self.sidecar.stop()
        await self.predictor.close()

    async def run(self, streams: Sequence[exchange.Stream]) -> list[str]:
        """What each leads to.

        All run at once, but for those of which an answer may leave something on the sidecar's connection: whoever comes
        next would find it, so these have the predictor to themselves for a while, and nobody uses their connections.
        """
        loop = asyncio.get_running_loop()
        await asyncio.sleep(1 - loop.time() % 1)  # aiohttp's timers end at whole seconds
        numbers = range(self._number, self._number + len(streams))
        self._number += len(streams)
        self.predictor.answers.update(zip(numbers, (stream.answer for stream in streams), strict=True))
        clients = {}
        for stream, number in zip(streams, numbers, strict=True):
            if stream.seconds >= _LONG or stream.answer is None:
                clients[number] = loop.create_task(self._converse(stream, number))
        await asyncio.gather(*clients.values())
        for stream, number in zip(streams, numbers, strict=True):
            if number not in clients:
                self.predictor.sweep()
                await asyncio.sleep(exchange.QUIET)
                clients[number] = loop.create_task(self._converse(stream, number))
                await asyncio.sleep(stream.seconds + _SLOT)
        await asyncio.gather(*clients.values())
        seen = self.predictor.seen
        return [
            exchange.outcome(stream, await clients[number], number, seen.pop(number, [])).told()
            for stream, number in zip(streams, numbers, strict=True)
        ]

    async def _converse(self, stream: exchange.Stream, number: int) -> exchange.Client:
        loop = asyncio.get_running_loop()
        steps, _ = stream.numbered(number)
        _, client = await loop.create_connection(exchange.Client, "127.0.0.1", self.port)
        await client.converse(steps)
        return client


class Complaints(logging.Handler):
    """Keeps what is logged as an error: there is no stream that may make the sidecar do that."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message and the exception."""
        self.texts.append(f"{record.name}: {record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")


def run(groups: Sequence[str]) -> tuple[Outcomes, list[str]]:
    """The outcomes of all streams of these groups, and what was logged as an error meanwhile."""
    loop = looptime.new_event_loop(start=0, noop_cycles=4)
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    found: Outcomes = {}
    try:
        loop.run_until_complete(_run(groups, found))
    finally:
        logging.getLogger().removeHandler(complaints)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    return found, complaints.texts


async def _run(groups: Sequence[str], found: Outcomes) -> None:
    site = Site()
    await site.start()
    try:
        for group in groups:
            streams = corpus.streams(group)
            for start in range(0, len(streams), _AT_ONCE):
                some = streams[start : start + _AT_ONCE]
                for stream, told in zip(some, await site.run(some), strict=True):
                    found[stream.key] = told
    finally:
        await site.stop()


def kept() -> Outcomes:
    """The outcomes that were kept."""
    texts, by_key = json.loads(gzip.decompress(KEPT.read_bytes()))
    return {key: texts[place] for key, place in by_key.items()}


def keep(outcomes: Outcomes) -> None:
    """Keep these, each text once."""
    texts: dict[str, int] = {}
    by_key = {key: texts.setdefault(told, len(texts)) for key, told in outcomes.items()}
    KEPT.write_bytes(gzip.compress(json.dumps([list(texts), by_key], indent=0).encode(), mtime=0))


def differences(was: Outcomes, now: Outcomes) -> Iterator[str]:
    """In words, stream by stream, what is not as it was."""
    for key, told in now.items():
        before = was.get(key)
        if before is None:
            yield f"{key}: new"
        elif before != told and _on_any(before) != _on_any(told):
            yield f"{key}\n--- was\n{before}\n+++ is\n{told}"


def _on_any(told: str) -> str:
    """The outcome in words that do not depend on the interpreter."""
    for older, newer in _BY_INTERPRETER:
        told = told.replace(older, newer)
    return told


def main() -> None:
    """Run the streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", help="groups of streams; all, if none is named")
    parser.add_argument("--write", action="store_true", help="keep what is found")
    chosen = parser.parse_args()
    was = kept() if KEPT.exists() else {}
    groups = chosen.groups or list(corpus.GROUPS)
    now, complaints = run(groups)
    if chosen.write:
        others = {key: told for key, told in was.items() if key.partition(": ")[0] in corpus.GROUPS.keys() - groups}
        keep({**others, **now})
    shown = [*differences(was, now), *complaints, f"{len(now)} streams"]
    for each in shown:
        print(each, end="\n\n")  # noqa: T201


if __name__ == "__main__":
    main()
