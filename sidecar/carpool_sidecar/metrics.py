"""Everything the sidecar counts, in one place and in base units (seconds, bytes, instances).

The table in docs/metrics.md is held against this module by a test. Labels come from closed sets, so the number of
time series does not depend on what callers send.

Counters and histograms are plain numbers that the client library reads when it is scraped, by its interface for custom
collectors: its own take a lock for each count, and more time than all else that is done for a small request. Count from
one thread only.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence

import prometheus_client as prometheus
from prometheus_client import Gauge, registry
from prometheus_client import metrics_core as families

import carpool_sidecar
from carpool.scheduling import messages
from carpool_sidecar import errors

_SECONDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
_STALLS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)

# What the adaptive policy learned; 0 under the window policy.
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
}

LANES = ("batched", "passthrough")
# https://grpc.io/docs/guides/status-codes, by number.
_RPC_CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
# Where a failure of our own is met: see `Metrics.internal_errors`.
_PLACES = (
    "batch", "drain", "fast_lane", "first_contact", "general_lane", "http2", "passthrough", "readiness", "rpc",
    "upstream",
)  # fmt: skip
# Why a batch is sent again.
_RETRIES = ("closed", "isolate")


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


class Counter(_Family):
    """A count for each combination of label values, from the moment it is first asked for."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        super().__init__(name, text, labels)
        self._counts: dict[tuple[str, ...], Count] = {}

    def labels(self, *values: object) -> Count:
        """The count for these values, one for each label."""
        if len(values) != len(self._labelnames):
            raise ValueError(f"{self._name} has the labels {self._labelnames}, but got {values}")
        return self._counts.setdefault(tuple(map(str, values)), Count())

    def collect(self) -> Iterable[families.Metric]:
        """The family as it is now."""
        family = families.CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, count in self._counts.items():
            family.add_metric(values, count.value)
        return [family]

    describe = collect


class Histogram(_Family):
    """Counts values by the smallest of some ascending bounds that is not below them."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        super().__init__(name, text)
        self._bounds = tuple(bounds)
        self._marks = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._counts = [0] * (len(bounds) + 1)  # the last is for values above all bounds
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """One more value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_all(self, values: Collection[float]) -> None:
        """Many values at once."""
        counts, bounds, find = self._counts, self._bounds, bisect.bisect_left
        for value in values:
            counts[find(bounds, value)] += 1
        self._sum += sum(values)

    def collect(self) -> Iterable[families.Metric]:
        """The family as it is now."""
        family = families.HistogramMetricFamily(self._name, self._documentation)
        family.add_metric([], list(zip(self._marks, itertools.accumulate(self._counts), strict=True)), self._sum)
        return [family]

    describe = collect


