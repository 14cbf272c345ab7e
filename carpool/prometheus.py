"""Batched functions on a Prometheus page: the sidecar's metrics, with the label `function`.

```python
prometheus_client.REGISTRY.register(carpool.prometheus.Collector())
```
Needs the package prometheus-client, which nothing else in the library does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from carpool import errors, measures
from carpool.functions import stats
from carpool.scheduling import messages

try:
    from prometheus_client import metrics_core as families
    from prometheus_client import registry as registries
except ModuleNotFoundError as error:
    raise ImportError(
        "carpool.prometheus needs the package prometheus-client: pip install 'carpool[prometheus]'", name=error.name
    ) from error

_Value = float | Mapping[str, float] | measures.Distribution


class _Family(NamedTuple):
    """A metric: what the client library makes of it, its name and meaning, and where its value is.

    If that is a mapping, its keys are the values of one more `label`.
    """

    kind: type[Any]
    name: str
    text: str
    read: Callable[[stats.Stats], _Value]
    label: str | None = None


def _from_0(values: Iterable[str], counts: Mapping[str, float]) -> Mapping[str, float]:
    """Counts, with 0 for what was not counted: to Prometheus a series that begins with 1 has never grown."""
    return {**dict.fromkeys(values, 0), **counts}


def _learned(name: str) -> Callable[[stats.Stats], float]:
    return lambda each: each.learned.get(name, 0.0)


# What the adaptive policy learned; 0 for a function with `max_latency`.
_LEARNED = {
    "service_fixed_seconds": "Learned: working time of a batch, whatever its size.",
    "service_instance_seconds": "Learned: working time that each item adds.",
    "overhead_seconds": "Learned: part of a call's time in which the function may work on another batch.",
    "workers": "Learned: batches the function works on at once.",
    "in_flight_limit": "Batches that the function may be given at once now.",
    "capacity": "Learned: items a second with full batches.",
    "utilisation": "Arrival rate of about the last ten seconds as a share of the capacity.",
    "predicted_wait_seconds": "Predicted time until an item that came now would be worked on.",
    "returning_share": "Learned: share of answered callers who call again at once.",
    "spacing_share": "Learned: how far apart batches are kept, as a share of the time that one takes alone.",
}

_COUNTER, _GAUGE = families.CounterMetricFamily, families.GaugeMetricFamily
_HISTOGRAM = families.HistogramMetricFamily
_FAMILIES = (
    _Family(_HISTOGRAM, "request_seconds", "Time from a call to its result.", lambda each: each.request_seconds),
    _Family(
        _COUNTER,
        "refused",
        "Calls that got an exception, by reason.",
        lambda each: _from_0(errors.reasons(), each.refused),
        "reason",
    ),
    _Family(
        _COUNTER,
        "internal_errors",
        "Bugs of Carpool met while handling batches; the log has the traceback.",
        lambda each: {"batch": each.internal_errors},
        "where",
    ),
    _Family(_COUNTER, "abandoned", "Calls that were cancelled before their result.", lambda each: each.abandoned),
    _Family(_COUNTER, "cache_hits", "Items whose result was in the cache.", lambda each: each.cache_hits),
    _Family(
        _COUNTER,
        "deduplicated",
        "Items that the function was not given, as an equal one was in the batch.",
        lambda each: each.deduplicated,
    ),
    _Family(_COUNTER, "batches", "Batches sent, by the reason they left.", lambda each: each.batches, "reason"),
    _Family(_HISTOGRAM, "batch_size", "Items in a batch.", lambda each: each.sizes),
    _Family(_HISTOGRAM, "queue_wait_seconds", "Time from a call to its first batch leaving.", lambda each: each.waits),
    _Family(
        _HISTOGRAM,
        "predictor_seconds",
        "Time of the function, for each batch that succeeded.",
        lambda each: each.function_seconds,
    ),
    _Family(
        _COUNTER,
        "predictor_errors",
        "Batches that failed, by reason.",
        lambda each: _from_0(errors.reasons(errors.UpstreamError), each.failed),
        "reason",
    ),
    _Family(
        _COUNTER,
        "retries",
        "Batches sent again: isolation, smaller pieces, or a call that broke off.",
        lambda each: {reason: each.batches[reason] for reason in messages.RETRIES},
        "reason",
    ),
    _Family(_GAUGE, "batches_in_flight", "Batches that the function works on now.", lambda each: each.in_flight),
    _Family(_GAUGE, "queued_instances", "Items waiting for a batch now.", lambda each: each.queued),
    _Family(
        _GAUGE,
        "suspect_instances",
        "Of those, the ones that resemble items for which the function raised, and travel apart.",
        lambda each: each.suspects,
    ),
    _Family(_GAUGE, "queues", "Batch keys with waiting calls now.", lambda each: each.keys),
    *(_Family(_GAUGE, name, text, _learned(name)) for name, text in _LEARNED.items()),
)


class Collector(registries.Collector):
    """Shows all batched functions of the process, those of one name together.

    What an instance, or an event loop, that is gone has counted stays in the sums. With a `registry` it registers
    itself there, as prometheus_client's own collectors do. `functions` is where batchers are looked up.
    """

    def __init__(
        self, registry: registries.CollectorRegistry | None = None, functions: stats.Registry = stats.live
    ) -> None:
        self._functions = functions
        if registry is not None:
            registry.register(self)

    def collect(self) -> Iterable[families.Metric]:
        """All families as they are now."""
        found = self._functions.stats()
        return [_shown(family, found) for family in _FAMILIES]

    def describe(self) -> Iterable[families.Metric]:
        """All families without values: their names are known before any function is."""
        return [_shown(family, {}) for family in _FAMILIES]


def _shown(family: _Family, found: Mapping[str, stats.Stats]) -> families.Metric:
    """A metric of these functions, by name."""
    labels = ["function"] if family.label is None else ["function", family.label]
    made = family.kind(f"carpool_{family.name}", family.text, labels=labels)
    for function, each in found.items():
        value = family.read(each)
        if isinstance(value, measures.Distribution):
            made.add_metric([function], value.cumulative(), value.sum)
        elif isinstance(value, Mapping):
            for of_label, count in value.items():
                made.add_metric([function, of_label], count)
        else:
            made.add_metric([function], value)
    return made  # type: ignore[no-any-return] # the three kinds have no add_metric in common
