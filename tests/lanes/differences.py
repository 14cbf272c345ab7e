"""What the two ways may differ in, in words and in code; anything else is a difference.

Everywhere:

- `Date`: its value, not whether and where it is there.
- `batchId`: its value. Plain pipelined requests are sent to the predictor at once and may share a batch there; others
  are served one by one. So when they are answered, how instances are
  grouped in calls to the predictor, whether it gets those of a batch that it refuses once more, and which request ids
  and trace these carry, is compared only where a stream has a single predict request, or there is a place at the
  predictor for each.
- Which of two timers that fall due at the same moment is first, and so whether a 504 speaks of the request's deadline
  or of the predictor's time.
- Which part of a request that was cut is the first to fail, and so how many instances its error speaks of.
- Ports of loopback addresses.
- Whether the end of a connection is a reset: the system makes one of a close while the client is still sending.
- By up to a second, when a client is told that it is late, and when a connection that nobody uses ends: the clock is
  looked at once a second for all connections.
- Of plain pipelined requests that were accepted before shutdown began, all are answered, and the connection closes with
  the last; others are served one by one, and it closes behind the first. (Compared with a single one; `tests/server`
  has the rest.)
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.lanes import exchange, recorder

# Each begins with something literal: answers can be large, and so they are skipped through fast.
_DATE = re.compile(rb"\r\nDate: [^\r]+")
_BATCH_ID = re.compile(rb'"batchId":"[0-9a-f-]{36}"')
_MISCOUNTED = re.compile(rb"predictions for \d+ instances")
_LOOPBACK_PORT = re.compile(rb"127\.0\.0\.1'?[:, ]+\d{4,5}")
# At the deadline of the last request of a batch two timers fall due at once, the request's and the batch's.
_LATE = re.compile(
    rb'(?:Content-Length: \d+\r\n\r\n)?\{"(?:error|message)":"'
    rb'(?:no answer within the request\'s deadline|the predictor did not answer in time)"'
)
_MALFORMED = re.compile(
    rb"(HTTP/1.[01] 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: )\d+"
    rb"(\r\nDate: [^\r]*\r\nServer: [^\r]*(?:\r\nConnection: close)?\r\n\r\n).*\Z",
    re.DOTALL,
)
_BATCH_COUNT = re.compile(rb"(?<=\r\ncarpool-batch-count: )\d+")  # as what was sent at once was packed
ROUNDING = 1.01  # seconds
_OF_ONE_REQUEST = frozenset({"content-length", "x-request-id", "traceparent", "tracestate"})


def normalised(data: bytes) -> bytes:
    """Answers without what may differ everywhere."""
    data = _MALFORMED.sub(rb"\1?\2?", data)
    data = _LOOPBACK_PORT.sub(b"127.0.0.1:?", _DATE.sub(b"\r\nDate: ?", data))
    data = _LATE.sub(b'?{"?":"it is late"', _MISCOUNTED.sub(b"predictions for ? instances", data))
    return _BATCH_COUNT.sub(b"?", _BATCH_ID.sub(b'"batchId":"?"', data))


@dataclass
class Result:
    """What one stream led to: the client's transcript, and what reached the predictor because of it."""

    transcript: exchange.Transcript
    seen: Sequence[recorder.Seen] = ()

    def answers(self, is_timed: bool) -> list[tuple[float, bytes]]:
        """What was read, comparable; with the moments if `is_timed`, but for answers to who is late."""
        if not is_timed:
            return [(0.0, normalised(self.transcript.data))]
        return [(0.0 if b" 408 " in data else moment, normalised(data)) for moment, data in self.transcript.events]

    def effects(self, is_alone: bool) -> Counter[tuple[object, ...]]:
        """What reached the predictor, comparable; request by request or, if not `is_alone`, instance by instance."""
        if is_alone:
            return Counter(map(_call, self.seen))
        refused = {instance for seen in self.seen if seen.is_refused for instance in _instances(seen)}
        return Counter(refused) + Counter(
            instance for seen in self.seen if not seen.is_refused for instance in _instances(seen)
        )


def _call(seen: recorder.Seen) -> tuple[str, str, tuple[tuple[str, bytes], ...], bytes | None]:
    # Its own address in Host is the only field that differs between two sidecars.
    headers = tuple((name, normalised(value.encode(errors="surrogateescape"))) for name, value in seen.headers)
    return seen.method, seen.target, headers, seen.body


def _instances(seen: recorder.Seen) -> Iterable[tuple[object, ...]]:
    is_batch = seen.payload is not None and not any(name.lower() == "forwarded" for name, _ in seen.headers)
    if not is_batch:
        return [_call(seen)]
    method, target, headers, _ = _call(seen)
    shared = tuple(item for item in headers if item[0].lower() not in _OF_ONE_REQUEST)
    return [(method, target, shared, seen.payload.list_name, seen.payload.others, row) for row in seen.rows]


def difference(fast: Result, slow: Result, is_timed: bool, is_alone: bool, is_virtual: bool = True) -> str | None:
    """What differs between the lanes, told so that it can be acted upon; None if nothing does that may not.

    `is_timed`: the moments of answers count. `is_alone`: each request was its own batch in both lanes. `is_virtual`:
    only what the lanes do takes time, not the machine they run on.
    """
    ours, theirs = fast.transcript, slow.transcript
    is_same = fast.answers(is_timed) == slow.answers(is_timed) and _ending(ours) == _ending(theirs)
    longer = ROUNDING if is_timed else math.inf
    is_in_time = not is_virtual or -ROUNDING <= theirs.ended - ours.ended <= longer
    if not (is_same and is_in_time):
        return _told("the client got", ours, theirs)
    if fast.effects(is_alone) != slow.effects(is_alone):
        more, less = fast.effects(is_alone), slow.effects(is_alone)
        told = _told("the predictor got", list((more - less).elements()), list((less - more).elements()))
        return f"{told}\nboth clients got {_short(ours)}"
    return None


def _ending(transcript: exchange.Transcript) -> str:
    is_end = b"Connection: close" in transcript.data or _MALFORMED.search(transcript.data)
    return "closed" if is_end and transcript.end == "reset" else transcript.end


def _told(what: str, fast: object, slow: object) -> str:
    return f"{what}, short way on:  {_short(fast)}\n{what}, short way off: {_short(slow)}"


def _short(value: object, limit: int = 3000) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 2 :]} ({len(text)} characters)"
