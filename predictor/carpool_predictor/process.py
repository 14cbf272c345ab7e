"""`carpool-predictor` from start to exit: settings, listening, workers, and an end that answers everything accepted."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Iterable, Sequence

import uvloop
from aiohttp import web

from carpool.program import addresses, logs, signals
from carpool.program import settings as loader
from carpool.workers import errors as worker_errors
from carpool_predictor import config, served_model, server, worker

log = logging.getLogger("carpool.predictor")

_EPILOG = """paths:
  POST /v1/models/NAME:predict   {"instances": [...]} -> {"predictions": [...]}
  POST /v1/embeddings            OpenAI's, for models that embed texts, such as minilm
  GET  /v1/models, /v1/models/NAME, /livez, /readyz

your own model: a class with load(), warm_up() and predict(instances); help(carpool_predictor.model) tells more

examples:
  carpool-predictor --models minilm
  carpool-predictor --models words=words:WordCount,echo --port 8080
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the predictor. Returns 0 after a clean stop, 1 if the port is taken, 2 for unusable settings."""
    chosen = loader.load(config.Settings, sys.argv[1:] if argv is None else argv, _EPILOG)
    logs.set_up(chosen.log_format, chosen.log_level)
    try:
        uvloop.run(run(chosen))
    except worker_errors.Unusable as error:
        loader.fail("carpool-predictor", str(error))
    except OSError as error:
        log.error("cannot listen", extra=logs.facts(host=chosen.host, port=chosen.port, error=str(error)))
        return 1
    return 0


# The workers are stopped when the grace period ends, which answers what they hold with 503; so many seconds later
# aiohttp gives up on what remains, which is bodies that are still on their way in and answers on their way out.
_LAST_ANSWERS = 1.0

LINGER = 0.25
"""Seconds that a client gets whose next request may be under way, before its idle connection is closed."""


async def run(settings: config.Settings) -> None:
    """Serve until SIGTERM or SIGINT; a second signal ends the waiting.

    Raises `worker_errors.Unusable` for a model that can never run, and OSError if the address cannot be listened on.
    """
    models = served_models(settings)
    unassigned = served_model.WaitingLimit(settings.max_waiting_calls, settings.max_waiting_bytes)
    handler = server.Handler(models, settings.max_body_bytes, settings.body_timeout, unassigned)
    runner = web.ServerRunner(
        web.Server(handler, access_log=None, read_bufsize=server.READ_BUFFER),
        shutdown_timeout=_LAST_ANSWERS,
    )
    await runner.setup()
    first, second = _on_signals()
    workers: list[asyncio.Task[None]] = []
    try:
        await _listen(runner, settings)
        workers += [asyncio.create_task(model.run()) for model in models.values()]
        await _until(first, workers)
        handler.draining = True
        log.info("draining", extra=logs.facts(quiet_period_seconds=settings.quiet_period))
        await _until(second, workers, settings.quiet_period)
    finally:
        await stop(runner, handler, models.values(), second, settings.grace_period)
        results = await asyncio.gather(*workers, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


def served_models(settings: config.Settings) -> dict[str, served_model.ServedModel]:
    """The models of the settings by name; no worker is running yet."""
    return {
        spec.name: served_model.ServedModel(
            worker.Setup(spec, settings.options(), settings.log_format, settings.log_level),
            served_model.WaitingLimit(settings.max_waiting_calls, settings.max_waiting_bytes),
            settings.device,
            settings.batching(),
        )
        for spec in settings.specs()
    }


def _on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Events that the first and the second signal set."""
    first, second = asyncio.Event(), asyncio.Event()

    def received(_: signal.Signals) -> None:
        (second if first.is_set() else first).set()

    signals.while_serving(received)
    return first, second


async def _listen(runner: web.ServerRunner, settings: config.Settings) -> None:
    for listening in addresses.bind(settings.host, settings.port):
        await web.SockSite(runner, listening, backlog=1024).start()
    host, port = runner.addresses[0][:2]
    log.info("listening", extra=logs.facts(host=host, port=port))


async def _until(event: asyncio.Event, workers: Iterable[asyncio.Task[None]], timeout: float | None = None) -> None:
    """Return when the event is set, a supervisor has given up, or after `timeout` seconds."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait({waiting, *workers}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def stop(
    runner: web.ServerRunner,
    handler: server.Handler,
    models: Iterable[served_model.ServedModel],
    hurry: asyncio.Event,
    grace: float,
) -> None:
    """Answer what was accepted, then stop the workers; after `grace` seconds, or in a hurry, the other way round.

    Connections are closed behind their answers, which say so, or else when nothing is asked any more.
    """
    log.info("stopping")
    handler.parting = True
    answering = asyncio.create_task(_answer_last(runner, handler, grace))
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait({answering, hurried}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    for model in models:
        model.stop()
    await runner.cleanup()


async def _answer_last(runner: web.ServerRunner, handler: server.Handler, grace: float) -> None:
    """Accept no connections, and return when all that was asked on those that are here is answered and written."""
    for site in list(runner.sites):
        await site.stop()
    if runner.server is not None and runner.server.connections:
        await asyncio.sleep(LINGER)
    await handler.until_idle()
    if runner.server is not None:  # an answer that its client reads slowly is on its way still
        runner.server.pre_shutdown()
        await runner.server.shutdown(grace)
