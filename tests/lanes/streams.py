"""Strategies for whole streams: requests, what is around them, and where the network cuts them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis
from hypothesis import strategies as st

from tests import examples as usual
from tests.http1.tables import LINE_ENDS, chunked, request
from tests.lanes import bodies, exchange, heads
from tests.lanes.pair import Stream

# Without "explain", for which hypothesis traces every line that is run.
_PHASES = (hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink)
_ENDS = st.sampled_from([b"\r\n"] * 40 + LINE_ENDS)


def examples(count: int, shrinks: bool = True) -> Callable[[Any], Any]:
    """Settings for a property: usually `count` examples, always the same ones; in `make test-deep` more, and others.

    `shrinks`: look for a smaller example of a failure. In real time that can take minutes, chasing what was chance.
    """
    return hypothesis.settings(
        usual.examples(count), derandomize=not usual.IS_DEEP, database=None,
        suppress_health_check=list(hypothesis.HealthCheck), phases=_PHASES[: None if shrinks else -1],
    )  # fmt: skip


@st.composite
def proper(draw: st.DrawFn) -> bytes:
    """What a good client sends: a predict request, in one of the usual spellings, to any kind of predictor."""
    lines = [b"Content-Type: application/json"] * draw(st.integers(0, 1))
    for field in draw(st.lists(_good_fields, max_size=3, unique_by=lambda field: field[0])):
        lines.append(field[0] + b": " + field[1])
    return request(draw(bodies.sometimes_large), draw(heads.plain_targets), *lines)


_good_fields = st.sampled_from(
    [
        (b"Authorization", b"Bearer a"), (b"Authorization", b"Bearer b"), (b"X-Request-ID", b"r1"), (b"Accept", b"*/*"),
        (b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), (b"carpool-timeout-ms", b"300"),
        (b"User-Agent", b"curl/8"), (b"x-request-id", b"r2"), (b"AUTHORIZATION", b"Bearer c"), (b"X-Any", b"thing"),
        (b"Connection", b"keep-alive"), (b"Cookie", b"a=b"),
    ]
)  # fmt: skip


@st.composite
def odd(draw: st.DrawFn) -> bytes:
    """A predict request with something about its head that a client might write, or an attacker."""
    body = draw(bodies.bodies)
    fields = [(b"Host", b"h")] * draw(st.sampled_from([1, 1, 1, 1, 1, 1, 0, 2]))
    fields += draw(st.lists(st.one_of(heads.known, heads.known, heads.unknown), max_size=4))
    fields += [(b"Content-Length", b"%d" % len(body))] * draw(st.sampled_from([1, 1, 1, 1, 1, 1, 0, 2]))
    if draw(st.integers(0, 7)) == 0:
        fields.append((b"Content-Length", draw(heads.lengths)))
    if draw(st.integers(0, 60)) == 0:
        fields += [
            (b"X-%d" % index, b"v") for index in range(draw(st.sampled_from([100, 124, 125, 126, 127, 128, 200])))
        ]
    target = draw(st.one_of(heads.plain_targets, heads.plain_targets, heads.odd_targets))
    lines = [draw(heads.methods) + b" " + target + b" " + draw(heads.versions)]
    lines += [draw(heads.line(field)) for field in draw(st.permutations(fields))]
    return b"".join(line + draw(_ENDS) for line in [*lines, b""]) + body


@st.composite
def encoded(draw: st.DrawFn) -> bytes:
    """A predict request whose body claims a Content-Encoding."""
    body, coding = draw(bodies.coded())
    line = draw(heads.line((b"Content-Encoding", coding)))
    return request(body, draw(heads.plain_targets), line)


@st.composite
def framed_twice(draw: st.DrawFn) -> bytes:
    """Request smuggling: where does a body end, if Content-Length, Transfer-Encoding or several of them disagree?"""
    inside = request(b'{"instances":["smuggled"]}', heads.target(b"echo"))
    body = draw(st.sampled_from([
        b'{"instances":[1]}', chunked(b'{"instances":[1]}'), chunked(b'{"instances":[1]}', 3, 4), b"0\r\n\r\n" + inside,
        chunked(b'{"instances":[1]}') + inside, b"", inside, b"5\r\nabcde\r\n0\r\n\r\n", b"5\r\nabc", b"zz\r\n",
        chunked(b'{"instances":[1]}', last=b"0\r\nX-T: v\r\n\r\n"), chunked(b"x", last=b"0;ext=1\r\n\r\n"), b"0\r\n",
        b"11;x=\"y\"\r\n" + b'{"instances":[1]}' + b"\r\n0\r\n\r\n",
        b"0x11\r\n" + b'{"instances":[1]}' + b"\r\n0\r\n\r\n",
        b"11\n" + b'{"instances":[1]}' + b"\n0\n\n", b"11 \r\n" + b'{"instances":[1]}' + b"\r\n0\r\n\r\n",
        b"-1\r\n", b"FFFFFFFFFFFFFFFFF\r\n", b"11\r\n" + b'{"instances":[1]}' + b"xx0\r\n\r\n", b"\r\n0\r\n\r\n",
    ]))  # fmt: skip
    coding = draw(heads.line((b"Transfer-Encoding", draw(_codings))))
    lengths = [b"%d" % len(body), b"%d" % (len(body) - len(inside)), b"5", b"0", b"4"]
    length = draw(heads.line((b"Content-Length", draw(st.sampled_from(lengths)))))
    again = draw(heads.line((b"Content-Length", draw(st.sampled_from(lengths)))))
    lines = draw(st.sampled_from([
        [coding, length], [length, coding], [coding], [length, again], [length], [], [coding, coding],
        [length, coding, again],
    ]))  # fmt: skip
    return request(body, heads.target(b"echo"), *lines, length=False)


_codings = st.sampled_from([
    b"chunked", b"Chunked", b"chunked ", b"identity", b"gzip, chunked", b"chunked, identity", b"xchunked",
    b"chunked\x0b", b"chunked\0", b"'chunked'", b"chunked;", b",chunked", b"chunk\r\n ed", b"\r\n chunked",
    b"chunked\xff", b"CHUNKED",
])  # fmt: skip

passed_through = st.sampled_from([
    request(b"", b"/v1/models/echo-@@@@@@", method=b"GET", length=False), request(b"abc", b"/x-@@@@@@", method=b"PUT"),
    request(b"", b"/x-@@@@@@", b"Transfer-Encoding: chunked", length=False) + chunked(b"hello", 2),
    request(b"", b"/x-@@@@@@", method=b"HEAD", length=False),
    request(b"", heads.target(b"echo"), b"K-Network-Probe: queue"),
    request(chunked(b'{"instances":[4]}', 5), heads.target(b"echo"), b"Transfer-Encoding: chunked", length=False),
    request(b'{"instances":[5]}', heads.target(b"echo"), version=b"HTTP/1.0"),
    request(b'{"instances":[6]}', heads.target(b"echo"), b"Expect: 100-continue"),
    request(b'{"instances":[7]}', heads.target(b"echo"), b"Connection: Upgrade", b"Upgrade: websocket"),
])  # fmt: skip
malformed = st.sampled_from([
    b"\0\0\0\0", b"garbage\r\n\r\n", b"GET\r\n\r\n", b"\r\n\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"POST",
    b"POST /x-@@@@@@:predict HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"\xff" * 50, b"A" * 70_000, b" ", b"\r", b"\n",
    b"POST /x-@@@@@@:predict HTTP/1.1\r\n\r\n", b"POST /x-@@@@@@:predict HTTP/1.1\r\nHost: h\r\n", b"}", b"0\r\n\r\n",
    b"POST /x-@@@@@@:predict HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n123", b"HTTP/1.1 200 OK\r\n\r\n",
])  # fmt: skip
closing = st.builds(
    lambda line, target: request(b'{"instances":["last"]}', target, line),
    st.sampled_from([b"Connection: close", b"connection:CLOSE", b"Connection: keep-alive, close"]), heads.plain_targets,
)  # fmt: skip
anything = st.one_of(proper(), proper(), odd(), odd(), encoded(), framed_twice())
TURNS = (exchange.Turns(2), exchange.Turns(3), exchange.Turns(10))
PAUSES = (exchange.SHORTLY, *TURNS)


@st.composite
def cut(draw: st.DrawFn, parts: Sequence[bytes], most: int = 3, pauses: Sequence[exchange.Step] = PAUSES) -> Stream:
    """These parts, cut anywhere into a few writes."""
    size = max(1, sum(map(len, parts)))
    cuts = draw(st.lists(st.integers(0, size), max_size=most))
    return Stream(tuple(parts), tuple(cuts), draw(st.sampled_from(pauses)), predicts=len(parts))


@st.composite
def single(draw: st.DrawFn) -> Stream:
    """One request of any kind, perhaps with something before or behind it."""
    before = draw(st.sampled_from([b""] * 12 + [b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ", b"\0"]))
    behind = draw(st.sampled_from([b""] * 12 + [b"\r\n", b"\r\n\r\n", b"garbage", b"\0", b"{", b"POST", b"\n"]))
    parts = [before + draw(anything), behind] if behind else [before + draw(anything)]
    return draw(cut(parts)) if draw(st.booleans()) else Stream(tuple(parts))


@st.composite
def pipelined(draw: st.DrawFn) -> Stream:
    """Two to twenty requests behind each other, good ones and others."""
    kinds = st.one_of(*[proper()] * 6, passed_through, closing, malformed, anything)
    parts = draw(st.lists(kinds, min_size=2, max_size=draw(st.sampled_from([3, 6, 20]))))
    return draw(cut(parts, most=12)) if draw(st.booleans()) else Stream(tuple(parts), predicts=len(parts))


def one_by_one(parts: Sequence[bytes]) -> Stream:
    """Requests each of which comes long after the answer to the one before, so none shares a batch with another."""
    ends = tuple(itertools.accumulate(map(len, parts)))
    return Stream(tuple(parts), ends, exchange.Wait(2.3), predicts=len(parts), are_apart=True)
