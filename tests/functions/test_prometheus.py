"""Functions on a page for Prometheus: the sidecar's metrics by the same names, for each function."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from typing import Any

import prometheus_client
import pytest

from carpool import errors, prometheus
from carpool.functions import stats
from carpool.scheduling import adaptive, limits, messages, scheduler
from carpool_sidecar import metrics as sidecar_metrics

OUR_OWN = {"carpool_cache_hits", "carpool_deduplicated"}


class Batcher:
    """What statistics are told of a batcher."""

    def __init__(self, name: str, **facts: Any) -> None:
        self.name = name
        self.recorder = stats.Recorder()
        self.facts = facts

    def stats(self) -> stats.Stats:
        return stats.Stats.merged([stats.Stats(name=self.name, **self.facts), stats.counted(self.name, self.recorder)])


@pytest.fixture
def functions() -> stats.Registry:
    return stats.Registry()


@pytest.fixture
def page(functions: stats.Registry) -> prometheus_client.CollectorRegistry:
    registry = prometheus_client.CollectorRegistry()
    registry.register(prometheus.Collector(functions=functions))
    return registry


def families(registry: Any) -> dict[str, Any]:
    return {family.name: family for family in registry.collect() if family.name.startswith("carpool_")}


def labels(family: Any) -> list[str]:
    """Of a family with values, besides a histogram's own."""
    return [name for name in family.samples[0].labels if name != "le"] if family.samples else []


def buckets(family: Any) -> list[str]:
    return [sample.labels["le"] for sample in family.samples if sample.name.endswith("_bucket")]


def test_names_types_and_buckets_are_the_sidecars(page, functions) -> None:
    batcher = Batcher("embed")
    functions.add(batcher)
    ours, theirs = families(page), families(sidecar_metrics.Metrics().registry)
    assert set(ours) - set(theirs) == OUR_OWN
    shared = ours.keys() & theirs
    assert {name: ours[name].type for name in shared} == {name: theirs[name].type for name in shared}
    assert {name: buckets(ours[name]) for name in shared} == {name: buckets(theirs[name]) for name in shared}


def test_labels_are_the_sidecars_and_the_function(page, functions) -> None:
    batcher = Batcher("embed")
    functions.add(batcher)
    counters = sidecar_metrics.Metrics()
    counters.batches.labels(messages.Reason.FULL)
    ours, theirs = families(page), families(counters.registry)
    for name in ours.keys() & theirs:
        assert labels(ours[name]) == ["function", *labels(theirs[name])], name


def test_everything_that_the_adaptive_policy_learns_is_shown(page, functions) -> None:
    bounds = limits.Limits()
    core = scheduler.Scheduler(bounds, adaptive.Adaptive(bounds), lambda: 0.0, lambda: "id")
    learned = {name: float(place) for place, name in enumerate(core.learned(), 1)}
    batcher = Batcher("embed", learned=learned)
    functions.add(batcher)
    assert set(prometheus._LEARNED) == set(learned)
    assert {name: page.get_sample_value(f"carpool_{name}", {"function": "embed"}) for name in learned} == learned


def test_a_function_is_shown_with_what_it_does(page, functions) -> None:
    batcher = Batcher("embed", queued=3, suspects=1, keys=2, in_flight=1)
    functions.add(batcher)
    recorder = batcher.recorder
    request = messages.Request("key", 5)
    request.arrived = 1.0
    for reason, parts in (("full", (0, 3)), ("isolate", (0, 3)), ("due", (3, 5))):
        batch = messages.Batch("id", "key", [messages.Part(request, *parts)], messages.Reason(reason))
        batch.dispatched = 1.25
        recorder.sent(batch)
    recorder.answered(batch, 0.125)
    recorder.failed(batch, errors.NotMergeable())
    recorder.refused(errors.Overloaded(), 2)
    recorder.finished([1.0, 1.5], 2.0)
    recorder.cache_hits += 7
    recorder.deduplicated += 4
    recorder.left(None)

    def value(name: str, **more: str) -> float | None:
        return page.get_sample_value(f"carpool_{name}", {"function": "embed", **more})

    assert (value("queued_instances"), value("suspect_instances"), value("queues")) == (3, 1, 2)
    assert value("batches_in_flight") == 1
    assert [value("batches_total", reason=each) for each in ("full", "due", "idle")] == [1, 1, 0]
    assert [value("retries_total", reason=each) for each in ("isolate", "closed")] == [1, 0]
    assert (value("batch_size_sum"), value("batch_size_count"), value("batch_size_bucket", le="2.0")) == (8, 3, 1)
    assert (value("queue_wait_seconds_sum"), value("queue_wait_seconds_count")) == (0.25, 1)
    assert (value("predictor_seconds_sum"), value("request_seconds_sum")) == (0.125, 1.5)
    assert value("predictor_errors_total", reason="not_mergeable") == 1
    assert [value("refused_total", reason=each) for each in ("queue_full", "deadline")] == [2, 0]
    assert (value("cache_hits_total"), value("deduplicated_total"), value("abandoned_total")) == (7, 4, 1)
    assert value("internal_errors_total", where="batch") == 0


def test_functions_of_one_name_are_one_and_others_are_apart(page, functions) -> None:
    batchers = [Batcher("embed", queued=1), Batcher("embed", queued=2), Batcher("rank", queued=4)]
    for batcher in batchers:
        functions.add(batcher)
    values = {name: page.get_sample_value("carpool_queued_instances", {"function": name}) for name in ("embed", "rank")}
    assert values == {"embed": 3, "rank": 4}


def test_counters_do_not_go_back_when_an_instance_is_freed(page, functions) -> None:
    batcher = Batcher("embed", queued=1)
    batcher.recorder.refused(errors.Overloaded(), 5)
    functions.add(batcher)
    refused = {"function": "embed", "reason": "queue_full"}
    assert page.get_sample_value("carpool_refused_total", refused) == 5
    del batcher
    gc.collect()
    assert page.get_sample_value("carpool_refused_total", refused) == 5
    assert page.get_sample_value("carpool_queued_instances", {"function": "embed"}) == 0


def test_names_of_functions_may_be_anything(page, functions) -> None:
    batcher = Batcher('a "b"\n\\c.<locals>.d', queued=1)
    functions.add(batcher)
    text = prometheus_client.generate_latest(page).decode()
    assert 'carpool_queued_instances{function="a \\"b\\"\\n\\\\c.<locals>.d"} 1.0' in text


def test_a_page_is_there_before_any_function_and_a_second_collector_is_refused(page) -> None:
    assert prometheus_client.generate_latest(page).count(b"# TYPE carpool_") == len(prometheus._FAMILIES)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        prometheus.Collector(page)


def test_with_a_registry_it_registers_itself_for_all_functions_of_the_process() -> None:
    registry = prometheus_client.CollectorRegistry()
    prometheus.Collector(registry)
    batcher = Batcher("of the process", queued=6)
    stats.live.add(batcher)
    assert registry.get_sample_value("carpool_queued_instances", {"function": "of the process"}) == 6


def test_no_series_tells_when_it_was_created(page, functions) -> None:
    batcher = Batcher("embed")
    functions.add(batcher)
    assert not re.search(rb"_created\b", prometheus_client.generate_latest(page))


def test_without_the_client_library_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['prometheus_client'] = None; import carpool.prometheus"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (
        "ImportError: carpool.prometheus needs the package prometheus-client: pip install 'carpool[prometheus]'"
        in ended.stderr
    )
