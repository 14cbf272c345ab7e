"""Joins what `carpool-injector serve` is made of: server, certificates, namespaces, the cluster, signals."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import signal
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from carpool.program import logs, signals
from carpool_injector import config_file
from carpool_injector.api import calls, kube
from carpool_injector.certificates import certificate_controller, files, pki, serving_certificate
from carpool_injector.core import injection, model, refusals
from carpool_injector.core.config import Config
from carpool_injector.objects import review, validation
from carpool_injector.webhook import cluster, connections, evictions, metrics, missed, options, reviewing, server

log = logging.getLogger("carpool.injector")

_FOR_PROBES = 64  # connections beside those that carry reviews
_TLS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def serve(chosen: options.Options) -> int:
    """Serves until SIGTERM or SIGINT. The exit code is 0 after a clean end, 1 if it could not serve or cut reviews off.

    Raises refusals.BadConfig when options, configuration file or client CA cannot be used.
    """
    if problems := chosen.problems():
        raise refusals.BadConfig("; ".join(problems))
    config = config_file.load(Path(chosen.config)) if chosen.config else config_file.parse(None)
    tls = tls_context(chosen)
    logs.set_up(chosen.log_format, chosen.log_level)
    return uvloop.run(_serve(chosen, config, tls))


def tls_context(chosen: options.Options) -> ssl.SSLContext:
    """The server's TLS settings, without a certificate yet. Raises refusals.BadConfig for a client CA that is none."""
    try:
        client_ca = Path(chosen.client_ca).read_text(encoding="ascii") if chosen.client_ca else None
        return serving_certificate.make_context(_TLS[chosen.tls_min_version], client_ca)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise refusals.BadConfig(
            f"client_ca {chosen.client_ca}: must be a file with certificates (PEM): {error}"
        ) from None


