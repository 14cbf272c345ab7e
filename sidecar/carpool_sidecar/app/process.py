"""The serving process: it reads settings, runs the sidecar, and shuts down on signals."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
from collections.abc import Sequence

import uvloop

from carpool.program import allocator, logs, settings, signals
from carpool_sidecar import config
from carpool_sidecar.app import wiring
from carpool_sidecar.upstream import probes

log = logging.getLogger("carpool.sidecar")

_PROBE_VARIABLE = "SERVING_READINESS_PROBE"


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT.

    Returns 0 when everything accepted was answered, and 1 when the grace period ended before that, a bug broke the
    shutdown off, or a port was taken. Exits with 2 for bad settings.
    """
    chosen = config.load(argv)
    _check_packages(chosen)
    wanted = _readiness_probes(chosen)
    logs.set_up(chosen.log_format, chosen.log_level)
    return uvloop.run(_run(chosen, wanted))


def _check_packages(chosen: config.Settings) -> None:
    """Exits with status 2 if the settings need packages that are not installed, or what these do not have."""
    wanted = {"--grpc-port": "carpool_sidecar.server.grpc.server"} if chosen.grpc_port else {}
    if chosen.upstream != "http":
        wanted[f"--upstream {chosen.upstream}"] = "carpool_sidecar.protocols.tensors_from_v1"
    if chosen.upstream == "triton-grpc":
        wanted["--upstream triton-grpc"] = "carpool_sidecar.protocols.v2_grpc.messages"
    if chosen.tracing != "off":
        wanted[f"--tracing {chosen.tracing}"] = "carpool_sidecar.tracing"
    for setting, module in wanted.items():
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            extra = "otel" if setting.startswith("--tracing") else "triton"
            settings.fail(
                config.PROG,
                f"{setting} needs the package {error.name}, which is missing: pip install 'carpool-sidecar[{extra}]'",
            )
    if chosen.tracing != "off":
        from carpool_sidecar import tracing

        try:
            tracing.check_environment()
        except ValueError as error:
            settings.fail(config.PROG, f"--tracing {chosen.tracing}: {error}")


async def _run(chosen: config.Settings, wanted: Sequence[probes.Probe]) -> int:
    sidecar = wiring.Sidecar(chosen, wanted)
    stop = _on_signals(sidecar)
    try:
        await sidecar.start()
        allocator.settle()
        await stop.wait()
        return 0 if await sidecar.drain() else 1
    except OSError as error:
        log.error("cannot listen: %s", error)
        return 1
    finally:
        await sidecar.stop()


def _on_signals(sidecar: wiring.Sidecar) -> asyncio.Event:
    """Let SIGTERM start the shutdown, and SIGINT or a second signal skip the quiet period; set once one came."""
    stop = asyncio.Event()

    def received(number: signal.Signals) -> None:
        log.info("received %s", number.name)
        if number is signal.SIGINT or stop.is_set():
            sidecar.life.skip_quiet_period()
        stop.set()

    signals.while_serving(received)
    return stop


def _readiness_probes(chosen: config.Settings) -> Sequence[probes.Probe]:
    try:
        if chosen.predictor_health_path:
            return (probes.http_path_probe(chosen.predictor_health_path, chosen.component_port, chosen.component_host),)
        return probes.parse(os.environ.get(_PROBE_VARIABLE, ""), chosen.component_port, chosen.component_host)
    except ValueError as error:
        source = "--predictor-health-path" if chosen.predictor_health_path else _PROBE_VARIABLE
        settings.fail(config.PROG, f"{source}: {error}")
