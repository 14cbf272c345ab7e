"""The options of a batched function, checked where it is decorated: in the sidecar's words, in seconds and items."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import itertools
import math
import operator
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict

from carpool.scheduling import limits as core_limits

_MOST_ITEMS = 1_000_000
_MOST_IN_FLIGHT = 1024
_LONGEST = 2**40  # longer than any text, and as often as there are rows it is still a float
# Under overload the queue stands right at the objective that is aimed at; without a margin a hiccup of a few
# milliseconds makes answers late that were computed all the same.
_SLO_SHARE = 0.85


class Cache(Protocol):
    """Keeps results: `get` returns None for what it does not have."""

    def get(self, key: Any, /) -> Any: ...

    def set(self, key: Any, value: Any, /) -> Any: ...


Isolate = bool | type[Exception] | tuple[type[Exception], ...]
Dedupe = bool | Literal["in_flight"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `carpool.batched` takes.

    Raises TypeError or ValueError that names the option, the value and what is allowed.

    `max_latency`, `slo` and `timeout` are seconds, None for none: without `max_latency` the policy learns. Without
    `max_in_flight` a function has one thread, a coroutine function as many calls as is found useful, and a pool of
    processes one call for each. `cost` measures an item; `max_batch_cost` bounds the sum of a batch. `length` measures
    one where items of like length are to share a batch. `key` makes of an item what tells it from others, for `dedupe`
    and `cache`. `each` names arguments of which every item has its own; `key`, `cost` and `length` are given these as
    well. `pad_with` is an item that fills batches up to the next of
    `allowed_batch_sizes`, or to `max_batch_size`; with `each` a tuple of an item and its own arguments.
    """

    max_batch_size: int = 32
    max_latency: float | None = None
    slo: float | None = None
    max_in_flight: int | None = None
    timeout: float | None = None
    max_queue: int | None = None
    cost: Callable[[Any], float] | None = None
    max_batch_cost: float | None = None
    length: Callable[[Any], int] | None = None
    allowed_batch_sizes: Sequence[int] = ()
    small_batch_threshold: int = 0
    isolate: Isolate = True
    dedupe: Dedupe = False
    cache: Cache | None = None
    key: Callable[..., Hashable] | None = None
    each: Sequence[str] = ()
    pad_with: Any = None
    merge: Any = None
    name: str | None = None

    def __post_init__(self) -> None:
        self._keep("max_batch_size", whole, 1, _MOST_ITEMS)
        self._keep("max_latency", seconds, allows_zero=True)
        self._keep("slo", seconds)
        self._keep("timeout", seconds)
        if self.max_in_flight is not None:
            self._keep("max_in_flight", whole, 1, _MOST_IN_FLIGHT)
        if self.max_queue is not None:
            self._keep("max_queue", whole, 1)
        self._keep("small_batch_threshold", whole, 0, _MOST_ITEMS)
        self._check_measures()
        object.__setattr__(self, "allowed_batch_sizes", self._checked_sizes())
        self._check_isolate()
        if type(self.dedupe) is not bool and self.dedupe != "in_flight":
            raise ValueError(f"dedupe must be True, False or 'in_flight', not {self.dedupe!r}")
        self._check_each()
        if self.name is not None and not isinstance(self.name, str):
            raise TypeError(f"name must be of type str, not {self.name!r}")
        if self.cache is not None and not all(callable(getattr(self.cache, name, None)) for name in ("get", "set")):
            raise TypeError(f"cache must have the methods get and set; {type(self.cache).__name__} does not")
        self._check_merge()

    def _keep(self, name: str, check: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Keep an option as what a check makes of it."""
        object.__setattr__(self, name, check(name, getattr(self, name), *args, **kwargs))

    def _check_each(self) -> None:
        if isinstance(self.each, str) or not all(isinstance(name, str) for name in self.each):
            raise TypeError(f"each must be a list of names of arguments, not {self.each!r}")
        object.__setattr__(self, "each", tuple(self.each))
        if len(set(self.each)) < len(self.each):
            raise ValueError(f"each must name each argument once, not {self.each!r}")
        if self.each and self.pad_with is not None:
            given = self.pad_with
            if not isinstance(given, tuple) or len(given) != 1 + len(self.each):
                raise TypeError(f"pad_with must be a tuple of an item and its {', '.join(self.each)}, not {given!r}")

    def _check_measures(self) -> None:
        for name, measure in (("cost", self.cost), ("length", self.length), ("key", self.key)):
            if measure is not None and not callable(measure):
                raise TypeError(f"{name} must be a function of an item, not {measure!r}")
        if (self.cost is None) != (self.max_batch_cost is None):
            raise ValueError("cost and max_batch_cost go together: the one measures what the other bounds")
        if self.max_batch_cost is not None:
            self._keep("max_batch_cost", number)
            if not self.max_batch_cost > 0:
                raise ValueError(f"max_batch_cost must be more than 0, not {self.max_batch_cost!r}")

    def _checked_sizes(self) -> tuple[int, ...]:
        sizes = self.allowed_batch_sizes
        if isinstance(sizes, str | bytes) or not isinstance(sizes, Iterable):
            raise TypeError(f"allowed_batch_sizes must be a list of whole numbers, not {sizes!r}")
        found = tuple([whole("allowed_batch_sizes", size, 1, _MOST_ITEMS) for size in sizes])
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
        for name in ("dedupe", "cache", "key", "each", "pad_with"):
            if not any(getattr(self, name) is nothing for nothing in (None, False, ())):
                raise ValueError(f"{name} does not go with merge: merged items are not compared")

    # --- what they mean ----------------------------------------------------------------------------------------

    @property
    def cache_is_async(self) -> bool:
        """Whether the cache has coroutine methods."""
        return any(inspect.iscoroutinefunction(getattr(self.cache, name, None)) for name in ("get", "set"))

    def of_item(self, measure: Callable[..., Any]) -> Callable[[Any], Any]:
        """`cost`, `length` or `key` as a function of an item with what it has of its own."""
        return (lambda item: measure(*item)) if self.each else measure

    def measured(self, payload: Sequence[Any], rows: int) -> Sequence[Any]:
        """Items with what is measured of them. Rows of a merged one share its cost, and all are as long as it is.

        Raises what `cost` and `length` raise, and TypeError or ValueError for what is no number of at least 0, or for a
        length that is no whole number up to 2**40.
        """
        if self.cost is self.length is None:
            return payload
        made = Measured(payload)
        share = rows // len(payload)  # of one item that is merged, all of them
        if self.cost is not None:
            made.costs = [_cost(each) / share for each in map(self.of_item(self.cost), payload) for _ in range(share)]
        if self.length is not None:
            lengths = map(self.of_item(self.length), payload)
            made.lengths = [whole("what length returns", each, 0, _LONGEST) for each in lengths for _ in range(share)]
        return made

    @property
    def shares_in_flight(self) -> bool:
        """Whether equal calls are one call, from the first until that has its answer."""
        return self.dedupe == "in_flight"

    @property
    def has_nothing_at_calls(self) -> bool:
        """Whether a call has nothing to do but to be put in."""
        no_objects = self.merge is self.cost is self.length is None and self.cache is None
        return no_objects and not self.each and not self.shares_in_flight

    def check_goes_with(self, name: str, *, is_async: bool, is_stream: bool) -> None:
        """Raises TypeError for what such a function cannot have."""
        if self.cache_is_async and (is_stream or not is_async):
            raise TypeError(
                f"the coroutine methods of {type(self.cache).__name__} need an async def that returns a list, which "
                f"{name} is not: its cache must have plain methods"
            )
        if self.shares_in_flight and is_stream:
            raise TypeError(
                f"{name} yields, and who joins late would miss the begin: dedupe it within a batch, by True"
            )

    def isolates(self, error: BaseException) -> bool:
        """Whether a batch in which this was raised is retried in parts."""
        if isinstance(self.isolate, bool):
            return self.isolate and issubclass(type(error), Exception)
        return issubclass(type(error), self.isolate)

    def limits(self, max_in_flight: int, learns_in_flight: bool) -> core_limits.Limits:
        """The scheduler's; both arguments are used where `max_in_flight` was not chosen."""
        return core_limits.Limits(
            max_batch_size=self.max_batch_size,
            max_latency=math.inf if self.max_latency is None else self.max_latency,
            slo=math.inf if self.slo is None else _SLO_SHARE * self.slo,
            timeout=math.inf,  # each call brings its own
            max_in_flight=self.max_in_flight or max_in_flight,
            learns_in_flight=learns_in_flight and self.max_in_flight is None and self.max_latency is None,
            max_queue_instances=sys.maxsize if self.max_queue is None else self.max_queue,
            max_queue_bytes=sys.maxsize,
            max_batch_cost=math.inf if self.max_batch_cost is None else self.max_batch_cost,
            row_costs=None if self.cost is None else lambda payload, start, stop: payload.costs[start:stop],
            row_lengths=None if self.length is None else lambda payload, start, stop: payload.lengths[start:stop],
            allowed_sizes=tuple(self.allowed_batch_sizes),
            small_batch_threshold=self.small_batch_threshold,
        )

    def changed(self, changes: Mapping[str, Any]) -> Options:
        """With some options changed; raises TypeError for those that cannot be."""
        check_names("configure", changes)
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


def check_names(where: str, chosen: Iterable[str]) -> None:
    """Raises TypeError for what is no option, and says what might be meant."""
    for name in chosen:
        if name not in NAMES:
            close = difflib.get_close_matches(name, NAMES, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise TypeError(f"{where} has no option {name}; {hint}there are: {', '.join(NAMES)}")


class Measured(list[Any]):
    """Items of a call with what each costs, and how long it is, as far as that is measured."""

    costs: Sequence[float]
    lengths: Sequence[int]


def _cost(returned: Any) -> float:
    with contextlib.suppress(TypeError):
        if 0 <= (found := number("cost", returned)) < math.inf:
            return found
    raise ValueError(f"cost must return a number of at least 0 for an item, not {returned!r}")


# --- numbers, of Python's own kinds or of numpy's and others'; what is returned is Python's -------------------------

_TRUTH = ("bool", "bool_")


def number(name: str, value: Any, what: str = "a number") -> float:
    """A number. Raises TypeError that says what is expected for what is none."""
    with contextlib.suppress(TypeError):
        if type(value).__name__ not in _TRUTH and hasattr(type(value), "__float__"):
            return value if type(value) in (int, float) else float(value)
    raise TypeError(f"{name} must be {what}, not {value!r}")


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number from `least` to `most`. Raises TypeError and ValueError."""
    try:
        found = None if type(value).__name__ in _TRUTH else operator.index(value)
    except TypeError:
        found = None
    if found is None:
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if found < least or (most is not None and found > most):
        allowed = f"from {least} to {most}" if most is not None else f"at least {least}"
        raise ValueError(f"{name} must be {allowed}, not {found}")
    return found


def seconds(name: str, value: Any, *, allows_zero: bool = False) -> float | None:
    """A finite time, or None. Raises TypeError and ValueError."""
    if value is None:
        return None
    found = number(name, value, "a number of seconds or None")
    if not (found >= 0 if allows_zero else found > 0) or math.isinf(found):
        least = "0 or more" if allows_zero else "more than 0"
        raise ValueError(f"{name} must be {least} seconds, or None for none, not {value!r}")
    return found
