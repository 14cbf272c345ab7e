"""The options of a batched function, checked where it is decorated: in the sidecar's words, in seconds and items."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypedDict

from carpool.scheduling import limits as core_limits

_MOST_ITEMS = 1_000_000
_MOST_IN_FLIGHT = 1024
_LOWEST, _HIGHEST = -1, 1
# Under overload the queue stands right at the objective that is aimed at; without a margin a hiccup of a few
# milliseconds makes answers late that were computed all the same.
_SLO_SHARE = 0.85


class Cache(Protocol):
    """Keeps results: `get` returns None for what it does not have."""

    def get(self, key: Any, /) -> Any: ...

    def set(self, key: Any, value: Any, /) -> Any: ...


Isolate = bool | type[Exception] | tuple[type[Exception], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `carpool.batched` takes.

    Raises TypeError or ValueError that names the option, the value and what is allowed.

    `max_latency`, `slo` and `timeout` are seconds, None for none: without `max_latency` the policy learns. Without
    `max_in_flight` a function has one thread, a coroutine function as many calls as is found useful, and a pool of
    processes one call for each. `cost` measures an item; `max_batch_cost` bounds the sum of a batch.
    """

    max_batch_size: int = 32
    max_latency: float | None = None
    slo: float | None = None
    max_in_flight: int | None = None
    timeout: float | None = None
    max_queue: int | None = None
    cost: Callable[[Any], float] | None = None
    max_batch_cost: float | None = None
    allowed_batch_sizes: Sequence[int] = ()
    small_batch_threshold: int = 0
    isolate: Isolate = True
    dedupe: bool = False
    cache: Cache | None = None
    merge: Any = None
    name: str | None = None

    def __post_init__(self) -> None:
        whole, seconds = _check_whole, _check_seconds
        whole("max_batch_size", self.max_batch_size, 1, _MOST_ITEMS)
        seconds("max_latency", self.max_latency, allows_zero=True)
        seconds("slo", self.slo)
        seconds("timeout", self.timeout)
        if self.max_in_flight is not None:
            whole("max_in_flight", self.max_in_flight, 1, _MOST_IN_FLIGHT)
        if self.max_queue is not None:
            whole("max_queue", self.max_queue, 1, None)
        whole("small_batch_threshold", self.small_batch_threshold, 0, _MOST_ITEMS)
        self._check_cost()
        object.__setattr__(self, "allowed_batch_sizes", self._checked_sizes())
        self._check_isolate()
        _check_type("dedupe", self.dedupe, bool)
        if self.name is not None:
            _check_type("name", self.name, str)
        if self.cache is not None and not (
            callable(getattr(self.cache, "get", None)) and callable(getattr(self.cache, "set", None))
        ):
            raise TypeError(f"cache must have the methods get and set; {type(self.cache).__name__} does not")
        self._check_merge()

    def _check_cost(self) -> None:
        if self.cost is not None and not callable(self.cost):
            raise TypeError(f"cost must be a function of an item, not {self.cost!r}")
        if (self.cost is None) != (self.max_batch_cost is None):
            raise ValueError("cost and max_batch_cost go together: the one measures what the other bounds")
        if self.max_batch_cost is not None:
            _check_number("max_batch_cost", self.max_batch_cost)
            if not self.max_batch_cost > 0:
                raise ValueError(f"max_batch_cost must be more than 0, not {self.max_batch_cost!r}")

    def _checked_sizes(self) -> tuple[int, ...]:
        sizes = self.allowed_batch_sizes
        if isinstance(sizes, str | bytes) or not isinstance(sizes, Iterable):
            raise TypeError(f"allowed_batch_sizes must be a list of whole numbers, not {sizes!r}")
        found = tuple(sizes)
        for size in found:
            _check_whole("allowed_batch_sizes", size, 1, _MOST_ITEMS)
        if any(small >= large for small, large in itertools.pairwise(found)):
            raise ValueError(f"allowed_batch_sizes must ascend, not {list(found)}")
        if found and found[-1] != self.max_batch_size:
            raise ValueError(
                f"the last of allowed_batch_sizes, {found[-1]}, must be max_batch_size, {self.max_batch_size}"
            )
        return found

    def _check_isolate(self) -> None:
        kinds = self.isolate
        if isinstance(kinds, bool):
            return
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise TypeError(f"isolate must be True, False or exception types, not {self.isolate!r}")

    def _check_merge(self) -> None:
        if self.merge is None:
            return
        if isinstance(self.merge, type):
            raise TypeError(f"merge must be an object: call {self.merge.__name__}(…)")
        missing = [name for name in ("rows", "join", "split") if not callable(getattr(self.merge, name, None))]
        if missing:
            raise TypeError(f"merge must have rows, join and split; {self.merge!r} lacks {' and '.join(missing)}")
        for name in ("dedupe", "cache"):
            if getattr(self, name) not in (None, False):
                raise ValueError(f"{name} does not go with merge: merged items are not compared")

    # --- what they mean ----------------------------------------------------------------------------------------

    def isolates(self, error: BaseException) -> bool:
        """Whether a batch in which this was raised is retried in parts."""
        if isinstance(self.isolate, bool):
            return self.isolate and issubclass(type(error), Exception)
        return issubclass(type(error), self.isolate)

    def fill(self, limits: core_limits.Limits, max_in_flight: int, learns_in_flight: bool) -> None:
        """Write the numbers into the scheduler's limits; the last two are used where `max_in_flight` was not chosen."""
        limits.max_batch_size = self.max_batch_size
        limits.max_latency = math.inf if self.max_latency is None else self.max_latency
        limits.slo = math.inf if self.slo is None else _SLO_SHARE * self.slo
        limits.timeout = math.inf  # each call brings its own
        limits.max_in_flight = self.max_in_flight or max_in_flight
        limits.learns_in_flight = learns_in_flight and self.max_in_flight is None and self.max_latency is None
        limits.max_queue_instances = sys.maxsize if self.max_queue is None else self.max_queue
        limits.max_queue_bytes = sys.maxsize
        limits.max_batch_cost = math.inf if self.max_batch_cost is None else self.max_batch_cost
        limits.row_costs = None if self.cost is None else row_costs  # type: ignore[assignment] # any numbers do
        limits.allowed_sizes = tuple(self.allowed_batch_sizes)
        limits.small_batch_threshold = self.small_batch_threshold

    def changed(self, changes: Mapping[str, Any]) -> Options:
        """With some options changed; raises TypeError for those that cannot be."""
        check_names("configure", changes, NAMES)
        fixed = sorted(set(changes) - set(LIVE))
        if fixed:
            raise TypeError(f"{', '.join(fixed)} cannot be changed while it runs; what can: {', '.join(LIVE)}")
        return dataclasses.replace(self, **changes)


