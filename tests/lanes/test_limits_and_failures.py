"""Too much, too large, too late, going down, or a predictor that fails: both lanes refuse in the same words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.lanes import exchange, heads, lane, recorder, streams
from tests.lanes.exchange import Leave, Reading, Turns, Wait
from tests.lanes.pair import Pair, Stream

_PLAIN = streams.request(b'{"instances":[1]}', heads.target(b"echo"))
_MIB = 1 << 20


def _numbered(request: bytes, number: int) -> bytes:
    return request.replace(b"@@@@@@", b"%06d" % number)


def _told(results: list[exchange.Transcript]) -> list[object]:
    """Statuses and moments of answers, and how each connection ended."""
    return [
        ([(moment, data.count(b"HTTP/1.1 "), data[:60].split(b"\r\n")[0]) for moment, data in one.events], one.end)
        for one in results
    ]


def _both(pair: Pair, script: Callable[[lane.Lane], Coroutine[Any, Any, Any]]) -> Any:
    fast, slow = pair.run(script)
    assert fast == slow
    assert pair.fast.leftovers() == pair.slow.leftovers() == {}
    return fast


@pytest.mark.parametrize("behaviour", recorder.BEHAVIOURS)
@pytest.mark.parametrize("kserve_errors", [False, True], ids=["honest", "as KServe"])
def test_every_kind_of_predictor_trouble(
    pairs_by_dialect: dict[bool, Pair], behaviour: str, kserve_errors: bool
) -> None:
    target = heads.target(behaviour.encode())
    bodies = [
        b'{"instances":[1]}',
        b'{"instances":["bad",1,2]}',
        b'{"inputs":[1]}',
        b'{"inputs":{"a":[1]}}',
        b"{",
        b"{}",
    ]
    parts = [streams.request(body, target) for body in bodies]
    closing = [streams.request(body, target, b"Connection: close") for body in bodies]
    each = [Stream((part,)) for part in (*parts, *closing)]
    pairs_by_dialect[kserve_errors].compare([*each, streams.one_by_one(parts)])


@pytest.fixture(scope="module")
def pairs_by_dialect(module_pair_of: Callable[..., Pair]) -> dict[bool, Pair]:
    """A pair with honest statuses, and one that answers as KServe's batcher does."""
    return {flag: module_pair_of(kserve_errors=flag) for flag in (False, True)}


