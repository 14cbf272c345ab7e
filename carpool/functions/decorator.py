"""`carpool.batched`, and its types: what it makes of a function, of a method, and of options alone.

At run time there are two classes, `Batched` and `BatchedStream`, and a method is one of them before it is bound, too.
The others here are for type checkers.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable, Awaitable, Callable, Hashable, Iterable, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from carpool.functions import function as functions
from carpool.functions import merging, options
from carpool.functions.arrays import arrays
from carpool.functions.futures import Future
from carpool.functions.streams import End, Stream
from carpool.functions.views import Batched, BatchedStream, View
from carpool.workers import pool

P = ParamSpec("P")
P2 = ParamSpec("P2")
T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
X = TypeVar("X")
Row = TypeVar("Row", covariant=True)
I = TypeVar("I")  # noqa: E741 # item, batch and output of a merge
B = TypeVar("B")
O = TypeVar("O")  # noqa: E741


class Choices(options.Changes, total=False):
    """The options as keyword arguments, but for `each` and `merge`, which decide about types."""

    cost: Callable[[Any], float] | None
    length: Callable[[Any], int] | None
    dedupe: options.Dedupe
    cache: options.Cache | None
    key: Callable[..., Hashable] | None
    pad_with: Any
    name: str | None


class Single(Choices, total=False):
    """The same where no items are merged."""

    merge: None


class Rows(Protocol[Row]):
    """A list of results, or an array of them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row: ...


if TYPE_CHECKING:
    # What a function returns for its items, or yields: an exception in a list fails its item.
    List = Rows[R | Exception] | Awaitable[Rows[R | Exception]]
    Lists = Iterable[Rows[R | Exception | End]] | AsyncIterable[Rows[R | Exception | End]]
    # What is decorated.
    Returns = Callable[Concatenate[list[T], P], List[R]]
    Yields = Callable[Concatenate[list[T], P], Lists[R]]
    MethodReturns = Callable[Concatenate[S, list[T], P], List[R]]
    MethodYields = Callable[Concatenate[S, list[T], P], Lists[R]]
    OfClass = classmethod[S, Concatenate[list[T], P], List[R]]
    OfNothing = staticmethod[Concatenate[list[T], P], List[R]]
    Joins = Callable[Concatenate[T, P], R]  # of a merge
    MethodJoins = Callable[Concatenate[S, T, P], R]


