"""Everything the sidecar counts, in one place and in base units (seconds, bytes, instances).

The tables in docs/metrics.md are held against this module by tests. The values of labels are closed sets, so the
number of time series does not depend on what callers send.

Counters and histograms (`carpool.measures`) are plain numbers that the client library reads when it is scraped, by its
interface for custom collectors: its own take a lock for each count, and more time than all else that is done for a
small request. Count from one thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Literal, TypeVarTuple, get_args

import prometheus_client as prometheus
from prometheus_client import Gauge, registry
from prometheus_client import metrics_core as families

import carpool_sidecar
from carpool import measures
from carpool.scheduling import messages
from carpool_sidecar import caches, errors

_STALLS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)

# What the adaptive policy learned, 0 under the window policy; and what the sidecar takes itself, under both.
_LEARNED = {
    "service_fixed_seconds": "Learned: working time of a batch, whatever its size.",
    "service_instance_seconds": "Learned: working time that each instance adds.",
    "overhead_seconds": "Learned: part of a round trip in which the predictor may work on another batch.",
    "workers": "Learned: batches the predictor works on at once.",
    "in_flight_limit": "Batches that may be at the predictor now.",
    "capacity": "Learned: instances a second with full batches.",
    "utilisation": "Arrival rate of about the last ten seconds as a share of the capacity.",
    "predicted_wait_seconds": "Predicted time until a request that came now would be worked on.",
    "returning_share": "Learned: share of answered callers who send again at once.",
    "spacing_share": "Learned: how far apart batches are kept, as a share of the time that one takes alone.",
    "own_batch_seconds": "Measured: processor time that a batch takes of the sidecar's core, beside its requests.",
    "own_request_seconds": "Measured: processor time that a request takes of the sidecar's core.",
}

# --- the values of labels; those of errors and of what is not batched are in `errors`

Lane = Literal["batched", "passthrough"]
"""The way a request took."""

Place = Literal[
    "batch", "drain", "first_contact", "http1", "http2", "live", "passthrough", "readiness",
    "rpc", "tracing", "turns", "upstream",
]  # fmt: skip
"""Where a bug was met."""

RPC_CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""gRPC's status codes, by number: https://grpc.io/docs/guides/status-codes."""

LAG_INTERVAL = 0.25
"""Seconds between samples of the event loop's lag, usually: four wake-ups a second cost less than a thousandth of a
core."""

Labels = TypeVarTuple("Labels")


class Count:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """It happened, or so many times."""
        self.value += amount


class _Family(registry.Collector):
    """What the client library's own metrics know about themselves, by the same names."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name = name
        self._documentation = text
        self._labelnames = labels


class Counter(_Family, Generic[*Labels]):
    """A count for each combination of label values, from the moment it is first asked for."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), shown_at_once: Iterable[str] = ()) -> None:
        """`shown_at_once` are values of the only label that are shown as 0 before anything has happened.

        To Prometheus a series that begins with 1 has never grown.
        """
        super().__init__(name, text, labels)
        self._counts: dict[tuple[str, ...], Count] = {(value,): Count() for value in shown_at_once}
        self._known: dict[tuple[*Labels], Count] = {}  # the same by values as they were given: strings take time

    def labels(self, *values: *Labels) -> Count:
        """The count for these values, one for each label."""
        count = self._known.get(values)
        if count is None:
            if len(values) != len(self._labelnames):
                raise ValueError(f"{self._name} has the labels {self._labelnames}, but got {values}")
            count = self._known[values] = self._counts.setdefault(tuple(map(str, values)), Count())
        return count

    def read(self) -> Mapping[tuple[str, ...], float]:
        """The counts by their label values."""
        return {values: count.value for values, count in self._counts.items()}

    def collect(self) -> Iterable[families.Metric]:
        """The family as it is now."""
        family = families.CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, count in self._counts.items():
            family.add_metric(values, count.value)
        return [family]

    describe = collect


class HistogramFamily(_Family):
    """Shows what a histogram measures."""

    def __init__(self, name: str, text: str, histogram: measures.Histogram) -> None:
        super().__init__(name, text)
        self._histogram = histogram

    def collect(self) -> Iterable[families.Metric]:
        """The family as it is now."""
        measured = self._histogram.read()
        family = families.HistogramMetricFamily(self._name, self._documentation)
        family.add_metric([], measured.cumulative(), measured.sum)
        return [family]

    describe = collect


