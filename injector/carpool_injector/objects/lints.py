"""What is likely to go wrong with an InferenceService that asks for the sidecar, as warnings for who applies it.

Each lint is a function of the object as it will be and as it was. None denies: KServe's defaults may still change what
is said here, and the pod's own review decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from carpool_injector.core import model, pod_annotations
from carpool_injector.objects import inference_services, runtimes

_BATCH_SIZE = 32  # of the sidecar, when nobody chooses one
_SIZE, _LATENCY = model.PREFIX + "max-batch-size", model.PREFIX + "max-latency"
_OWN = {pod_annotations.INJECT, pod_annotations.KSERVE_BATCHER}


@dataclass(frozen=True, slots=True)
class Change:
    """An InferenceService as applied and, on an UPDATE, as it was. `default_size`: the admin's max-batch-size."""

    new: inference_services.InferenceService
    old: inference_services.InferenceService | None = None
    default_size: str | None = None

    @property
    def max_batch_size(self) -> int:
        """What the sidecar will run with: annotation, else KServe's batcher, else the defaults."""
        predictor = self.new.predictor
        for text in (
            predictor.annotations.get(_SIZE),
            str((predictor.batcher or {}).get("maxBatchSize")),
            self.default_size,
        ):
            if text is not None and text.isascii() and text.isdecimal() and int(text):
                return int(text)
        return _BATCH_SIZE


def check(change: Change) -> Iterator[str]:
    """All warnings."""
    for lint in LINTS:
        yield from lint(change)


def mode(change: Change) -> Iterator[str]:
    """The annotation of the mode has a value that KServe knows, and one whose pods get sidecars."""
    value = change.new.annotations.get(inference_services.MODE)
    if value is not None and value not in inference_services.MODES:
        allowed = ", ".join(inference_services.MODES)
        yield f"annotation {inference_services.MODE}: got {value[:80]!r}: KServe knows {allowed}"
    if change.new.mode == "ModelMesh":
        yield "pods of ModelMesh get no Carpool sidecar; use Standard or Knative"


def reach(change: Change) -> Iterator[str]:
    """What stands in metadata reaches all components."""
    others = [name for name in change.new.components if name != "predictor"]
    held = [key for key in (*change.new.annotations, *change.new.labels) if key.startswith(model.PREFIX)]
    if others and held:
        where = "spec.predictor.annotations (labels: spec.predictor.labels)"
        yield f"{held[0]} in metadata reaches the {' and '.join(others)} as well; better put it in {where}"


def concurrency(change: Change) -> Iterator[str]:
    """Knative's queue-proxy lets so many requests through at once, and stands in front of the sidecar (kserve#2102)."""
    limit = inference_services.whole(change.new.predictor.spec.get("containerConcurrency"))
    size = change.max_batch_size
    if change.new.mode != "Standard" and limit is not None and 0 < limit < size:
        yield (
            f"containerConcurrency {limit} is below the max batch size {size}: with Knative no batch of one-instance "
            f"requests grows beyond {limit}; use 0, and the annotation autoscaling.knative.dev/target"
        )


def two_voices(change: Change) -> Iterator[str]:
    """KServe's batcher and our annotations name the same thing."""
    batcher = change.new.predictor.batcher or {}
    for field, key in (("maxBatchSize", _SIZE), ("maxLatency", _LATENCY)):
        ours, theirs = change.new.predictor.annotations.get(key), batcher.get(field)
        if ours is not None and theirs is not None and ours != str(theirs):
            yield f"{key} ({ours[:20]}) wins over spec.predictor.batcher.{field} ({str(theirs)[:20]})"


def toggled_agent(change: Change) -> Iterator[str]:
    """In Standard mode KServe turns the Service to another port at once, not when new pods are ready."""
    if change.old is None or change.new.mode == "Knative":
        return
    had, has = change.old.predictor.agent, change.new.predictor.agent
    if bool(had) != bool(has):
        verb, to = ("adding", "9081") if has else ("removing", "the model server's port")
        yield (
            f"{verb} spec.predictor.{had or has} turns the Service to {to} before new pods are ready: in Standard mode "
            "calls fail until then; prefer a new InferenceService"
        )


def unknown_server(change: Change) -> Iterator[str]:
    """In Standard mode, where KServe puts no agent in front, the sidecar has to take the model server's port."""
    predictor = change.new.predictor
    runtime = predictor.runtime
    if change.new.mode == "Knative" or predictor.agent or not runtime:
        return
    told = {f"{model.PREFIX}app-port-arg", f"{model.PREFIX}app-port-env"} & predictor.annotations.keys()
    if not told and not runtimes.is_movable(runtime):
        yield (
            f"in Standard mode the port of {runtime[:60]!r} cannot be taken over; set spec.predictor.batcher: {{}}, "
            f"or name its port flag in {model.PREFIX}app-port-arg"
        )


def explainer_batcher(change: Change) -> Iterator[str]:
    """KServe turns the explainer's Service to 9081 in Standard mode, and puts nothing there."""
    explainer = change.new.components.get("explainer")
    if explainer is not None and explainer.batcher is not None and change.new.mode != "Knative":
        yield "remove spec.explainer.batcher: in Standard mode it turns the Service to 9081, where nothing listens"


LINTS: tuple[Callable[[Change], Iterator[str]], ...] = (
    mode, reach, concurrency, two_voices, toggled_agent, unknown_server, explainer_batcher,
)  # fmt: skip