def test_without_batching_all_is_passed_through(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(enable_batcher=False)
    other = streams.request(b"abc", b"/v1/x-@@@@@@", method=b"PUT")
    invalid = streams.request(b"{", heads.target(b"echo"))
    pair.compare([Stream((_PLAIN,)), Stream((_PLAIN, other, _PLAIN), predicts=2), Stream((invalid, b"garbage"))])


def test_a_batch_limit_smaller_than_a_request_and_its_mates(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(max_batch_size=2)
    rows = [b'{"instances":[1,2,3,4,5]}', b'{"instances":[1]}', b'{"instances":["bad",2,3]}']
    alone = [streams.request(row, heads.target(name)) for row in rows for name in (b"echo", b"poison", b"reject")]
    pair.compare([Stream((part,), predicts=2) for part in alone])


def test_a_predictor_that_is_not_there(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of()

    async def lose_predictor(each: lane.Lane) -> None:
        await each._runner.cleanup()

    pair.run(lose_predictor)
    pair.compare([Stream((_PLAIN,)), Stream((_PLAIN, _PLAIN), predicts=2)])


def test_a_full_queue(pair_of: Callable[..., Pair]) -> None:
    """The queue holds two; what comes in one read is refused as what comes one by one."""
    pair = pair_of(max_in_flight=1, max_batch_size=1, max_queue_instances=2)

    async def script(each: lane.Lane) -> Any:
        each.predictor.gate.clear()
        waiting = []
        for number in range(1, 7):
            steps = [_numbered(_PLAIN, number), Wait(20), Leave.CLOSE]
            waiting.append(asyncio.ensure_future(each.converse(steps)))
            await asyncio.sleep(0.1)
        each.predictor.gate.set()
        return _told(await asyncio.gather(*waiting)), len(each.predictor.seen), each.counts()

    told, seen, counts = _both(pair, script)
    assert seen == 3
    assert counts["carpool_refused_total['queue_full']"] == 3
    assert sum(b"HTTP/1.1 429" in str(one).encode() for one in told) == 3


def test_memory_for_bodies_that_is_full(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of(max_body_bytes=100_000, max_queue_bytes=250_000, max_in_flight=1, max_batch_size=1)
    large = streams.request(b'{"instances":["%b"]}' % (b"x" * 90_000), heads.target(b"slow"))

    async def script(each: lane.Lane) -> Any:
        waiting = []
        for number in range(1, 6):
            waiting.append(asyncio.ensure_future(each.converse([_numbered(large, number), Wait(20), Leave.CLOSE])))
            await asyncio.sleep(0.01)
        half = [_numbered(large, 7)[:60_000], Wait(5), _numbered(large, 7)[60_000:], Wait(9), Leave.CLOSE]
        waiting.append(asyncio.ensure_future(each.converse(half)))
        return _told(await asyncio.gather(*waiting)), each.counts()

    _, counts = _both(pair, script)
    assert counts["carpool_refused_total['memory_full']"] >= 3


@pytest.mark.parametrize("size", [99_999, 100_000, 100_001, 3_000_000])
def test_a_body_that_is_too_large(pair_of: Callable[..., Pair], size: int) -> None:
    pair = pair_of(max_body_bytes=100_000)
    body = b'{"instances":["%b"]}' % (b"x" * (size - 18))
    assert len(body) == size
    request = streams.request(body, heads.target(b"echo"))
    head = request[: request.index(b"\r\n\r\n") + 4]
    pair.compare(
        [
            Stream((request,)), Stream((request, _PLAIN), predicts=2), Stream((_PLAIN, request), predicts=2),
            Stream((request,), (len(head),)), Stream((request,), (len(head) + 50_000,)), Stream((head,)),
            Stream((_PLAIN, head), predicts=2), Stream((request,), tuple(range(0, size, 70_000))),
        ]
    )  # fmt: skip


@pytest.mark.parametrize("limits", [{}, {"max_body_bytes": 2000}, {"max_queue_instances": 3}], ids=str)
def test_limits_and_those_changed_while_running(pair_of: Callable[..., Pair], limits: dict[str, Any]) -> None:
    pair = pair_of(**limits)
    slow = streams.request(b'{"instances":[1,2,3,4]}', heads.target(b"slow"))
    large = streams.request(b'{"instances":["%b"]}' % (b"x" * 3000), heads.target(b"echo"))
    for change in ({}, {"timeout": 0.4}, {"max_batch_size": 1}):

        async def apply(each: lane.Lane, change: dict[str, Any] = change) -> None:
            each.sidecar.apply(each.sidecar.settings.changed(change))

        pair.run(apply)
        pair.compare([Stream((slow,)), Stream((large,)), Stream((slow[:-4],)), Stream((_PLAIN, slow), predicts=2)])


_DRAIN = [
    ("before, answered while quiet", [_PLAIN, Wait(1.5), _PLAIN]),
    ("idle from before", [Wait(8), _PLAIN]),
    ("idle, and garbage", [Wait(8), b"garbage\r\n\r\n"]),
    ("while quiet", [Wait(1.5), _PLAIN]),
    ("while quiet, two at once", [Wait(1.5), _PLAIN + _PLAIN]),
    ("across the beginning", [Wait(0.5), streams.request(b'{"instances":[1]}', heads.target(b"slow"))]),
    ("a body across the beginning", [Wait(0.5), _PLAIN[:-3], Wait(1), _PLAIN[-3:]]),
    ("a body across the refusal", [Wait(0.5), _PLAIN[:-3], Wait(6), _PLAIN[-3:]]),
    ("a head across the beginning", [Wait(0.5), _PLAIN[:30], Wait(1), _PLAIN[30:]]),
    ("a head across the refusal", [Wait(0.5), _PLAIN[:30], Wait(8), _PLAIN[30:]]),
    (
        "accepted late, answered after the refusal",
        [Wait(4.5), streams.request(b'{"instances":[1]}', heads.target(b"slow"))],
    ),
    ("refused", [Wait(8), _PLAIN]),
    ("refused, two at once", [Wait(8), _PLAIN + _PLAIN]),
    ("refused, not even JSON", [Wait(8), streams.request(b"{", heads.target(b"echo"))]),
    ("refused, passed through", [Wait(8), streams.request(b"abc", b"/x-@@@@@@", method=b"PUT")]),
    ("a prober while quiet", [Wait(1.5), streams.request(b"", b"/", b"User-Agent: kube-probe/1", method=b"GET")]),
    ("a prober that predicts", [Wait(1.5), streams.request(b"{}", heads.target(b"echo"), b"User-Agent: kube-probe/1")]),
    ("a probe", [Wait(1.5), streams.request(b"", b"/", b"K-Network-Probe: queue", method=b"GET")]),
]


@pytest.mark.parametrize("index", range(len(_DRAIN)), ids=[name for name, _ in _DRAIN])
def test_clients_of_a_sidecar_that_shuts_down(pair_of: Callable[..., Pair], index: int) -> None:
    """It is told at 1 s, refuses from 5 s on, and is closed at 12 s at the latest."""
    pair = pair_of(quiet_period=4.0, grace_period=11.0, timeout=8.0)
    steps = [_numbered(step, 1) if isinstance(step, bytes) else step for step in _DRAIN[index][1]]

    async def script(each: lane.Lane) -> Any:
        conversation = asyncio.ensure_future(each.converse([*steps, Wait(20), Leave.CLOSE]))
        await asyncio.sleep(1)
        drained = await each.sidecar.drain()
        left = each.leftovers()
        await asyncio.sleep(12 - asyncio.get_running_loop().time() % 1)
        await each.sidecar.stop()
        transcript = await conversation
        seen = [(one.target, row) for one in each.predictor.seen for row in (one.rows or [one.body])]
        return drained, left, _heads(transcript), transcript.end, seen, each.counts()

    assert _both_but_stopped(pair, script)


def _heads(transcript: exchange.Transcript) -> list[tuple[float, list[bytes]]]:
    lines = [(moment, data.split(b"\r\n")) for moment, data in transcript.events]
    return [
        (moment, [line for line in each if not line.startswith((b"Date", b'{"message"', b"Content-Length"))])
        for moment, each in lines
    ]


def _both_but_stopped(pair: Pair, script: Callable[[lane.Lane], Coroutine[Any, Any, Any]]) -> Any:
    fast, slow = pair.run(script)
    assert fast == slow
    return fast


@pytest.mark.parametrize("rows", [1, 4, 30])
def test_a_client_that_does_not_read_its_answers_is_cut_off_after_as_long(
    pair_of: Callable[..., Pair], rows: int
) -> None:
    """Its memory is counted meanwhile. How many bytes fit into the sockets' buffers is the kernel's business."""
    pair = pair_of()
    request = streams.request(b'{"instances":[%b]}' % b",".join([b"1"] * rows), heads.target(b"large"))

    async def script(each: lane.Lane) -> tuple[exchange.Transcript, list[float]]:
        steps = [Reading.STOP, _numbered(request, 1), Wait(5), Turns(1), Wait(2000), Reading.GO_ON]
        held: list[float] = []
        conversation = asyncio.ensure_future(each.converse(steps, patience=5000, receive_buffer=4096))
        for _ in range(3):
            await asyncio.sleep(3)
            held.append(each.leftovers().get("carpool_held_bytes[]", 0))
        transcript = await conversation
        assert each.leftovers() == {}
        return transcript, held

    (fast, fast_held), (slow, slow_held) = pair.run(script)
    assert fast.end == slow.end
    assert (fast_held[0] > 0) == (slow_held[0] > 0) == (rows > 4) or rows == 4
    assert len(fast.data) > 0
    assert (len(fast.data) < rows * _MIB) == (len(slow.data) < rows * _MIB)


def test_a_client_that_reads_slowly_gets_all_of_its_answers(pair_of: Callable[..., Pair]) -> None:
    pair = pair_of()
    request = streams.request(b'{"instances":[1,2,3,4,5,6]}', heads.target(b"large"))
    naps = [step for _ in range(10) for step in (Reading.STOP, Wait(1), Reading.GO_ON, Turns(30))]

    async def script(each: lane.Lane) -> tuple[int, str, int]:
        steps = [Reading.STOP, _numbered(request * 3 + _PLAIN, 1), *naps, Wait(1), Leave.CLOSE]
        transcript = await each.converse(steps, receive_buffer=65536)
        return len(transcript.data), transcript.end, transcript.count

    size, end, count = _both(pair, script)
    assert size > 18 * _MIB
    assert (end, count) == ("left", 4)
