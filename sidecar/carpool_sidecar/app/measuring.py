"""Calls to a predictor, alone and in batches, timed and compared: what `probe` and `doctor` measure.

Batches are made by the same codecs that the sidecar uses.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import yarl

from carpool.scheduling import messages
from carpool_sidecar import admin_client, errors
from carpool_sidecar.planning import probing
from carpool_sidecar.protocols import interface, models, v1
from carpool_sidecar.protocols.lists import answers, room, rules
from carpool_sidecar.protocols.lists import codec as lists_codec
from carpool_sidecar.protocols.pairs import codec as pairs
from carpool_sidecar.protocols.pairs import destinations
from carpool_sidecar.protocols.v2_http import codec as v2_codec
from carpool_sidecar.upstream import predictor

_MOST_ROWS = 100_000
_LEAST_CALLS, _MOST_CALLS, _SECONDS_A_SIZE = 5, 50, 0.5
_WARM_UP = 3
_SHOWN = 160
# Names of what is another in every answer.
_OWN = ("id", "created", "batchId", "message")
# How a request is answered that has one value and no list; others get a list or an object.
_BARE = (answers.ResponseFormat.ROW, answers.ResponseFormat.LIST_IF_NONE)


class Problem(Exception):
    """A call that was not answered well; the words say how."""


class Answer(NamedTuple):
    seconds: float
    bodies: list[bytes]


def address(text: str) -> yarl.URL:
    """An address of a predictor; raises `ValueError`."""
    url = yarl.URL(text)
    if url.user is not None or url.password is not None:
        raise ValueError("--url has a user or a password, which are not sent: give a --header 'Authorization: …'")
    if url.scheme != "http" or not url.host:
        raise ValueError(f"{text!r} is no http:// address")
    return url


def headers(given: Sequence[tuple[str, str]]) -> interface.Headers:
    """Headers of calls; raises `ValueError` for such as a batch cannot carry."""
    try:
        predictor.request_head(("host", "/", tuple(given)))
    except errors.BadRequest as error:
        raise ValueError(f"--header: {error}") from None
    return tuple(given)


def codec_for(path: str, chosen: Sequence[rules.Rule], to: destinations.Destination | None = None) -> interface.Codec:
    """The codec of requests to a path, by these rules or else by v1 and v2; raises `ValueError` if there is none.

    Rerank requests go as pairs to `to`, if it is given.
    """
    if to is not None:
        to.check(chosen)
    try:
        found = lists_codec.rules_for(path, chosen)
    except errors.Unbatchable as verdict:
        raise ValueError(f"{path} is not batched: {verdict.reason.meaning}") from None
    if found:
        return pairs.codec_by(found, to, time.monotonic)
    if path.endswith(":predict"):
        return v1.Codec()
    if path.startswith("/v2/models/") and path.endswith("/infer"):
        return v2_codec.Codec(models.ModelInfo(), lambda: None)
    raise ValueError(f"{path} is neither a path of v1 or v2 nor one of a rule of --lists")


def payload(codec: interface.Codec, name: str, body: bytes) -> interface.Payload:
    """The request that a body is; raises `ValueError` that names it, and says why it cannot be batched."""
    try:
        return codec.parse(body, _MOST_ROWS)
    except errors.Unbatchable as verdict:
        raise ValueError(f"{name} cannot be batched: {verdict.reason.meaning}") from None
    except errors.CarpoolError as error:
        raise ValueError(f"{name}: {error}") from None


def fitting(
    codec: interface.Codec, payloads: Sequence[interface.Payload], largest: int, say: Callable[[str], None]
) -> int:
    """How many of these requests, in turn, up to the `largest` number, go in one call by the limits of their rule.

    Fewer than the `largest` are told. Raises `ValueError` for a request that does not fit alone, as it would be sent
    in parts.
    """
    rows = taken = 0
    weights = [(each.row_count, sum(each.row_room(0, each.row_count))) for each in payloads]
    for count, (own_rows, own_room) in enumerate(itertools.islice(itertools.cycle(weights), largest)):
        rows += own_rows
        taken += own_room
        if own_rows > codec.max_batch_size or own_room > room.WHOLE:
            raise ValueError(
                f"a body has {own_rows} instances, more than its rule lets into one call: give shorter ones"
            )
        if rows > codec.max_batch_size or taken > room.WHOLE:
            say(f"the rule of these requests lets {count} of them into one call: no larger batches are tried")
            return count
    return largest


async def measure(
    caller: Caller, payloads: Sequence[interface.Payload], largest: int, seconds: float, say: Callable[[str], None]
) -> probing.Probed:
    """Send requests alone, then in batches of up to `largest` requests, each size twice the one before.

    No larger size is begun once `seconds` have passed; the smallest is measured again at the end. `say` is told what
    comes next. Raises `ValueError` if the requests never share a batch.
    """
    if len({payload.key for payload in payloads}) > 1:
        raise ValueError("the bodies differ in more than their instances, so they never share a batch")
    ends = time.monotonic() + seconds
    try:
        alone, is_steady = await _answers_alone(caller, payloads)
    except Problem as problem:
        return probing.Probed((), probing.Limit(0, str(problem)))
    found: list[probing.Measured] = []
    limit = None
    for copies in _sizes(largest):
        if found and time.monotonic() > ends:
            break
        members = list(itertools.islice(itertools.cycle(payloads), copies))
        rows = sum(payload.row_count for payload in members)
        say(f"{rows} instances …")
        try:
            found.append(await _measure_size(caller, members, rows, alone))
        except Problem as problem:
            limit = await _limit(caller, payloads, copies, rows, str(problem))
            break
    if len(found) > 1:  # all else is compared with the first, which met a cold predictor: the faster one counts
        members = list(payloads[:1])
        with contextlib.suppress(Problem):
            again = await _measure_size(caller, members, found[0].rows, alone)
            found[0] = min(found[0], again, key=lambda each: each.median)
    return probing.Probed(tuple(found), limit, is_steady)


async def _answers_alone(caller: Caller, payloads: Sequence[interface.Payload]) -> tuple[list[Any], bool]:
    """The answer to each request, and whether each was answered the same again."""
    alone, is_steady = [], True
    for payload in payloads:
        values = [_value((await caller.call([payload])).bodies[0]) for _ in range(_WARM_UP)]
        is_steady = is_steady and probing.compare(values[-2], values[-1], _OWN) == (0.0, 0)
        alone.append(values[-1])
        may_be_bare = payload.response_format in _BARE and values[-1] is not None
        if not (may_be_bare or isinstance(values[-1], dict | list)):
            raise Problem(f"an answer without rows, {admin_client.plain(json.dumps(values[-1])[:_SHOWN])}")
    return alone, is_steady


async def _measure_size(
    caller: Caller, members: Sequence[interface.Payload], rows: int, alone: Sequence[Any]
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
    return probing.Measured(rows, tuple(seconds), difference, others)


async def _limit(
    caller: Caller, payloads: Sequence[interface.Payload], copies: int, rows: int, problem: str
) -> probing.Limit:
    """Where the predictor stops, found by halving between the last size that it took and the one that it did not."""
    good, bad = copies // 2, copies
    while bad - good > 1:
        middle = (good + bad) // 2
        members = list(itertools.islice(itertools.cycle(payloads), middle))
        try:
            await caller.call(members)
        except Problem as latest:
            bad, problem = middle, str(latest)
            rows = sum(payload.row_count for payload in members)
        else:
            good = middle
    return probing.Limit(rows, problem)


class Caller:
    """Makes calls to the predictor at `url`, one after the other; none takes longer than `timeout` seconds."""

    def __init__(self, url: yarl.URL, codec: interface.Codec, headers: interface.Headers, timeout: float) -> None:
        self._target = url.raw_path_qs
        self._codec = codec
        self._headers = headers
        self._timeout = timeout
        self._client = predictor.HttpPredictor(str(url.origin()), min(5.0, timeout))
        self._numbers = itertools.count(1)

    async def call(self, members: Sequence[interface.Payload]) -> Answer:
        """The answers of requests that share one call, and how long that took; raises `Problem`."""
        batch_id = f"probe-{next(self._numbers)}"
        call = merged(self._codec, batch_id, self._target, members)
        began = time.perf_counter()
        try:
            response = await self._client.predict(call.target, call.headers + self._headers, call.body, self._timeout)
            seconds = time.perf_counter() - began
        except errors.UpstreamStatus as error:
            raise Problem(f"status {error.status}{_words(error.body)}") from None
        except errors.CarpoolError as error:
            raise Problem(admin_client.plain(str(error))) from None
        try:
            found = call.read(response)
        except errors.CarpoolError as error:
            _value(response.body)
            raise Problem(admin_client.plain(str(error))) from None
        if len(members) == 1 and not isinstance(self._codec, pairs.Codec):
            return Answer(seconds, [response.body])
        return Answer(seconds, list(bodies(batch_id, found, members)))

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


def merged(
    codec: interface.Codec, batch_id: str, target: str, members: Sequence[interface.Payload]
) -> interface.UpstreamRequest:
    """The call that these requests become together."""
    parts = [messages.Part(messages.Request(each.key, each.row_count, 0, each), 0, each.row_count) for each in members]
    return codec.merge(batch_id, target, parts)


def bodies(batch_id: str, found: interface.BatchPredictions, members: Sequence[interface.Payload]) -> Iterator[bytes]:
    """What each of these is answered, of the answer to the call that they became."""
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
    """An answer; raises `Problem` for what is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(f"an answer that is no JSON{_words(body)}") from None


def _words(body: bytes) -> str:
    """The beginning of an answer, after a comma; nothing if it is empty."""
    words = " ".join(body[:_SHOWN].decode(errors="replace").split())
    return f", {admin_client.plain(words)}" if words else ""


def _sizes(largest: int) -> Iterator[int]:
    size = 1
    while size <= largest:
        yield size
        size *= 2
