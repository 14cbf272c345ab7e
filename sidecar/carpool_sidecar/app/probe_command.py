"""`carpool-sidecar probe`: measures what batches of one's own requests take at one's own predictor.

It is what people do by hand before they switch batching on. Recorded bodies are sent alone and in batches, made by the
same codecs that the sidecar uses.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yarl

from carpool.program import settings
from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.planning import probing
from carpool_sidecar.protocols import interface, models, v1
from carpool_sidecar.protocols.lists import codec as lists_codec
from carpool_sidecar.protocols.lists import rules
from carpool_sidecar.protocols.v2_http import codec as v2_codec
from carpool_sidecar.upstream import predictor

PROG = "carpool-sidecar probe"

_EPILOG = """\
The predictor gets real load, one call after the other: do not point it at one that serves people. Copies of one body
make batches of equal instances, which a predictor with a cache answers too fast: give several bodies. Examples:

  carpool-sidecar probe --url http://127.0.0.1:8080/v1/models/m:predict --body request.json
  carpool-sidecar probe --url http://127.0.0.1:8080/v1/embeddings --lists openai-embeddings --body a.json b.json
"""

_MOST_ROWS = 100_000
_LEAST_CALLS, _MOST_CALLS, _SECONDS_A_SIZE = 5, 50, 0.5
_WARM_UP = 3
_SHOWN = 160
# Names of what is another in every answer.
_OWN = ("id", "created", "batchId", "message")


class _Problem(Exception):
    """A call that was not answered well; the words say how."""


class _Answer(NamedTuple):
    seconds: float
    bodies: list[bytes]


def main(argv: Sequence[str]) -> int:
    """Measure and print; the exit status is 0, and 1 if not even one request alone was answered.

    Exits with 2 and one line on standard error for bad arguments or bodies.
    """
    chosen = _parser().parse_args(argv)
    try:
        url = yarl.URL(chosen.url)
        if url.scheme != "http" or not url.host:
            raise ValueError(f"{chosen.url!r} is no http:// address with a path")
        codec = _codec(url.raw_path, chosen.lists)
        payloads = [_payload(codec, name) for name in chosen.body]
    except ValueError as error:
        settings.fail(PROG, str(error))
    headers = tuple(_header(each) for each in chosen.header)
    try:
        found, limit = asyncio.run(_measure(url, codec, payloads, headers, chosen.largest, chosen.timeout))
    except KeyboardInterrupt:
        sys.stderr.write(f"{PROG}: interrupted; nothing was measured to the end\n")
        return 1
    text = json.dumps(probing.values(found, limit), indent=2) if chosen.json else probing.report(found, limit)
    sys.stdout.write(text + "\n")
    return 0 if found else 1


def _codec(path: str, lists: Sequence[str]) -> interface.Codec:
    """The codec of requests to a path; raises `ValueError` if there is none."""
    named = [name for each in lists for name in ([each] if rules.is_text(each) else each.split(","))]
    try:
        found = lists_codec.rules_for(path, rules.load(named))
    except errors.Unbatchable as verdict:
        raise ValueError(f"{path} is not batched: {verdict.reason.meaning}") from None
    if found:
        return lists_codec.Codec(found, time.monotonic)
    if path.endswith(":predict"):
        return v1.Codec()
    if path.startswith("/v2/models/") and path.endswith("/infer"):
        return v2_codec.Codec(models.ModelInfo(), lambda: None)
    raise ValueError(f"{path} is neither a path of v1 or v2 nor one of a rule of --lists")


def _payload(codec: interface.Codec, name: str) -> interface.Payload:
    try:
        body = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return codec.parse(body, _MOST_ROWS)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    except errors.Unbatchable as verdict:
        raise ValueError(f"{name} cannot be batched: {verdict.reason.meaning}") from None
    except errors.CarpoolError as error:
        raise ValueError(f"{name}: {error}") from None


async def _measure(
    url: yarl.URL,
    codec: interface.Codec,
    payloads: Sequence[interface.Payload],
    headers: interface.Headers,
    largest: int,
    timeout: float,
) -> tuple[list[probing.Measured], str | None]:
    """Sizes that were answered, and what became of the first that was not."""
    if len({payload.key for payload in payloads}) > 1:
        settings.fail(PROG, "the bodies differ in more than their instances, so they never share a batch")
    caller = _Caller(url, codec, headers, timeout)
    try:
        alone = []
        for payload in payloads:
            for _ in range(_WARM_UP):
                answer = await caller.call([payload])
            alone.append(_value(answer.bodies[0]))
        found: list[probing.Measured] = []
        for copies in _sizes(largest):
            members = list(itertools.islice(itertools.cycle(payloads), copies))
            rows = sum(payload.row_count for payload in members)
            sys.stderr.write(f"{rows} instances …\n")
            try:
                found.append(await _measure_size(caller, members, rows, alone))
            except _Problem as problem:
                return found, await _limit(caller, payloads, copies, rows, str(problem))
        return found, None
    except _Problem as problem:
        return [], f"A request alone was not answered: {problem}."
    finally:
        await caller.close()


async def _measure_size(
    caller: _Caller, members: Sequence[interface.Payload], rows: int, alone: Sequence[Any]
) -> probing.Measured:
    seconds: list[float] = []
    difference, others = 0.0, 0
    while len(seconds) < _LEAST_CALLS or (sum(seconds) < _SECONDS_A_SIZE and len(seconds) < _MOST_CALLS):
        answer = await caller.call(members)
        if not seconds:
            for number, body in enumerate(answer.bodies):
                apart = probing.compare(alone[number % len(alone)], _value(body), _OWN)
                difference, others = max(difference, apart[0]), others + apart[1]
        seconds.append(answer.seconds)
    return probing.Measured(rows, tuple(seconds), None, difference, others)


async def _limit(caller: _Caller, payloads: Sequence[interface.Payload], copies: int, rows: int, problem: str) -> str:
    """Where the predictor stops, found by halving between the last size that it took and the one that it did not."""
    good, bad = copies // 2, copies
    while bad - good > 1:
        middle = (good + bad) // 2
        members = list(itertools.islice(itertools.cycle(payloads), middle))
        try:
            await caller.call(members)
        except _Problem as latest:
            bad, problem = middle, str(latest)
            rows = sum(payload.row_count for payload in members)
        else:
            good = middle
    return f"It fails from {rows} instances on: {problem}."


class _Caller:
    """Makes calls to the predictor, one after the other."""

    def __init__(self, url: yarl.URL, codec: interface.Codec, headers: interface.Headers, timeout: float) -> None:
        self._target = url.raw_path_qs
        self._codec = codec
        self._headers = headers
        self._timeout = timeout
        self._client = predictor.HttpPredictor(str(url.origin()), min(5.0, timeout))
        self._numbers = itertools.count(1)

    async def call(self, members: Sequence[interface.Payload]) -> _Answer:
        """The answers of requests that share one call, and how long that took; raises `_Problem`."""
        batch_id = f"probe-{next(self._numbers)}"
        parts = [
            messages.Part(messages.Request(each.key, each.row_count, 0, each), 0, each.row_count) for each in members
        ]
        call = self._codec.merge(batch_id, self._target, parts)
        began = time.perf_counter()
        try:
            response = await self._client.predict(call.target, call.headers + self._headers, call.body, self._timeout)
            seconds = time.perf_counter() - began
            if len(members) == 1:
                return _Answer(seconds, [response.body])
            found = call.read(response)
        except errors.UpstreamStatus as error:
            words = " ".join(error.body[:_SHOWN].decode(errors="replace").split())
            raise _Problem(f"status {error.status}, {_plain(words)}") from None
        except errors.CarpoolError as error:
            raise _Problem(str(error)) from None
        return _Answer(seconds, list(self._bodies(batch_id, found, members)))

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    @staticmethod
    def _bodies(
        batch_id: str, found: interface.BatchPredictions, members: Sequence[interface.Payload]
    ) -> Iterator[bytes]:
        at = 0
        for payload in members:
            piece = messages.Piece(0, batch_id, found.rows[at : at + payload.row_count])
            at += payload.row_count
            form = payload.response_format
            if form is None:
                rows = b",".join(map(bytes, piece.predictions))
                yield b'{%b"%b":[%b]}' % (found.members, found.list_name, rows)
            else:
                yield b"".join(form.render([piece]).body)


def _value(body: bytes) -> Any:
    """An answer; raises `_Problem` for what is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        words = " ".join(body[:_SHOWN].decode(errors="replace").split())
        raise _Problem(f"an answer that is no JSON, {_plain(words)}") from None