class Service:
    """The webhook server with everything it needs of a cluster. `run` it once."""

    def __init__(self, chosen: options.Options, config: Config, tls: ssl.SSLContext, api: kube.Kube) -> None:
        self._chosen = chosen
        self._tls = tls
        self._api = api
        self.metrics = metrics.Metrics()
        self.metrics.configured(config.hash)
        self._namespaces = cluster.Namespaces(api, self.metrics, chosen.read_timeout)
        self._cluster = cluster.ClusterVersion(api)
        self._certificates = self._keep_certificates()
        self._beside: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._certificates.run, self._namespaces.follow, self._cluster.follow,
        ]  # fmt: skip
        tell = put = None
        if chosen.events:
            events = reviewing.Events(api, self.metrics, asyncio.get_running_loop().time)
            tell, put = events.tell, events.put
            self._beside.append(events.deliver)

        def inject(pod: model.Object, namespace: model.Namespace) -> model.Outcome:
            return injection.inject(pod, config, namespace, self._cluster.capabilities())

        self._missed = self._look_for_missed(inject, put) if chosen.missed_pods else None
        if self._missed is not None:
            self._beside.append(self._missed.follow)
        validate = functools.partial(validation.validate, rules=validation.Rules(inject, config))
        reviewer = reviewing.Reviewer(inject, validate, self._namespaces, self.metrics, tell)
        handlers = {"/mutate": reviewer.mutate, "/validate": reviewer.validate}
        why = functools.partial(serving_certificate.why_unwelcome, allowed=chosen.client_names)
        self._server = server.Server(handlers, self.metrics, self.missing, chosen, why if chosen.client_ca else None)
        grace = max(chosen.grace_period - chosen.quiet_period, 1.0)
        # A connection carries one review at a time, so that more of them would only wait.
        most = chosen.max_concurrent + _FOR_PROBES
        self._reviews = connections.Listener(self._server.reviews(), grace, most)
        self._probes = connections.Listener(self._server.probes(), 1.0, _FOR_PROBES)
        self.ports: tuple[int, ...] = ()  # once it listens: for TLS, and for probes if there is one

    def missing(self) -> list[str]:
        """What readiness waits for; [] when reviews can be answered."""
        served = self._certificates.served
        trouble = f" ({served.last_error})" if served.last_error else ""
        certificate = f"the certificate: {served.unverified}{trouble}" if served.unverified else ""
        return [text for text in (certificate, self._namespaces.missing(), self._cluster.missing()) if text]

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> bool:
        """Serves until `stop`, then for the quiet period or until `hurry`, then finishes what is being answered.

        Returns whether all was answered within the grace period.
        Raises OSError when a port cannot be had, and an ExceptionGroup for a bug in what runs beside.
        """
        try:
            await self._listen()
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(job()) for job in self._beside]
                await stop.wait()
                is_clean = await self._drain(hurry)
                for task in beside:
                    task.cancel()
            return is_clean
        finally:
            await self._reviews.close()
            await self._probes.close()

    # --- the way in and out ------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        chosen = self._chosen
        ports = [await self._reviews.open(chosen.host, chosen.port, self._tls)]
        if chosen.metrics_port is not None:
            ports.append(await self._probes.open(chosen.host, chosen.metrics_port))
        self.ports = tuple(ports)
        log.info("serving", extra=logs.facts(host=chosen.host, port=ports[0], metrics_port=ports[1:]))
        connections.give_back()  # what start-up needed only once
        gc.freeze()  # what it made is here to stay

    async def _drain(self, hurry: asyncio.Event) -> bool:
        self._server.draining = True
        log.info("shutting down", extra=logs.facts(quiet_period_seconds=self._chosen.quiet_period))
        async with connections.at_most(self._chosen.quiet_period):
            await hurry.wait()
        await self._reviews.close()
        cut_off = self._server.cut_off
        log.info("the end: %s", f"{cut_off} reviews were cut off" if cut_off else "all that was asked is answered")
        return not cut_off

    # --- assembly ----------------------------------------------------------------------------------------------------

    def _keep_certificates(self) -> serving_certificate.Supplier:
        chosen = self._chosen
        names = pki.service_names(chosen.service_name, chosen.namespace)
        served = serving_certificate.ServingCertificate(self._tls, names, serving_certificate.utc_now())
        expiry = self.metrics.certificate_expiry
        expiry.set_function(lambda: served.not_after.timestamp() if served.not_after else 0.0)
        if chosen.certificates == "files":
            return files.CertificateFiles(Path(chosen.cert_dir), served)
        webhooks = [("MutatingWebhookConfiguration", chosen.mutating_webhook)]
        if chosen.validating_webhook:
            webhooks.append(("ValidatingWebhookConfiguration", chosen.validating_webhook))
        return certificate_controller.CertificateController(
            self._api, served, chosen.namespace, chosen.secret_name, webhooks
        )

    def _look_for_missed(
        self, inject: review.Inject, put: Callable[[reviewing.Event], None] | None
    ) -> missed.MissedPods:
        known = self._namespaces.known
        injects = functools.partial(missed.would_inject, inject, known)
        restart = None
        if self._chosen.restart_missed_pods:
            now = serving_certificate.utc_now
            restart = evictions.Evictions(self._api, injects, lambda: not self.missing(), self.metrics, now).restart
        registration = self._chosen.mutating_webhook
        return missed.MissedPods(self._api, registration, known, injects, self.metrics, put, restart)


async def _serve(chosen: options.Options, config: Config, tls: ssl.SSLContext) -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()
    _on_signals(stop, hurry)
    asyncio.get_running_loop().set_exception_handler(error_handler())
    try:
        api = await kube.Kube.connect(chosen.kubeconfig, chosen.context)
    except calls.Unconfigured as error:
        log.error("%s", error)
        return 1
    try:
        return 0 if await Service(chosen, config, tls, api).run(stop, hurry) else 1
    except OSError as error:
        log.error("cannot listen: %s", error)
        return 1
    except BaseExceptionGroup:
        log.exception("a part of the injector failed")
        return 1
    finally:
        await api.close()


def error_handler() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """For what fails where nobody waits for it, which callers may be able to cause: told seldom."""
    limited_log = logs.RateLimitedLog(log, interval=1.0)
    return lambda _, context: limited_log.log(
        logging.ERROR, "loop", context.get("message", "a callback failed"), exc_info=context.get("exception")
    )


def _on_signals(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """SIGTERM starts the way out; SIGINT, or a second signal, skips the quiet period."""

    def received(number: signal.Signals) -> None:
        log.info("received %s", number.name)
        if number == signal.SIGINT or stop.is_set():
            hurry.set()
        stop.set()

    signals.while_serving(received)