class Changes(TypedDict, total=False):
    """The options that `configure` changes, as keyword arguments."""

    max_batch_size: int
    max_latency: float | None
    slo: float | None
    max_in_flight: int | None
    timeout: float | None
    max_queue: int | None
    max_batch_cost: float | None
    allowed_batch_sizes: Sequence[int]
    small_batch_threshold: int
    isolate: Isolate


LIVE = tuple(Changes.__annotations__)


NAMES = tuple(each.name for each in dataclasses.fields(Options))


def check_names(where: str, chosen: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """Raises TypeError for what is no option, and says what might be meant."""
    for name in chosen:
        if name not in allowed:
            close = difflib.get_close_matches(name, allowed, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise TypeError(f"{where} has no option {name}; {hint}there are: {', '.join(allowed)}")


class Costed(list[Any]):
    """Items of a call with what each costs."""

    costs: Sequence[float]


def costed(cost: Callable[[Any], float], payload: Sequence[Any], rows: int) -> Costed:
    """Items with what they cost; a merged item's cost is spread over its rows.

    Raises what `cost` raises, and ValueError if that is no number of at least 0.
    """
    made = Costed(payload)
    costs: list[float] = []
    for item in payload:
        found = cost(item)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < math.inf:
            raise ValueError(f"cost must return a number of at least 0 for an item, not {found!r}")
        costs.append(found)
    made.costs = costs if rows == len(payload) else [costs[0] / rows] * rows
    return made


def row_costs(payload: Costed, start: int, stop: int) -> Sequence[float]:
    """The scheduler's measure: what rows `start` to `stop` cost."""
    return payload.costs[start:stop]


def check_timeout(value: float | None, *, allows_zero: bool = False) -> None:
    """Raises TypeError or ValueError unless this is a timeout in seconds, or None."""
    _check_seconds("timeout", value, allows_zero=allows_zero)


def check_priority(value: int) -> None:
    """Raises TypeError or ValueError unless this is a level of priority."""
    _check_whole("priority", value, _LOWEST, _HIGHEST)


def _check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be of type {kind.__name__}, not {value!r}")


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {value!r}")


def _check_whole(name: str, value: object, least: int, most: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < least or (most is not None and value > most):
        allowed = f"from {least} to {most}" if most is not None else f"at least {least}"
        raise ValueError(f"{name} must be {allowed}, not {value}")


def _check_seconds(name: str, value: object, *, allows_zero: bool = False) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, not {value!r}")
    if not (value >= 0 if allows_zero else value > 0) or math.isinf(value):
        least = "0 or more" if allows_zero else "more than 0"
        raise ValueError(f"{name} must be {least} seconds, or None for none, not {value!r}")