class BatchedMethod(Generic[S, P, T, B, R]):
    """A batched function in a class: on an instance, or for a classmethod on the class, it is a `B`.

    That is `Batched`, or `BatchedStream` for one that yields lists; a call returns an `R`.
    """

    @overload
    def __get__(self: BatchedMethod[type[X], P, T, B, R], instance: Any, owner: type[X]) -> B: ...
    @overload
    def __get__(self, instance: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, instance: S, owner: Any) -> B: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        raise NotImplementedError

    def __call__(self, instance: S, item: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        raise NotImplementedError


if TYPE_CHECKING:
    MethodOfLists = BatchedMethod[S, P, T, Batched[P, T, R], Future[R]]
    MethodOfStreams = BatchedMethod[S, P, T, BatchedStream[P, T, R], Stream[R]]


class Decorator(Protocol):
    """The type of `carpool.batched`, with a function, with options alone, or with both."""

    @overload
    def __call__(self, *, each: Sequence[str], **options: Unpack[Single]) -> EachDecorator: ...
    @overload
    def __call__(self, function: Returns[T, P, R], /, **options: Unpack[Single]) -> Batched[P, T, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Yields[T, P, R], /, **options: Unpack[Single]) -> BatchedStream[P, T, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(
        self, function: MethodReturns[S, T, P, R], /, **options: Unpack[Single]
    ) -> MethodOfLists[S, P, T, R]: ...
    @overload
    def __call__(
        self, function: MethodYields[S, T, P, R], /, **options: Unpack[Single]
    ) -> MethodOfStreams[S, P, T, R]: ...
    @overload
    def __call__(self, function: OfClass[S, T, P, R], /, **options: Unpack[Single]) -> Batched[P, T, R]: ...
    @overload
    def __call__(self, function: OfNothing[T, P, R], /, **options: Unpack[Single]) -> Batched[P, T, R]: ...
    @overload
    def __call__(self, **options: Unpack[Single]) -> ListDecorator: ...
    @overload
    def __call__(self, *, merge: arrays, **options: Unpack[Choices]) -> ArraysDecorator: ...
    @overload
    def __call__(
        self, *, merge: merging.Merge[I, B, O, R], **options: Unpack[Choices]
    ) -> MergeDecorator[I, B, O, R]: ...
    @overload
    def __call__(
        self, function: Joins[T, P, Awaitable[R]], /, *, merge: arrays, **options: Unpack[Choices]
    ) -> BatchedArrays[P, T, R]: ...
    @overload
    def __call__(
        self, function: Joins[T, P, R], /, *, merge: arrays, **options: Unpack[Choices]
    ) -> BatchedArrays[P, T, R]: ...
    @overload
    def __call__(
        self,
        function: Joins[B, P, O | Awaitable[O]],
        /,
        *,
        merge: merging.Merge[I, B, O, R],
        **options: Unpack[Choices],
    ) -> Batched[P, I, R]: ...


class ListDecorator(Protocol):
    """`batched` with options, before it has its function."""

    @overload
    def __call__(self, function: Returns[T, P, R], /) -> Batched[P, T, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Yields[T, P, R], /) -> BatchedStream[P, T, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: MethodReturns[S, T, P, R], /) -> MethodOfLists[S, P, T, R]: ...
    @overload
    def __call__(self, function: MethodYields[S, T, P, R], /) -> MethodOfStreams[S, P, T, R]: ...
    @overload
    def __call__(self, function: OfClass[S, T, P, R], /) -> Batched[P, T, R]: ...
    @overload
    def __call__(self, function: OfNothing[T, P, R], /) -> Batched[P, T, R]: ...


class EachDecorator(Protocol):
    """`batched` with `each`, before it has its function: which arguments a call takes, no checker can tell."""

    @overload
    def __call__(self, function: Returns[T, ..., R], /) -> Batched[..., T, R]: ...
    @overload
    def __call__(self, function: Yields[T, ..., R], /) -> BatchedStream[..., T, R]: ...
    @overload
    def __call__(self, function: MethodReturns[S, T, ..., R], /) -> MethodOfLists[S, ..., T, R]: ...
    @overload
    def __call__(self, function: MethodYields[S, T, ..., R], /) -> MethodOfStreams[S, ..., T, R]: ...


class BoundArrays(View, Generic[P, R]):
    """A method that merges arrays, on an instance: `Batched`, with the function's first argument as item."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        raise NotImplementedError

    def map(
        self: BoundArrays[Concatenate[B, P2], R], items: Iterable[B], /, *args: P2.args, **kwargs: P2.kwargs
    ) -> Future[list[R]]:
        raise NotImplementedError

    def warm_up(self, *args: P.args, **kwargs: P.kwargs) -> Future[list[Any]]:
        raise NotImplementedError


class BatchedArrays(Batched[P, T, R]):
    """A function that merges arrays, or such a method."""

    @overload  # type: ignore[override] # a method of arrays is another type on an instance
    def __get__(self, instance: None, owner: Any) -> Self: ...
    @overload
    def __get__(self: BatchedArrays[P, S, R], instance: S, owner: Any) -> BoundArrays[P, R]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        raise NotImplementedError


class ArraysDecorator(Protocol):
    """`batched` with `merge=carpool.arrays(…)`, before it has its function."""

    @overload
    def __call__(self, function: Joins[T, P, Awaitable[R]], /) -> BatchedArrays[P, T, R]: ...
    @overload
    def __call__(self, function: Joins[T, P, R], /) -> BatchedArrays[P, T, R]: ...
    @overload
    def __call__(self, function: Never, /) -> Any: ...  # type: ignore[overload-cannot-match] # unless it has no types


class MergeDecorator(Generic[I, B, O, R]):
    """`batched` with a `merge` of one's own, before it has its function."""

    @overload
    def __call__(self, function: Joins[B, P, O | Awaitable[O]], /) -> Batched[P, I, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: MethodJoins[S, B, P, O | Awaitable[O]], /) -> MethodOfLists[S, P, I, R]: ...
    def __call__(self, function: Any, /) -> Any:
        raise NotImplementedError


# --- at run time ------------------------------------------------------------------------------------------------


def _batch(function: Any = None, /, **chosen: Any) -> Any:
    """Let many callers call `function`, which takes a list and returns a list, with single items.

    For `@carpool.batched`, `@carpool.batched(max_batch_size=64, …)` and `carpool.batched(function, …)`; the options are
    those of `carpool.functions.options.Options`. A plain function runs in a thread of its own, a coroutine function on
    its callers' event loop; one that yields lists gives each caller a stream. Methods are batched for each instance.

    Raises TypeError or ValueError that names the option, the value and what is allowed.
    """
    options.check_names("carpool.batched", chosen)
    checked = options.Options(**chosen)
    return functools.partial(_decorate, checked) if function is None else _decorate(checked, function)


def _decorate(chosen: options.Options, function: Any) -> Any:
    binding = functions.Binding.FREE
    if isinstance(function, staticmethod):
        function, binding = function.__func__, functions.Binding.STATIC
    elif isinstance(function, classmethod):
        function, binding = function.__func__, functions.Binding.CLASS
    if isinstance(function, View):
        raise TypeError(f"{function!r} is batched already")
    if isinstance(function, pool.ModelInProcesses):
        raise TypeError("carpool.processes(…) does not say where the processes run yet: add .on(device, …)")
    if not callable(function):
        raise TypeError(f"carpool.batched decorates a function, not {function!r}")
    made = functions.Function(function, chosen, binding)
    return (BatchedStream if made.kind.is_stream else Batched)(made)


batched: Decorator = cast(Any, _batch)
