"""What the policy learned, as sentences: numbers mean little to who does not know what they are numbers of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from carpool_sidecar.planning import probing

_SOME_SHARE = 0.02  # of callers who come back at once: less is not worth a sentence
_SOME_WAIT = 0.0001  # seconds
_BUSY, _OVERLOADED = 0.9, 1.0


def adaptive(learned: Mapping[str, float]) -> list[str]:
    """What the adaptive policy knows, by the names of `Policy.learned`."""
    fixed, each = learned["service_fixed_seconds"], learned["service_instance_seconds"]
    if fixed + each <= 0:
        return ["Nothing is known of the predictor yet: no batch has come back."]
    return list(_of_predictor(learned, fixed, each))


def sizes(learned: Mapping[str, float], max_batch_size: int) -> list[str]:
    """What an instance costs alone and in the largest batch, and from which size on a larger one pays no more."""
    fixed, each = learned["service_fixed_seconds"], learned["service_instance_seconds"]
    if fixed + each <= 0 or max_batch_size == 1:
        return []
    alone, best = fixed + each, fixed / max_batch_size + each
    told = f"An instance takes {_ms(alone)} alone, and {_ms(best)} in a batch of {max_batch_size:,}"
    at = knee(learned, max_batch_size)
    if at == 1:
        return [f"{told}: batches buy next to nothing here."]
    return [f"{told}; from {at:,} instances on it is hardly cheaper."]


def knee(learned: Mapping[str, float], max_batch_size: int) -> int:
    """The size from which on larger batches make an instance hardly cheaper; 0 if nothing is known of that yet."""
    fixed, each = learned.get("service_fixed_seconds", 0.0), learned.get("service_instance_seconds", 0.0)
    return probing.pays_from(fixed, each, max_batch_size) if fixed + each > 0 else 0


def apart(mix_forms: bool, group_by_length: bool) -> Iterator[str]:
    """What the settings keep in batches of their own, and why."""
    if not mix_forms:
        yield (
            "Instances of other forms (members, their order, kinds of values) travel apart, since a predictor that "
            "makes one table of a batch would change answers; --mix-forms lifts that."
        )
    if group_by_length:
        yield "Instances of like length travel together, since the model pads all to the longest (--group-by-length)."


def window(max_batch_size: float, latency_ms: float, max_in_flight: float, learns_in_flight: bool = False) -> list[str]:
    """What the window policy does instead of learning."""
    age = f"its oldest request is {_short(latency_ms)} ms old" if latency_ms else "the predictor has a free place"
    at_once = "one batch is" if max_in_flight == 1 else f"{max_in_flight:.0f} batches are"
    return [
        "The window policy learns only how many batches to send at once."
        if learns_in_flight
        else "The window policy learns nothing.",
        f"A batch leaves when it holds {max_batch_size:.0f} instances or {age}.",
        f"At most {at_once} at the predictor.",
    ]


def refusals(most_rows: float, most_bytes: float, kept_apart: int) -> list[str]:
    """What the predictor's refusals taught, of the batch keys with the lowest limits; 0 where there is none."""
    told = []
    if most_rows:
        told.append(f"The predictor refused more than {most_rows:,.0f} instances in one call.")
    if most_bytes:
        told.append(f"The predictor refused more than {most_bytes:,.0f} bytes of instances in one call.")
    if kept_apart:
        keys = "one batch key" if kept_apart == 1 else f"{kept_apart} batch keys"
        told.append(f"The predictor refused instances of several lengths in one call: those of {keys} travel apart.")
    return told


def _of_predictor(learned: Mapping[str, float], fixed: float, each: float) -> Iterator[str]:
    yield f"A call takes {_ms(fixed)} and {_ms(each)} for each instance."
    if learned["overhead_seconds"] >= _SOME_WAIT:
        yield f"{_ms(learned['overhead_seconds'])} of a round trip are free for other work."
    workers = round(learned["workers"])
    at_once = "one batch" if workers == 1 else f"{workers} batches"
    yield f"The predictor works on {at_once} at a time."
    if learned["spacing_share"]:
        yield f"Batches leave apart, by {learned['spacing_share'] * 100:.0f} % of what a call takes."
    capacity, share = learned["capacity"], learned["utilisation"]
    if capacity and math.isfinite(share):
        rates = f"{share * capacity:,.0f} of {capacity:,.0f}"
        yield f"{share * 100:.0f} % of what full batches could do: {rates} instances a second come.{_advice(share)}"
    if learned["predicted_wait_seconds"] >= _SOME_WAIT:
        yield f"A request that came at this moment would wait {_ms(learned['predicted_wait_seconds'])}."
    if learned["returning_share"] >= _SOME_SHARE:
        yield f"{learned['returning_share'] * 100:.0f} % of the callers send again as soon as they are answered."


def _advice(share: float) -> str:
    if share >= _OVERLOADED:
        return " More come than can be answered."
    return " There is little room for more." if share >= _BUSY else ""


def _ms(seconds: float) -> str:
    return f"{_short(seconds * 1000)} ms"


def _short(value: float) -> str:
    """Three digits that count, and at most two after the point; no exponent."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