class Metrics:
    """One registry with all metrics; methods are named after what happened."""

    def __init__(self) -> None:
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call] # a second series for each counter, which nobody asked for
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self.requests = counter("requests", "Requests answered, by lane and status code.", "lane", "code")
        self.request_seconds = histogram(
            "request_seconds", "Time from a predict request's arrival to its answer.", _SECONDS
        )
        self.refused = counter("refused", "Predict requests answered with an error, by reason.", "reason")
        self._unbatched = counter(
            "unbatched",
            "Predict requests that were passed through because batching them is not safe, by reason.",
            "reason",
        )
        self._rpc = counter("rpc_requests", "gRPC calls answered, by lane and status code.", "lane", "code")
        self.internal_errors = counter(
            "internal_errors", "Bugs met while handling requests, by place; the log has the traceback.", "where"
        )
        self.abandoned = counter("abandoned", "Predict requests whose caller left before the answer.").labels()
        self.batches = counter("batches", "Batches sent, by the reason they left.", "reason")
        self.batch_size = histogram("batch_size", "Instances in a batch.", _SIZES)
        self.queue_seconds = histogram(
            "queue_wait_seconds", "Time from a request's arrival to its first batch leaving.", _SECONDS
        )
        self.predictor_seconds = histogram("predictor_seconds", "Time of a call to the predictor.", _SECONDS)
        self.predictor_errors = counter("predictor_errors", "Failed calls to the predictor, by reason.", "reason")
        self.retries = counter("retries", "Batches sent again: closed connection or isolation.", "reason")
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
        self.queues = gauge("queues", "Batch keys with waiting requests now.")
        self.learned = {name: gauge(name, text) for name, text in _LEARNED.items()}
        self.event_loop_lag = histogram(
            "event_loop_lag_seconds", "How much later than asked a timer of the event loop ran; 4 samples/s.", _STALLS
        )
        self.connections = gauge("connections", "Client connections open now, HTTP and gRPC.")
        self.connections_refused = counter(
            "connections_refused", "Client connections closed at once because there were too many."
        ).labels()
        self.tunnels = gauge("tunnels", "Upgraded connections (WebSocket) open now.")
        self.ready = gauge("ready", "1 while ready for traffic, else 0, as last asked.")
        self.draining = gauge("draining", "1 from the moment shutdown began.")
        info = self._gauge("build_info", "Always 1; the version is in the label.", "version")
        info.labels(carpool_sidecar.__version__).set(1)
        self._begin_with_nothing()
        # By lane and status: looking labels up costs more than counting.
        self._answered: dict[str, dict[int, Count]] = {lane: {} for lane in LANES}
        self._rpc_answered: dict[str, dict[int, Count]] = {lane: {} for lane in LANES}

    # --- events ------------------------------------------------------------------------------------------------

    def dispatched(self, batch: messages.Batch) -> None:
        """A batch leaves for the predictor."""
        self.batches.labels(batch.reason).inc()
        self.batch_size.observe(batch.rows)
        if batch.reason in _RETRIES:
            self.retries.labels(batch.reason).inc()
            return
        left = batch.dispatched
        self.queue_seconds.observe_all([left - request.arrived for request, start, _ in batch.parts if not start])

    def predicted(self, status: int, seconds: float) -> None:
        """A predict request was answered so many seconds after it came."""
        self.answered("batched", status)
        self.request_seconds.observe(seconds)

    def predicted_all(self, status: int, seconds: Collection[float]) -> None:
        """As `predicted`, for many requests with one status."""
        self.answered("batched", status, len(seconds))
        self.request_seconds.observe_all(seconds)

    def answered(self, lane: str, code: int, times: int = 1) -> None:
        """An answer was given to a caller, or so many with the same status."""
        counts = self._answered[lane]
        count = counts.get(code)
        if count is None:
            count = counts[code] = self.requests.labels(lane, code)
        count.value += times

    def unbatched(self, reason: str) -> None:
        """A predict request was passed through, for one of `errors.UNBATCHABLE`."""
        self._unbatched.labels(reason).inc()

    def rpc_answered(self, lane: str, code: int, times: int = 1) -> None:
        """A gRPC call was answered, or so many with the same status code."""
        counts = self._rpc_answered[lane]
        count = counts.get(code)
        if count is None:
            count = counts[code] = self._rpc.labels(lane, _RPC_CODES[code] if 0 <= code < len(_RPC_CODES) else "OTHER")
        count.value += times

    def render(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return prometheus.generate_latest(self.registry)

    def watch(self, gauge: Gauge, value: Callable[[], float]) -> None:
        """Read a gauge when scraped."""
        gauge.set_function(value)

    def _begin_with_nothing(self) -> None:
        """Shows what has not happened as 0: to Prometheus a series that begins with 1 has never grown."""
        for reason in errors.reasons():
            self.refused.labels(reason)
        for reason in errors.reasons(errors.UpstreamError):
            self.predictor_errors.labels(reason)
        for reason in errors.UNBATCHABLE:
            self._unbatched.labels(reason)
        for place in _PLACES:
            self.internal_errors.labels(place)
        for reason in _RETRIES:
            self.retries.labels(reason)

    # --- making ------------------------------------------------------------------------------------------------

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        made = Counter(f"carpool_{name}", text, labels)
        self.registry.register(made)
        return made

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"carpool_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(f"carpool_{name}", text, buckets)
        self.registry.register(made)
        return made
