"""Whether the predictor is ready, asked only when the sidecar is asked, and how long the way to it takes.

There is no background polling: the kubelet already polls, and an idle sidecar must cost nothing. A result is reused
for a short time, so that many askers (kubelet, activator, load balancer, operators) do not become many questions to
the predictor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

import aiohttp
import yarl

from carpool.program import logs
from carpool_sidecar.upstream import probes

log = logging.getLogger("carpool.sidecar.upstream")

_USER_AGENT = "carpool-probe"

# What a predictor that is away, or a package that is not installed, may cause.
_EXPECTED = (OSError, aiohttp.ClientError, ImportError)

_GRPC_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # the predictor is in this pod, whatever http_proxy says
    ("grpc.use_local_subchannel_pool", 1),  # or the back-off after one refused check would outlive its channel
    ("grpc.primary_user_agent", _USER_AGENT),
)
_SERVING = b"\x08\x01"  # HealthCheckResponse{status (field 1, enum): SERVING (1)}

_ROUND_TRIPS = 5
_ROUND_TRIP_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


class NotReady(Exception):
    """The predictor was asked and said no; the text says how."""


class Readiness:
    """Whether the predictor can take requests: it can when every probe succeeds.

    `clock` returns seconds and never goes back. A result is reused for `reuse` seconds. `last_error` says for logs and
    people what the predictor lacked when it was last asked. `on_bug` is called when a probe fails because of a bug,
    which is in the log.
    """

    def __init__(
        self,
        wanted: Sequence[probes.Probe],
        clock: Callable[[], float],
        reuse: float = 1.0,
        on_bug: Callable[[], None] = lambda: None,
    ) -> None:
        self._probes = tuple(wanted)
        self._clock = clock
        self._reuse = reuse
        self._on_bug = on_bug
        # State: the latest result, until when it counts, the check under way.
        self.last_error = "the predictor was not asked yet"
        self._fresh_until = float("-inf")
        self._running: asyncio.Task[None] | None = None

    async def check(self) -> bool:
        """Ask the predictor, or reuse its last answer; True if and only if `last_error` is empty.

        Callers that come while a check is under way share it. Takes no longer than the longest timeout of a
        probe. Raises nothing but the caller's own cancellation, which does not disturb the other callers.
        """
        if self._running is None and self._clock() >= self._fresh_until:
            self._running = asyncio.create_task(self._ask_all())
        if self._running is not None:
            await asyncio.wait([self._running])
        return not self.last_error

    async def close(self) -> None:
        """Stop a check that is under way. Not to be used afterwards."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def _ask_all(self) -> None:
        try:
            answers = await asyncio.gather(*map(self._ask, self._probes))
            self._remember("; ".join(filter(None, answers)))
        finally:
            self._running = None

    async def _ask(self, probe: probes.Probe) -> str:
        """Run one probe; returns "" when it succeeds, else the reason."""
        try:
            async with asyncio.timeout(probe.timeout):
                await self._run(probe)
        except NotReady as reason:
            return f"{probe}: {reason}"
        except TimeoutError:
            return f"{probe}: no answer within {probe.timeout:g} s"
        except Exception as error:  # whatever keeps a probe from succeeding, the predictor cannot be called ready
            if not isinstance(error, _EXPECTED):
                self._on_bug()
                log.exception("a readiness probe failed for a reason that is a bug")
            return f"{probe}: {str(error) or type(error).__name__}"
        return ""

    async def _run(self, probe: probes.Probe) -> None:
        if isinstance(probe, probes.HttpGet):
            await _get(probe)
        elif isinstance(probe, probes.TcpSocket):
            await _connect(probe)
        else:
            await _check_health(probe)

    def _remember(self, error: str) -> None:
        if error and not self.last_error:
            log.warning("the predictor is not ready any more", extra=logs.facts(error=error))
        elif self.last_error and not error:
            log.info("the predictor is ready")
        self.last_error = error
        self._fresh_until = self._clock() + self._reuse


async def _get(probe: probes.HttpGet) -> None:
    """As the kubelet does it: a new connection each time, no cookies, no verification of certificates.

    A redirect counts as success without being followed; the body is not read.
    """
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=False, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"User-Agent": _USER_AGENT},
            auto_decompress=False,
        ) as session,
        session.get(probe.url, headers=probe.headers, allow_redirects=False) as response,
    ):
        if not 200 <= response.status < 400:
            raise NotReady(f"answered {response.status}")


async def _connect(probe: probes.TcpSocket) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, probe.host, probe.port)
    transport.close()


async def _check_health(probe: probes.Grpc) -> None:
    """https://github.com/grpc/grpc/blob/master/doc/health-checking.md, its two messages written by hand."""
    import grpc.aio

    from carpool_sidecar.upstream import grpc_channels

    async with grpc_channels.open_channel(probe.target, _GRPC_OPTIONS) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            answer = await check(_health_request(probe.service))
        except grpc.aio.AioRpcError as error:
            raise NotReady(f"{error.code().name}: {error.details()}") from None
    if answer != _SERVING:
        raise NotReady("answered that it is not serving")


def _health_request(service: str) -> bytes:
    """HealthCheckRequest{service (field 1): string}."""
    name = service.encode()
    return b"\x0a" + _varint(len(name)) + name if name else b""


def _varint(number: int) -> bytes:
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


async def round_trip(base: yarl.URL) -> float | None:
    """The shortest of a few requests for `/` in seconds, whatever their status; None if there was no answer.

    The adaptive policy sends the next batch so much before the predictor runs out of work. It learns this from batches
    as well; measuring it once makes small and quiet systems good from their first batches on. The first request pays
    for the connection and does not count.
    """
    shortest = None
    headers = {"User-Agent": _USER_AGENT}
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with aiohttp.ClientSession(timeout=_ROUND_TRIP_TIMEOUT, headers=headers) as session:
            for number in range(_ROUND_TRIPS + 1):
                started = time.perf_counter()
                async with session.get(base / "", allow_redirects=False) as response:
                    await response.read()
                if number:
                    shortest = min(shortest or float("inf"), time.perf_counter() - started)
    return shortest
