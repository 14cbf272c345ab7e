"""The HTTP port: heads that never end, bodies in tiny chunks, bombs, pipelines, and answers that nobody reads.

And the admin port: connections that nobody uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import zlib
from collections.abc import Coroutine

from benchmarks.attack import attack, link, target

_GZIP = 31  # zlib's window bits
_CONNECTIONS = 300
_LONGER_THAN_HEADS_MAY_TAKE = 40.0
_INFLATED = 60_000_000
_KEYS = 64
_NEWCOMERS = 20  # a second
_MORE_THAN_FILES = 1200

_POST = b"POST /v1/models/echo:predict HTTP/1.1\r\nHost: attacked\r\nContent-Type: application/json\r\n"
_GET = b"GET /v1/models/echo HTTP/1.1\r\nHost: attacked\r\n\r\n"


def _post(body: bytes, *lines: bytes) -> bytes:
    return b"%b%bContent-Length: %d\r\n\r\n%b" % (_POST, b"".join(line + b"\r\n" for line in lines), len(body), body)


def _waiting(*parts: bytes) -> attack.Strike:
    """Send this and say nothing more, on hundreds of connections."""

    async def one_of_many(to: target.Target) -> None:
        async with link.http1(to) as one:
            for part in parts:
                await one.send(part)
                await asyncio.sleep(0.5)
            await one.linger()

    return attack.at_once(one_of_many, _CONNECTIONS)


async def _pipeline(to: target.Target) -> None:
    """Requests of which no two can share a batch, and the next lot as soon as these are answered."""
    number = random.Random(to.told.connections).randrange(1 << 30)
    lot = b"".join(
        _post(b'{"instances":[%d]}' % each, b"Authorization: %d-%d" % (number, each)) for each in range(_KEYS)
    )
    async with link.http1(to, reads=False) as one:
        while to.left:
            await one.send(lot)
            answers = 0
            while answers < _KEYS:
                data = await one.read_some(65_536)
                if not data:
                    raise link.Gone
                answers += data.count(b"HTTP/1.1 ")


async def _unread(to: target.Target) -> None:
    """A large answer on each of a hundred connections, not faster than the predictor can give them."""
    request = _post(b'{"instances":["%b"]}' % (b"x" * 3_000_000))
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(100):
            one = await stack.enter_async_context(link.http1(to, reads=False, receive_buffer=4096))
            await one.send(request)
            await asyncio.sleep(0.06)
        await asyncio.sleep(to.left)


async def _unread_pipeline(to: target.Target) -> None:
    """Small questions with small answers, thousands of them, and none is read."""
    async with link.http1(to, reads=False, receive_buffer=4096) as one:
        await one.flood(_post(b'{"instances":[1]}'), 20_000_000)
        await asyncio.sleep(to.left)


async def _chunks(to: target.Target) -> None:
    async with link.http1(to) as one:
        await one.send(_POST + b"Transfer-Encoding: chunked\r\n\r\n")
        await one.flood(b"1\r\n \r\n", 30_000_000)
        await one.linger()


async def _slow_bodies(to: target.Target) -> None:
    async with link.http1(to) as one:
        await one.send(_POST + b"Content-Length: 10000000\r\n\r\n")
        while to.left:
            await one.send(b" ")
            await asyncio.sleep(0.1)


def _bomb(start: bytes, middle: bytes, end: bytes, size: int) -> attack.Strike:
    async def run(to: target.Target) -> None:
        packer = zlib.compressobj(9, wbits=_GZIP)
        packed = packer.compress(start + middle * (size // len(middle)) + end) + packer.flush()
        request = _post(packed, b"Content-Encoding: gzip")
        async with link.http1(to, reads=False) as one:
            while to.left:
                await one.send(request)
                if not await one.read_some(65_536):
                    raise link.Gone

    return attack.again(run)


async def _texts(to: target.Target) -> None:
    """v2 requests of 600 kB with another long id each, and now and then one of 2 MB."""
    data = b",".join([b"[" + b",".join([b"1.5"] * 5000) + b"]"] * 30)
    async with link.http1(to, reads=False) as one:
        for number in itertools.count():
            if not to.left:
                return
            name = b"%d" % number + b"x" * (2_000_000 if number % 10 == 9 else 300_000)
            body = b'{"id":"%b","inputs":[{"name":"rows","datatype":"FP32","shape":[30,5000],"data":[%b]}]}' % (
                name,
                data,
            )
            await one.send(_post(body).replace(b"v1/models/echo:predict", b"v2/models/echo/infer"))
            answers = 0
            while not answers:
                found = await one.read_some(1_000_000)
                if not found:
                    raise link.Gone
                answers = found.count(b"HTTP/1.1 ")
            await asyncio.sleep(0.1)


async def _come_and_go(to: target.Target) -> None:
    while to.left:
        async with link.http1(to, reads=False) as one:
            await one.send(_GET[:20])


async def _nonsense(to: target.Target) -> None:
    chance = random.Random(to.told.connections)
    words = (
        _GET,
        _POST,
        b"\r\n",
        b"\0",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"FFFFFFFFF\r\n",
        b" ",
    )
    async with link.http1(to) as one:
        for _ in range(40):
            await one.send(chance.choice(words) + chance.randbytes(chance.choice((0, 0, 1, 40))))
            await asyncio.sleep(0.005)


def _never_reading(request: bytes, times: int, to_admin: bool = False) -> attack.Strike:
    """New clients all the time, each of which asks, reads nothing and stays."""

    async def one_of_many(to: target.Target, stack: contextlib.AsyncExitStack) -> None:
        port = to.admin_port if to_admin else to.http_port
        one = await stack.enter_async_context(link.http1(to, reads=False, receive_buffer=4096, port=port))
        await one.send(request * times)

    async def run(to: target.Target) -> None:
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as asking:
            while to.left:
                asking.create_task(_until_gone(one_of_many(to, stack)))
                await asyncio.sleep(1 / _NEWCOMERS)

    return run


async def _until_gone(strike: Coroutine[None, None, None]) -> None:
    with contextlib.suppress(link.Gone, target.Exhausted):
        await strike


async def _admin_connections(to: target.Target) -> None:
    """More than there are files: silent ones, heads that have begun, and some that wait for a drain."""

    async def one_of_many(number: int) -> None:
        async with link.http1(to, port=to.admin_port) as one:
            await one.send((b"", b"GET /livez HTTP/1.1\r\n", b"GET /drained HTTP/1.1\r\nHost: a\r\n\r\n")[number % 3])
            await one.linger()

    async with asyncio.TaskGroup() as many:
        for number in range(_MORE_THAN_FILES):
            many.create_task(_until_gone(one_of_many(number)))
            await asyncio.sleep(0.005)


def _http(name: str, title: str, run: attack.Strike, seconds: float = attack.SECONDS) -> attack.Attack:
    return attack.Attack(f"http-{name}", title, run, attack.CARPOOL, seconds)


_HEAD = _POST + b"X: " + b"x" * 15_000
_LAZY = _GET + b"GET /v1/models/echo HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 15_000

_LARGE_POST = _post(b'{"instances":["%b"]}' % (b"x" * 50_000))
_PLACES = ("--max-connections", "150", "--timeout", "3")
"""Never-reading clients that stay for longer than their time have these places within eight seconds."""


def _never(name: str, title: str, run: attack.Strike, files: int | None = None) -> attack.Attack:
    return attack.Attack(f"never-reading-{name}", title, run, attack.CARPOOL, 12.0, _PLACES, files)


ATTACKS = (
    attack.Attack(
        "admin-connections",
        "1,200 connections to the admin port, 1,024 files",
        _admin_connections,
        attack.CARPOOL,
        8.0,
        files=1024,
    ),
    _never("fast", "20 clients a second that read nothing", _never_reading(_LARGE_POST, 1)),
    _never(
        "general",
        "the same, in an unusual way",
        _never_reading(_LARGE_POST.replace(b"Host", b"Expect: 100-continue\r\nHost"), 4),
    ),
    _never("passed", "the same, passed through", _never_reading(_LARGE_POST.replace(b":predict", b":other"), 4)),
    _never("questions", "the same, 100 GETs each", _never_reading(_GET.replace(b"Host", b"Cookie: a\r\nHost"), 100)),
    _never(
        "admin",
        "the same, on the admin port, 256 files",
        _never_reading(_GET.replace(b"v1/models/echo", b"config"), 4, True),
        files=256,
    ),
    _http("heads", "300 partial heads of 15 kB", _waiting(_HEAD), _LONGER_THAN_HEADS_MAY_TAKE),
    _http("heads-general", "300 partial heads after a GET", _waiting(_GET, _LAZY), _LONGER_THAN_HEADS_MAY_TAKE),
    _http("pipelines", "50 x 64 keys, pipelined", attack.at_once(attack.again(_pipeline), 50), 8.0),
    _http("unread", "100 answers of 3 MB, never read", _unread, 10.0),
    _http("unread-pipeline", "pipelined requests, answers never read", attack.at_once(_unread_pipeline, 4), 8.0),
    _http("chunks", "chunks of one byte, on four connections", attack.at_once(attack.again(_chunks), 4)),
    _http("slow-bodies", "300 bodies, a byte each 100 ms", attack.at_once(_slow_bodies, 300)),
    _http("bomb-numbers", "30,000,000 instances in 60 kB", _bomb(b'{"instances":[0', b",0", b"]}", _INFLATED)),
    _http("bomb-brackets", "arrays in arrays, 60 MB in 60 kB", _bomb(b'{"instances":[', b"[", b"", _INFLATED)),
    _http("bomb-large", "80 MB in 80 kB", _bomb(b'{"instances":["', b"x", b'"]}', 80_000_000)),
    _http("texts", "v2 requests with ids of 300 kB and 2 MB", attack.again(_texts), 8.0),
    _http("come-and-go", "connections opened and closed, 8 at a time", attack.at_once(_come_and_go, 8)),
    _http("nonsense", "random pieces of HTTP", attack.at_once(attack.again(_nonsense), 16)),
)
