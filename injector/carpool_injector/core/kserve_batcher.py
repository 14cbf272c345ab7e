"""KServe's own batcher settings, as its controller writes them on pods, in Carpool's words.

`spec.predictor.batcher` becomes `internal.serving.kserve.io/batcher-max-batchsize` and `…-max-latency` (components.go
of kserve/kserve). The CRD knows no minimum; KServe's batcher takes its defaults for what is not above 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from carpool_injector.core import model, pods

# KServe's key, our setting, the largest value of ours.
_KEYS = (
    (pods.BATCHER + "-max-batchsize", "max-batch-size", 100_000),
    (pods.BATCHER + "-max-latency", "max-latency", 59_999),  # below the time a request has, 60 s
)


def settings(pod: pods.Pod) -> Mapping[str, str]:
    """Annotations of ours that say the same. A maxLatency makes a window of that length, as it does in KServe.

    Without one the sidecar learns when to send, rather than let single requests wait for KServe's default of 5 s.
    """
    found = pod.metadata.annotations
    return {
        model.PREFIX + setting: found[key]
        for key, setting, largest in _KEYS
        if key in found and _is_usable(found[key], largest)
    }


def warnings(pod: pods.Pod) -> Iterator[str]:
    """One for each value that is not taken over."""
    found = pod.metadata.annotations
    for key, setting, largest in _KEYS:
        if key in found and not _is_usable(found[key], largest):
            yield f"KServe's {key.rpartition('/')[2]} is no number from 1 to {largest:,}; {setting} keeps its default"


def _is_usable(text: str, largest: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 9 and 0 < int(text) <= largest
