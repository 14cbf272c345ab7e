"""From start to exit: listen, run the workers, and stop in an order that answers everything accepted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterable, Iterator

from aiohttp import web

from carpool.program import logs
from carpool.workers import backoff
from carpool_predictor import config, server, supervisor, waiting_limit, worker

log = logging.getLogger("predictor")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# The workers are stopped when the grace period ends, which answers what they hold with 503; this many seconds later
# aiohttp gives up on what remains, which is bodies that are still on their way in and answers on their way out.
_LAST_ANSWERS = 1.0


async def run(settings: config.Settings) -> None:
    """Serve until SIGTERM or SIGINT; a second signal ends the waiting.

    Raises `errors.Unusable` for a model that can never run, and OSError if the address cannot be listened on.
    """
    models = supervisors(settings)
    handler = server.Handler(models, settings.max_body_bytes, settings.body_timeout)
    runner = web.ServerRunner(
        web.Server(handler, access_log=None, read_bufsize=server.READ_BUFFER),
        shutdown_timeout=settings.grace_period + _LAST_ANSWERS,
    )
    await runner.setup()
    with _signals() as (first, second):
        workers: list[asyncio.Task[None]] = []
        try:
            await _listen(runner, settings)
            workers += [asyncio.create_task(model.run()) for model in models.values()]
            await _until(first, workers)
            handler.draining = True
            log.info("draining", extra=logs.facts(quiet_period_seconds=settings.quiet_period))
            await _until(second, workers, settings.quiet_period)
        finally:
            await _stop(runner, models.values(), second, settings.grace_period)
            results = await asyncio.gather(*workers, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


def supervisors(settings: config.Settings) -> dict[str, supervisor.Supervisor]:
    """One supervisor for each model of the settings, by name; none is running yet."""
    return {
        spec.name: supervisor.Supervisor(
            worker.Setup(spec, settings.options(), settings.log_format, settings.log_level),
            waiting_limit.Room(settings.max_waiting_calls, settings.max_waiting_bytes),
            backoff.Backoff(),
        )
        for spec in settings.specs()
    }


@contextlib.contextmanager
def _signals() -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Events that the first and the second signal set."""
    first, second = asyncio.Event(), asyncio.Event()

    def notice() -> None:
        (second if first.is_set() else first).set()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, notice)
    try:
        yield first, second
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _listen(runner: web.ServerRunner, settings: config.Settings) -> None:
    await web.TCPSite(runner, settings.host, settings.port, backlog=1024).start()
    host, port = runner.addresses[0][:2]
    log.info("listening", extra=logs.facts(host=host, port=port))


async def _until(event: asyncio.Event, workers: Iterable[asyncio.Task[None]], timeout: float | None = None) -> None:
    """Return when the event is set, a supervisor has given up, or after `timeout` seconds."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({waiting, *workers}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def _stop(
    runner: web.ServerRunner, models: Iterable[supervisor.Supervisor], hurry: asyncio.Event, grace: float
) -> None:
    """Answer what was accepted, then stop the workers; after `grace` seconds, or in a hurry, the other way round."""
    log.info("stopping")
    answered = asyncio.create_task(runner.cleanup())
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait({answered, hurried}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    for model in models:
        model.stop()
    await answered