class CachedBytes(_Family):
    """Shows what all caches hold."""

    def collect(self) -> Iterable[families.Metric]:
        """The family as it is now."""
        family = families.GaugeMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for name, held in caches.held().items():
            family.add_metric((name,), held)
        return [family]

    describe = collect


class Metrics:
    """One registry with all metrics; methods are named after what happened."""

    def __init__(self) -> None:
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call] # a second series for each counter, which nobody asked for
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self.requests: Counter[Lane, int] = counter(
            "requests", "Requests answered, by lane and status code.", "lane", "code"
        )
        self.batched_ok = self.requests.labels("batched", 200)  # looked up once
        self.request_seconds = histogram(
            "request_seconds", "Time from a predict request's arrival to its answer.", measures.SECONDS
        )
        self.refused: Counter[str] = counter(
            "refused", "Predict requests answered with an error, by reason.", "reason", shown_at_once=errors.reasons()
        )
        self.not_batched: Counter[str] = counter(
            "unbatched",
            "Requests that were passed through unbatched, as batching them is not safe or not known, by reason.",
            "reason",
            shown_at_once=errors.NotBatched,
        )
        self.list_parts: Counter[str] = counter(
            "list_parts",
            "Parts of requests of --lists that were cut, by rule.",
            "rule",
        )
        self.rpc: Counter[Lane, str] = counter(
            "rpc_requests", "gRPC calls answered, by lane and status code.", "lane", "code"
        )
        self.internal_errors: Counter[Place] = counter(
            "internal_errors",
            "Bugs met while handling requests, by place; the log has the traceback.",
            "where",
            shown_at_once=get_args(Place),
        )
        abandoned: Counter[()] = counter(
            "abandoned",
            "Predict requests whose caller left while they were queued or at the predictor.",
        )
        self.abandoned = abandoned.labels()
        self.batches: Counter[messages.Reason] = counter(
            "batches", "Batches sent, by the reason they left.", "reason", shown_at_once=messages.Reason
        )
        self.batch_size = histogram("batch_size", "Instances in a batch.", measures.SIZES)
        self.queue_seconds = histogram(
            "queue_wait_seconds", "Time from a request's arrival to its first batch leaving.", measures.SECONDS
        )
        self.level_requests: Counter[str] = counter(
            "priority_requests", "Requests whose first batch left, by level, where --priority-header is given.", "level"
        )
        self.level_waits: Counter[str] = counter(
            "priority_wait_seconds", "Time from their arrivals until then, summed up, by level.", "level"
        )
        self.predictor_seconds = histogram("predictor_seconds", "Time of a call to the predictor.", measures.SECONDS)
        self.predictor_errors: Counter[str] = counter(
            "predictor_errors",
            "Failed calls to the predictor, by reason.",
            "reason",
            shown_at_once=errors.reasons(errors.UpstreamError),
        )
        self.retries: Counter[messages.Reason] = counter(
            "retries",
            "Batches sent again: closed connection, isolation, or in smaller pieces.",
            "reason",
            shown_at_once=messages.RETRIES,
        )
        self.in_flight = gauge("batches_in_flight", "Batches at the predictor now.")
        self.queued_instances = gauge("queued_instances", "Instances waiting for a batch now.")
        self.suspects = gauge(
            "suspect_instances", "Of those, the ones that resemble rejected requests and travel apart."
        )
        self.queued_bytes = gauge("queued_bytes", "Bytes of request bodies waiting for a batch now.")
        self.held_bytes = gauge(
            "held_bytes",
            "Bytes of requests held now: arriving, waiting for their turn or a batch, or at the predictor.",
        )
        self.cached_bytes = CachedBytes(
            "carpool_cached_bytes",
            "Bytes that count for what is remembered of messages now, by cache; each has a limit.",
            ("cache",),
        )
        self.registry.register(self.cached_bytes)
        self.queues = gauge("queues", "Batch keys with waiting requests now.")
        self.learned_batch_size = gauge(
            "learned_batch_size",
            "Learned: most instances that the predictor takes in one call, the lowest of all batch keys; 0: no limit.",
        )
        self.learned_batch_bytes = gauge(
            "learned_batch_bytes",
            "Learned: most bytes of instances that the predictor takes in one call, likewise.",
        )
        self.kept_apart = gauge(
            "kept_apart_keys",
            "Learned: batch keys whose requests are kept apart by the lengths of their instances.",
        )
        self.learned = {name: gauge(name, text) for name, text in _LEARNED.items()}
        self.event_loop_lag = histogram(
            "event_loop_lag_seconds", "How much later than asked a timer of the event loop ran; 4 samples/s.", _STALLS
        )
        self.connections = gauge("connections", "Client connections open now, HTTP and gRPC.")
        refused: Counter[()] = counter(
            "connections_refused", "Client connections closed at once because there were too many."
        )
        self.connections_refused = refused.labels()
        self.malformed: Counter[int] = counter(
            "malformed", "Messages answered as no HTTP/1.1 request that the sidecar serves, by status code.", "code"
        )
        self.tunnels = gauge("tunnels", "Upgraded connections (WebSocket) open now.")
        changes: Counter[()] = counter(
            "settings_changes", "Times that settings were changed while it ran, by PATCH /config."
        )
        self.settings_changes = changes.labels()
        self.ready = gauge("ready", "1 while ready for traffic, else 0, as last asked.")
        self.draining = gauge("draining", "1 from the moment shutdown began.")
        about = "Always 1; the labels tell the version, and whether the hot path is `compiled` or `python`."
        info = self._gauge("build_info", about, "version", "build")
        info.labels(carpool_sidecar.__version__, carpool_sidecar.build()).set(1)

    # --- events ------------------------------------------------------------------------------------------------

    def predicted(self, status: int, seconds: float) -> None:
        """A predict request was answered so many seconds after it came."""
        self.answered("batched", status)
        self.request_seconds.observe(seconds)

    def answered(self, lane: Lane, code: int) -> None:
        """An answer was given to a caller."""
        self.requests.labels(lane, code).inc()

    def unbatched(self, reason: errors.NotBatched) -> None:
        """A request was passed through."""
        self.not_batched.labels(reason).inc()

    def list_part(self, rule: str) -> None:
        """A part of a request of this rule went in a call without the rest."""
        self.list_parts.labels(rule).inc()

    def rpc_answered(self, lane: Lane, code: int, times: int = 1) -> None:
        """A gRPC call was answered, or so many with the same status code."""
        name = RPC_CODES[code] if 0 <= code < len(RPC_CODES) else "OTHER"
        self.rpc.labels(lane, name).inc(times)

    def render(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return prometheus.generate_latest(self.registry)

    # --- making ------------------------------------------------------------------------------------------------

    def _counter(self, name: str, text: str, *labels: str, shown_at_once: Iterable[str] = ()) -> Counter[*Labels]:
        made: Counter[*Labels] = Counter(f"carpool_{name}", text, labels, shown_at_once)
        self.registry.register(made)
        return made

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"carpool_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> measures.Histogram:
        made = measures.Histogram(bounds)
        self.registry.register(HistogramFamily(f"carpool_{name}", text, made))
        return made


class EventLoopLag:
    """Samples how late the event loop is: all callers share it, so whatever holds it up holds all of them up.

    From `start()` to `stop()` a timer is set every `interval` seconds, and how much later than asked it ran is one
    value of the histogram. A stall is seen only if a timer falls due in it, so the histogram samples what a request
    would have met that came at any moment. `clock` returns seconds and never goes back. libuv's timers count whole
    milliseconds and may be up to one early, which counts as no lag.
    """

    # State: the timer, and when it is due on `clock`.
    def __init__(
        self, histogram: measures.Histogram, clock: Callable[[], float], interval: float = LAG_INTERVAL
    ) -> None:
        self._histogram = histogram
        self._clock = clock
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Begin, on the running loop; does nothing if it has begun."""
        if self._timer is None:
            self._set_timer()

    def stop(self) -> None:
        """End; does nothing if it has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self._due = self._clock() + self._interval
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._sample)

    def _sample(self) -> None:
        self._histogram.observe(max(0.0, self._clock() - self._due))
        self._set_timer()