def _plain(text: str) -> str:
    """What a terminal shows and does not obey."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _sizes(largest: int) -> Iterator[int]:
    size = 1
    while size <= largest:
        yield size
        size *= 2


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        settings.fail(PROG, f"--header got {text!r}: must be NAME: VALUE")
    return name.strip(), value.strip()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROG,
        description="Send recorded requests alone and in batches to a predictor: what batching buys, where it fails.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--url", required=True, metavar="URL", help="the predictor's own address, with the path that callers use")
    add("--body", required=True, nargs="+", metavar="FILE", help="bodies of requests; - is standard input")
    add("--lists", nargs="+", default=[], metavar="RULES", help="rules for other paths than those of v1 and v2")
    add("--header", action="append", default=[], metavar="NAME: VALUE", help="a header of the calls; may be repeated")
    add("--largest", type=_whole, default=64, metavar="N", help="most requests in a batch (%(default)s)")
    add("--timeout", type=_seconds, default=60.0, metavar="SECONDS", help="of a call (%(default)g)")
    add("--json", action="store_true", help="print JSON")
    return parser


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 4096):
        raise argparse.ArgumentTypeError(f"got {text!r}: must be a whole number from 1 to 4096")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.001 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"got {text!r}: must be a number from 0.001 to 3600")
    return value


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        settings.fail(self.prog, message.removeprefix("argument "))
