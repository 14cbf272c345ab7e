"""One running sidecar: the only place where the parts are joined.

What serves gRPC or makes tensors of v1 instances is imported only where settings ask for it: it needs packages that a
plain install does not have, and memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import yarl
from aiohttp import web

import carpool_sidecar
from carpool.program import allocator, logs
from carpool.runtime import driver
from carpool.scheduling import adaptive, limits, packing, policy, scheduler, window
from carpool_sidecar import config, metrics, turns
from carpool_sidecar import drain as lifecycle
from carpool_sidecar.batching import calls, executor, model_registry, retried_statuses, routes
from carpool_sidecar.live import event_stream, snapshots
from carpool_sidecar.protocols import interface, json_rows, models, v1
from carpool_sidecar.protocols.lists import rules
from carpool_sidecar.protocols.pairs import destinations, dialects
from carpool_sidecar.protocols.v2_http import codec, tensors
from carpool_sidecar.recording import document, file, ring
from carpool_sidecar.server import admin, admin_clients, listening, local_answers, predict, unread
from carpool_sidecar.server.http1 import bodies, handler, relay, requests
from carpool_sidecar.server.http1 import server as http1
from carpool_sidecar.upstream import connection, model_questions, predictor, probes, readiness

if TYPE_CHECKING:
    from carpool_sidecar import tracing
    from carpool_sidecar.protocols import tensors_from_v1
    from carpool_sidecar.server.grpc import server as port
    from carpool_sidecar.upstream import grpc_predictor

log = logging.getLogger("carpool.sidecar")

_BACKLOG = 4096
# Connections that are still busy when everything accepted has been answered carry tunnels and streams. Closing both
# servers and the tunnels may take so long each, and all of it has to fit in the grace period.
_CLOSING_SECONDS = 1.0
_CLOSING_RESERVE = 3.0
# The last spans are exported meanwhile; where time is left, for so long at most.
_LAST_SPANS_SECONDS = 3.0
# Seconds between checks of the predictor's readiness, until it is ready for the first time.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 5.0
# libuv's timers count in milliseconds.
_TIMER_TICK = 0.001
# Seconds until a model is asked about again, at most, after a question that failed. Requests that cannot be made into
# tensors meanwhile fail; those of v2 are passed through.
_TENSOR_RETRY_SECONDS, _V2_RETRY_SECONDS = 1.0, 30.0

Ask = Callable[[models.ModelName], Awaitable[models.ModelInfo]]
"""Asks a predictor about a model."""


class Sidecar:
    """Listens from `start()` to `stop()`; `drain()` comes in between. To be made in a running event loop.

    `wanted` are the probes that decide whether the predictor is ready. `clock` returns seconds and never goes back,
    `cpu_clock` seconds of processor time of this thread.
    """

    def __init__(
        self,
        chosen: config.Settings,
        wanted: Sequence[probes.Probe],
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.settings = chosen
        self._clock = clock
        self.metrics = metrics.Metrics()
        self.ready = readiness.Readiness(wanted, clock, on_bug=self.metrics.internal_errors.labels("readiness").inc)
        self.limits = chosen.scheduler_limits
        self.policy = _make_policy(chosen, self.limits)
        self.core = scheduler.Scheduler(self.limits, self.policy, clock, driver.new_batch_id, calls.TRAITS)
        self.ledger = self.core.ledger
        self.life = lifecycle.Lifecycle(self.ledger)
        self._base = yarl.URL.build(scheme="http", host=chosen.component_host, port=chosen.component_port)
        on_bug = self.metrics.internal_errors.labels("upstream").inc
        self.upstreams = Upstreams(chosen, str(self._base), clock, on_bug, self.metrics.list_part)
        self.tracing = self._start_tracing() if chosen.tracing == "otlp" else None
        self.turns = turns.Turns(self._report)
        rules = retried_statuses.Rules(chosen.retry_statuses)
        self.executor = executor.Executor(rules, clock, self.tracing, self.turns)
        self.arrivals = ring.Ring(self._measured, clock)
        self.arrivals.changed(_recorded_settings(chosen))
        self._epoch = time.time() - clock()  # when the clock was at 0, as far as anybody outside can tell
        self.recorder = self._make_recorder()
        self.timings = calls.ServerTimings(clock) if chosen.server_timing else None
        observer = self._observer()
        self.driver = driver.Driver(self.core, self.executor, observer, clock, cpu_clock=cpu_clock)
        self.bodies = bodies.Limits(chosen.max_body_bytes, self.ledger, chosen.timeout, self.turns)
        self.trimmer = allocator.Trimmer(lambda: self.ledger.held)
        self.ledger.large, self.ledger.on_large = allocator.LARGE, self.trimmer.large_body
        patience = unread.Patience(self.limits, self.ledger)
        self._unread = unread.Watch(patience.between_steps, clock)
        self.connection_limit = listening.ConnectionLimit(
            chosen.max_connections or listening.usual_limit(), self.metrics.connections_refused.inc, self._unread.add
        )
        admin_watch = unread.Watch(lambda step: min(admin_clients.LONGEST_UNREAD, patience.between_steps(step)), clock)
        self._admin_clients = admin_clients.Clients(admin_watch, chosen.head_timeout, chosen.keep_alive, clock)
        sources = snapshots.Sources(
            self.core, self.metrics, lambda: self.settings, lambda: self.life.phase.value,
            lambda: self.connection_limit.open, clock, time.time,
        )  # fmt: skip
        on_bug = self.metrics.internal_errors.labels("live").inc
        self.stream = event_stream.EventStream(sources, self.limits, observer, on_bug)
        self._lag = metrics.EventLoopLag(self.metrics.event_loop_lag, clock)
        self._relays: relay.Relays | None = None
        self._http: http1.Server | None = None
        self._grpc: port.GrpcPort | None = None
        self._admin_listeners: list[listening.Listener] = []
        self._admin: web.AppRunner | None = None
        self._first_contact: asyncio.Task[None] | None = None
        self._latest_end = math.inf  # of the grace period
        self._watch()

    async def start(self) -> None:
        """Listen on all ports; raises `OSError` if one is taken."""
        await self._open_admin_port()
        await self._open_data_port()
        await self._open_grpc_port()
        json_rows.bounded_rows(self.settings.max_queue_instances)  # now: it takes too long in the midst of requests
        self._lag.start()
        if self.recorder is not None:
            self.recorder.start()
        if isinstance(self.policy, adaptive.Adaptive):
            self._first_contact = asyncio.create_task(self._measure_overhead(self.policy), name="first contact")
        log.info("serving", extra=logs.facts(**self._summary()))

    async def drain(self) -> bool:
        """Shut down as `drain.Lifecycle.drain` says, within the grace period.

        Returns whether every accepted predict request was answered in that time; also False if a bug broke the shutdown
        off. Streams and upgraded connections may go on until its end.
        """
        self.metrics.draining.set(1)
        if self._grpc is not None:
            self._grpc.server.goaway()
        grace_period = self.settings.grace_period
        self._latest_end = self._clock() + grace_period
        time_for_answers = max(grace_period / 2, grace_period - _CLOSING_RESERVE)
        try:
            async with asyncio.timeout(time_for_answers):
                turn_away = self._grpc.server.turn_away if self._grpc is not None else None
                await self.life.drain(self.driver.drain, self.settings.quiet_period, time_for_answers / 2, turn_away)
        except TimeoutError:
            await self.life.abandon()
            log.warning(
                "%g s of the grace period of %g s are over, and the rest is for closing: breaking off %d requests",
                time_for_answers, grace_period, self.life.active,
            )  # fmt: skip
            return self.core.idle
        except Exception:
            self.metrics.internal_errors.labels("drain").inc()
            log.exception("draining failed for a reason that is a bug")
            return False
        return True

    async def stop(self) -> None:
        """Close everything; callers that are still waiting get 503."""
        await self.life.abandon()
        if self._first_contact is not None:
            self._first_contact.cancel()
            await asyncio.wait([self._first_contact])
        self.trimmer.close()
        self.turns.close()
        self._lag.stop()
        self.stream.close()
        self.driver.close()
        if self.recorder is not None:
            await self.recorder.close()
        spans_left = asyncio.create_task(self._export_spans(), name="last spans")
        if self._relays is not None:
            self._relays.close_tunnels()
        if self._http is not None:
            await self._http.close(_CLOSING_SECONDS)
        if self._grpc is not None:
            await self._grpc.close(_CLOSING_SECONDS)
        if self._relays is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._relays.streams.close(), _CLOSING_SECONDS)
        while self._admin_listeners:
            await self._admin_listeners.pop().close()
        if self._admin is not None:
            await self._admin.cleanup()
        self._admin_clients.stop()
        self._unread.stop()
        await self.upstreams.close()
        await self.ready.close()
        await spans_left

    def apply(self, changed: config.Settings) -> None:
        """Put changed live settings in force."""
        self.settings = changed
        self.arrivals.changed(_recorded_settings(changed))
        self.bodies.read_timeout = changed.timeout
        logging.getLogger().setLevel(changed.log_level.upper())
        self.driver.change_limits(changed.scheduler_limits)
        log.info("settings changed", extra=logs.facts(**{name: getattr(changed, name) for name in changed.live}))

    async def _export_spans(self) -> None:
        """Export the last spans, in the time that is left of the grace period."""
        if self.tracing is None:
            return
        seconds = max(_CLOSING_SECONDS, min(_LAST_SPANS_SECONDS, self._latest_end - self._clock()))
        if not await self.tracing.close(seconds):
            log.warning("the last spans could not be exported within %.3g s: they are lost", seconds)

    async def _measure_overhead(self, policy: adaptive.Adaptive) -> None:
        """Once the predictor is ready, tell the policy how long a round trip takes."""
        pause = _FIRST_PAUSE
        try:
            while not await self.ready.check():
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)
            seconds = await readiness.round_trip(self._base)
        except Exception:
            self.metrics.internal_errors.labels("first_contact").inc()
            log.exception("the way to the predictor could not be measured for a reason that is a bug")
            return
        if seconds is not None:
            policy.predictor.hint_overhead(seconds)
            self.driver.reconsider()
            log.info(
                "measured the way to the predictor and back", extra=logs.facts(milliseconds=round(seconds * 1e3, 2))
            )

    def _start_tracing(self) -> tracing.Tracing:
        from carpool_sidecar import tracing

        rpc = None if self.upstreams.rpc is None else (self.upstreams.rpc, self.settings.component_grpc_port)
        on_bug = self.metrics.internal_errors.labels("tracing").inc
        return tracing.Tracing(str(self._base), rpc, self._clock, on_bug)

    def _observer(self) -> executor.Observer:
        if self.tracing is None:
            observer = executor.Observer(self.metrics, self._clock, self.arrivals, self.timings)
        else:
            from carpool_sidecar import tracing

            observer = tracing.Observer(self.metrics, self.tracing.spans, self._clock, self.arrivals, self.timings)
        observer.has_levels = bool(self.settings.priority_header)
        return observer

    # --- parts -------------------------------------------------------------------------------------------------

    async def _open_data_port(self) -> None:
        rules = predict.PredictRules(
            self.settings,
            self.limits,
            self.bodies,
            self.upstreams.routes,
            self.life,
            self.metrics,
            self.timings,
        )
        relays = self._relays = relay.Relays(
            self.upstreams.streams,
            lambda: self.life.parting,
            functools.partial(self.metrics.answered, "passthrough"),
            self.metrics.internal_errors.labels("passthrough").inc,
        )
        self.metrics.tunnels.set_function(lambda: len(relays.tunnels))
        plain = requests.PlainRequests(rules, self.driver, self._clock)
        batched = plain if self.settings.enable_batcher else None
        answering = handler.Handler(rules, batched, relays, self.ready, self.upstreams.v1_models())
        self._http = http1.Server(self.settings, plain, answering, self.connection_limit)
        await self._http.listen(self.settings.host, self.settings.port, _BACKLOG)

    async def _open_grpc_port(self) -> None:
        rpc = self.upstreams.rpc
        if rpc is None or not self.settings.grpc_port:
            return
        from carpool_sidecar.server.grpc import server as port

        models = self.upstreams.rpc_models(rpc) if self.settings.enable_batcher else None
        self._grpc = port.GrpcPort(
            self.settings, self.limits, models, rpc, self.driver, self.life, self.metrics, self.bodies,
            self.connection_limit, self.timings, self._clock, self.turns,
        )  # fmt: skip
        await self._grpc.server.listen(self.settings.host, self.settings.grpc_port, _BACKLOG)

    async def _open_admin_port(self) -> None:
        admin_port = admin.Admin(
            lambda: self.settings, self.apply, self.drain, self.life, self.ready, self.metrics, self.core.learned,
            self._recorded, self.stream, self._admin_clients,
        )  # fmt: skip
        runner = self._admin = web.AppRunner(
            admin_port.application(),
            access_log=None,
            logger=admin.ServerLog(log),
            shutdown_timeout=_CLOSING_SECONDS,
        )
        await runner.setup()
        if runner.server is not None:
            came, chosen = self._admin_clients.came, self.settings
            self._admin_listeners += await listening.listen(
                (chosen.admin_host, chosen.admin_port), _BACKLOG, runner.server, came=came
            )

    def _report(self, error: Exception) -> None:
        self.metrics.internal_errors.labels("turns").inc()
        log.error("work on a large message failed for a reason that is a bug", exc_info=error)

    def _watch(self) -> None:
        """Let gauges be read when they are scraped."""
        counters, core = self.metrics, self.core
        counters.in_flight.set_function(lambda: len(core.in_flight))
        counters.queued_instances.set_function(lambda: core.waiting_rows)
        counters.suspects.set_function(lambda: core.isolation.quarantine.rows)
        counters.learned_batch_size.set_function(core.smallest_limit)
        counters.learned_batch_bytes.set_function(core.smallest_bytes)
        counters.kept_apart.set_function(core.kept_apart)
        counters.queued_bytes.set_function(lambda: core.backlog.size)
        for name, gauge in counters.learned.items():
            gauge.set_function(functools.partial(self._learned, name))
        counters.queues.set_function(lambda: len(core.backlog))
        counters.held_bytes.set_function(lambda: self.ledger.held)
        counters.connections.set_function(lambda: self.connection_limit.open)

    # --- what came lately --------------------------------------------------------------------------------------

    def _measured(self) -> ring.Measures:
        counters = self.metrics
        return ring.Measures(
            counters.queue_seconds.read(), counters.predictor_seconds.read(), counters.request_seconds.read(),
            counters.batch_size.read(),
        )  # fmt: skip

    def _recorded(self) -> Callable[[], bytes]:
        """What came lately, as it is now; the call that writes it out may be made in any thread."""
        blocks, settings = self.arrivals.blocks(), _recorded_settings(self.settings)
        learned = dict(self.core.learned())
        make_head = functools.partial(_head, learned)
        return lambda: document.encode(document.lines(blocks, settings, make_head, self._epoch))

    def _make_recorder(self) -> file.Recorder | None:
        if not self.settings.record:
            return None
        return file.Recorder(
            self.settings.record, self.arrivals, lambda settings: _head(self.core.learned(), settings), self._epoch
        )

    def _learned(self, name: str) -> float:
        return self.core.learned().get(name, 0.0)

    def _summary(self) -> dict[str, object]:
        chosen = self.settings
        return {
            "port": chosen.port,
            "grpc_port": chosen.grpc_port or "none",
            "admin_port": chosen.admin_port,
            "predictor": str(self._base),
            "batching": chosen.enable_batcher,
            "max_batch_size": chosen.max_batch_size,
            "policy": "adaptive" if chosen.is_adaptive else "window",
            "max_latency_ms": "auto" if chosen.is_adaptive and chosen.max_latency is None else chosen.latency_bound,
            "build": carpool_sidecar.build(),
        }


class Upstreams:
    """Connections to the predictor, what it tells of its models, and the routes of requests to it.

    To be made in a running event loop. `rpc` is None where no gRPC is spoken.
    """

    # State: the connections, and what was asked of models.
    def __init__(
        self,
        chosen: config.Settings,
        base: str,
        clock: Callable[[], float],
        on_bug: Callable[[], None],
        on_part: Callable[[str], None],
    ) -> None:
        """`base` is the predictor's `http://HOST:PORT`; `on_bug` is called for each bug met, which is in the log.

        `on_part` is told the rule of each part of a request that is sent.
        """
        self._settings = chosen
        self._on_part = on_part
        self._on_bug = on_bug
        self._clock = clock
        self._registries: list[model_registry.ModelRegistry] = []
        self.http = predictor.HttpPredictor(base, chosen.connect_timeout, chosen.max_queue_bytes, on_bug)
        self.streams = predictor.Pool(base, chosen.connect_timeout, connection.LenientReader, on_bug)
        self.questions = model_questions.HttpQuestions(base, on_bug=on_bug)
        self.rpc = self._open_rpc() if chosen.grpc_port or chosen.upstream == "triton-grpc" else None
        memory = codec.Memory()
        infer = self._registry(self.questions.model_info, lambda model: codec.Codec(model.info, model.avoid, memory))
        by_body = [*self._embeddings(), *self._pairs()]
        self.routes = routes.Routes(self._v1(), routes.Models(infer, self.http), self._lists(), by_body)

    def rpc_models(self, rpc: grpc_predictor.GrpcPredictor) -> routes.Models:
        """The models of gRPC callers."""
        from carpool_sidecar.protocols.v2_grpc import codec as rpc_codec

        memory = rpc_codec.Memory()
        told = self._registry(rpc.model_info, lambda model: rpc_codec.Codec(model.info, model.avoid, memory))
        return routes.Models(told, rpc, is_http=False)

    def v1_models(self) -> local_answers.V1Models | None:
        """What answers v1's questions about models, if the predictor does not."""
        if self._settings.upstream == "http":
            return None
        if self.rpc is not None and self._settings.upstream == "triton-grpc":
            return local_answers.V1Models(self.rpc, is_http=False)
        return local_answers.V1Models(self.questions)

    async def close(self) -> None:
        """Close all connections; what is out fails."""
        for each in self._registries:
            await each.close()
        await self.http.close()
        await self.streams.close()
        await self.questions.close()
        if self.rpc is not None:
            await self.rpc.close()

    def _v1(self) -> calls.Route | routes.Tensors:
        if self._settings.upstream == "http":
            codec = v1.Codec(self._settings.answer_members, self._settings.mix_forms)
            return calls.Route(codec, self.http, doubtful=routes.DOUBTFUL)
        from carpool_sidecar.protocols import tensors_from_v1

        ask, transport, to, is_http = self._tensors()
        told = self._registry(
            ask, lambda model: tensors_from_v1.Codec(model.name, model.info, transport), _TENSOR_RETRY_SECONDS
        )
        return routes.Tensors(told, to, is_http)

    def _lists(self) -> routes.Lists | None:
        settings, chosen = self._settings, self._settings.list_rules
        if not chosen or settings.upstream != "http":
            return None
        members, mixes, to = settings.answer_members, settings.mix_forms, settings.destination
        as_json = None if to is None or to.kind == destinations.V2 else to
        return routes.Lists(chosen, self.http, self._clock, members, mixes, self._on_part, as_json)

    def _embeddings(self) -> Iterator[routes.ByBody]:
        """OpenAI's embeddings, if they become tensors."""
        chosen = [rule for rule in self._settings.list_rules if not rule.query]
        if not chosen or self._settings.upstream == "http":
            return
        from carpool_sidecar.protocols import tensors_from_embeddings

        output = self._settings.embeddings_output
        ask, transport, to, is_http = self._tensors()
        told = self._registry(
            ask,
            lambda model: tensors_from_embeddings.Codec(model.name, model.info, transport, output, self._on_part),
            _TENSOR_RETRY_SECONDS,
        )
        words = calls.ErrorWords(tensors_from_embeddings.render_error, rewords=True)
        yield routes.ByBody(chosen, told, to, tensors_from_embeddings.read_model, words, is_http)

    def _pairs(self) -> Iterator[routes.ByBody]:
        """Rerank requests, if they become tensors."""
        destination, chosen = self._settings.destination, dialects.with_query(self._settings.list_rules)
        if destination is None or destination.kind != destinations.V2:
            return
        from carpool_sidecar.protocols import tensors_from_pairs

        ask, transport, to, is_http = self._tensors()
        told = self._registry(
            ask,
            lambda model: tensors_from_pairs.Codec(model.name, model.info, transport, chosen, self._on_part),
            _TENSOR_RETRY_SECONDS,
        )
        read_model = (lambda body: destination.model) if destination.model else dialects.read_model

        def narrow(known: model_registry.InformedCodec, some: Sequence[rules.Rule]) -> interface.Codec:
            return cast(tensors_from_pairs.Codec, known).of(some)

        yield routes.ByBody(chosen, told, to, read_model, None, is_http, narrow)

    def _tensors(self) -> tuple[Ask, tensors_from_v1.Transport, calls.Predictor, bool]:
        """Who tells of models, how tensors travel, where they go, and whether that is HTTP."""
        if self.rpc is None or self._settings.upstream != "triton-grpc":
            return self.questions.model_info, tensors, self.http, True
        from carpool_sidecar.protocols.v2_grpc import tensors as grpc_tensors

        return self.rpc.model_info, grpc_tensors, self.rpc, False

    def _open_rpc(self) -> grpc_predictor.GrpcPredictor:
        from carpool_sidecar.upstream import grpc_predictor

        chosen, on_bug = self._settings, self._on_bug
        host = chosen.component_host
        address = f"{f'[{host}]' if ':' in host else host}:{chosen.component_grpc_port}"
        return grpc_predictor.GrpcPredictor(address, chosen.connect_timeout, chosen.max_queue_bytes, on_bug)

    def _registry(
        self,
        ask: Ask,
        make_codec: Callable[[model_registry.Model], model_registry.InformedCodec],
        longest_pause: float = _V2_RETRY_SECONDS,
    ) -> model_registry.ModelRegistry:
        batches_unknown = self._settings.unknown_models == "batch"
        made = model_registry.ModelRegistry(ask, make_codec, batches_unknown, self._clock, longest_pause, self._on_bug)
        self._registries.append(made)
        return made


def _make_policy(chosen: config.Settings, bounds: limits.Limits) -> policy.Policy:
    if not chosen.is_adaptive:
        return window.Window(bounds, _TIMER_TICK)
    chance = random.random()  # noqa: S311 - it spreads pods in time and guards nothing
    return adaptive.Adaptive(bounds, _TIMER_TICK, chance)


def _head(learned: Mapping[str, float], settings: document.Setting) -> document.Head:
    finite = {name: value for name, value in learned.items() if math.isfinite(value)}
    return document.Head(version=carpool_sidecar.__version__, settings=settings, learned=finite)


def _recorded_settings(chosen: config.Settings) -> document.Setting:
    names = [name for name in document.Setting.__struct_fields__ if name not in ("policy", "allowed_batch_sizes")]
    return document.Setting(
        policy="adaptive" if chosen.is_adaptive else "window",
        allowed_batch_sizes=packing.parse_sizes(chosen.allowed_batch_sizes),
        **{name: getattr(chosen, name) for name in names},
    )
