"""Who asks for the sidecar, who forbids it, and who wins. Whether a pod can have it is another question (`permission`).

The decision is data: the first row of `ROWS` that answers decides. The README's table is made from these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from carpool_injector.core import model, pod_annotations, pods, refusals
from carpool_injector.core.config import Config
from carpool_injector.core.refusals import Skip

_ON_POD = {"true": True, "false": False}
_ON_NAMESPACE = {**_ON_POD, "enabled": True, "disabled": False}
# Labels only: the API server selects namespaces by them before it asks a webhook.
_LABEL_OF_NAMESPACE = f"label {pod_annotations.INJECT} of the namespace"
_TAKEOVER = {"takeover": True, "leave": False}


class Asked(NamedTuple):
    """What a decision is made from."""

    pod: pods.Pod
    namespace: model.Namespace
    config: Config
    is_predictor: Callable[[pods.Pod], bool]
    """Whether a pod is KServe's or runs a model server that is recognised."""


class BadWord(refusals.BadSettings):
    """A value that is neither yes nor no. `decision` says whose."""

    def __init__(self, problems: Sequence[str], decision: model.Decision) -> None:
        super().__init__(problems)
        self.decision = decision


class Row(NamedTuple):
    """A place where someone may ask for the sidecar or forbid it: the answer found there, or None."""

    source: str
    words: str
    explicit: bool
    answer: Callable[[Asked], bool | None]


def _switch(values: Mapping[str, str], key: str, words: Mapping[str, bool], where: str) -> bool | None:
    value = values.get(key)
    if value is None:
        return None
    if value not in words:
        allowed = " or ".join(f'"{word}"' for word in words)
        raise refusals.BadSettings([f"{where}: got {value[:80]!r}: must be {allowed}"])
    return words[value]


def _namespace(asked: Asked) -> bool | None:
    return _switch(asked.namespace.labels, pod_annotations.INJECT, _ON_NAMESPACE, _LABEL_OF_NAMESPACE)


def _kserve_batcher(asked: Asked) -> bool | None:
    if pods.BATCHER not in asked.pod.metadata.annotations:
        return None
    where = f"label {pod_annotations.KSERVE_BATCHER} of the namespace"
    found = _switch(asked.namespace.labels, pod_annotations.KSERVE_BATCHER, _TAKEOVER, where)
    if found is not None:
        return found or None
    return asked.config.kserve_batcher == "takeover" or None


def _on_pod(asked: Asked, kind: str) -> bool | None:
    metadata = asked.pod.metadata
    values = metadata.labels if kind == "label" else metadata.annotations
    return _switch(values, pod_annotations.INJECT, _ON_POD, f"{kind} {pod_annotations.INJECT}")


_OF_NAMESPACE = Row("the namespace's label carpool.dev/inject", "enabled, disabled, true, false", False, _namespace)
ROWS = (
    Row("the pod's label carpool.dev/inject", "true, false", True, lambda asked: _on_pod(asked, "label")),
    Row("the pod's annotation carpool.dev/inject", "true, false", True, lambda asked: _on_pod(asked, "annotation")),
    _OF_NAMESPACE,
    Row(
        "KServe's batcher, where the namespace's label carpool.dev/kserve-batcher or the chart hands it to Carpool",
        "takeover, leave",
        False,
        _kserve_batcher,
    ),
)
"""Who may ask, the strongest first."""


def who_asks(asked: Asked) -> model.Decision:
    """Whether the pod was asked to get the sidecar: the first row that says something decides, nothing said means no.

    Raises `BadWord` for a word that is neither yes nor no.
    """
    for row in ROWS:
        try:
            answer = row.answer(asked)
        except refusals.BadSettings as error:
            if not row.explicit and not asked.is_predictor(asked.pod):
                continue
            bad = model.Decision(False, row.explicit, row.source, Skip.BAD_WORD)
            raise BadWord(error.problems, bad) from None
        if answer is None:
            continue
        if not answer:
            return model.Decision(False, row.explicit, row.source, Skip.SWITCHED_OFF)
        # A namespace speaks for all its pods, databases included: only predictors are meant.
        if not row.explicit and not asked.is_predictor(asked.pod):
            return model.Decision(False, False, row.source, Skip.NOT_A_PREDICTOR)
        return model.Decision(True, row.explicit, row.source, "asked")
    return model.Decision(False, False, "nobody", Skip.NOT_ASKED, concerned=False)


def conflicts(asked: Asked) -> Iterator[str]:
    """A warning if label and annotation of the pod disagree."""
    label = asked.pod.metadata.labels.get(pod_annotations.INJECT)
    annotation = asked.pod.metadata.annotations.get(pod_annotations.INJECT)
    if label is not None and annotation is not None and label != annotation:
        yield f"label and annotation {pod_annotations.INJECT} disagree; the label ({label}) counts"


def is_for_all(decided: model.Decision) -> bool:
    """Whether the namespace spoke, for whatever runs in it."""
    return decided.source == _OF_NAMESPACE.source
