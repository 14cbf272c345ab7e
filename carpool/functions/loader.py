"""`carpool.loader`: what one request has loaded, in the shape that GraphQL servers call a DataLoader.

Other DataLoaders batch within a request only, as each request has one of its own. Here the batches are the function's,
which all requests share, and a loader is a request's view of them: it remembers what that has asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, Self, TypeVar

from carpool.functions import collected, futures, views

K = TypeVar("K")
V = TypeVar("V")


class Loader(Generic[K, V]):
    """Loads values by keys through `function`, a batched one, each key once: who asks again gets the same future.

    Make one for each request, since what it has loaded stays, failures too, until `clear`. A call that all who waited
    for it have left is not kept. `key` makes of a key what tells it from others, for keys without a hash.

    Raises TypeError for what is not batched, or yields.
    """

    # Mutable state: the futures, by key.
    def __init__(self, function: views.Batched[..., K, V], *, key: Callable[[K], Hashable] | None = None) -> None:
        if not isinstance(function, views.Batched):
            raise TypeError(f"carpool.loader takes a function that carpool.batched made, not {function!r}")
        self._function = function
        self._key = key
        self._loaded: dict[Hashable, futures.Future[V]] = {}

    def load(self, key: K, /) -> futures.Future[V]:
        """The value of a key, once the batch that it is in has its answer. Raises as a call of the function does."""
        place = self._place(key)
        future = self._loaded.get(place)
        if future is None or future.cancelled():
            future = self._loaded[place] = self._function(key)
        return future

    def load_many(self, keys: Iterable[K], /) -> futures.Future[list[V]]:
        """The values of many keys, in their order. It fails with the first that fails.

        With a function that `returns_exceptions` (see `using`) exceptions stand in their places.
        """
        found = [self.load(key) for key in keys]
        return collected.all_of(found, returns_exceptions=self._function.returns_exceptions, are_cancelled=False)

    def prime(self, key: K, value: V | Exception, /, *, force: bool = False) -> Self:
        """Have a value, or the exception that loading raises, for a key that was not asked for, or with `force` any."""
        place = self._place(key)
        if force or place not in self._loaded:
            future: futures.Future[V] = futures.Future()
            future.set_exception(value) if isinstance(value, Exception) else future.set_result(value)
            self._loaded[place] = future
        return self

    def prime_many(self, values: Iterable[tuple[K, V | Exception]], /, *, force: bool = False) -> Self:
        """As `prime`, for pairs of a key and its value; a dict's are its `items()`."""
        for key, value in values:
            self.prime(key, value, force=force)
        return self

    def clear(self, *keys: K) -> Self:
        """Forget these keys: whoever asks again has them loaded anew."""
        for key in keys:
            self._loaded.pop(self._place(key), None)
        return self

    def clear_many(self, keys: Iterable[K], /) -> Self:
        """As `clear`, for a list of keys."""
        return self.clear(*keys)

    def clear_all(self) -> Self:
        """Forget everything."""
        self._loaded.clear()
        return self

    def _place(self, key: K) -> Hashable:
        place: Any = key if self._key is None else self._key(key)
        try:
            hash(place)
        except TypeError:
            raise TypeError(
                f"a key of a loader must be hashable, {type(place).__name__} is not; "
                "say with carpool.loader(function, key=…) what tells it from others"
            ) from None
        return place  # type: ignore[no-any-return] # it has a hash


loader = Loader
