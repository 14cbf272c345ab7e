"""What a call of a batched function may look like: its arguments beside the item, and the batch key that they make.

Arguments that `each` names are part of the item: they travel with it, and the function is given a list of each.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

from carpool.functions import calls

# So many combinations of arguments are remembered as checked; those with other values would keep these.
_MOST_KNOWN = 1024
_PLAIN = (str, bytes, int, float, bool, type(None))
_LARGEST_KNOWN = 512  # bytes of each


Shared = tuple[calls.Key, calls.Arguments]
"""The arguments that calls of one batch share: the key that they make, and themselves with defaults filled in."""


class Parameters:
    """Those of one function. `each` are names of arguments of which every item has its own.

    Raises TypeError that names what in `each` cannot be one, and why.
    """

    # Mutable state: _known, what calls looked like.
    def __init__(self, function: Callable[..., Any], name: str, each: Sequence[str] = ()) -> None:
        self.each = tuple(each)
        self._name = name
        self._whole: inspect.Signature | None = None
        with contextlib.suppress(TypeError, ValueError):  # some callables written in C have none
            self._whole = inspect.signature(function)
        self._shared = self._without_each() if each else self._whole
        self._before: tuple[None, ...] = (None,)  # in place of what the function is given beside these
        self._known: dict[Hashable, Shared] = {}

    def bound(self) -> Parameters:
        """The same of a function that is called on an instance or a class, which is its first argument."""
        made = copy.copy(self)
        made._before, made._known = (None, None), {}
        return made

    @property
    def name_an_owner(self) -> bool:
        """Whether these are a method's, by their names.

        Python 3.13's classmethod does not tell what it holds that it stands in a class.
        """
        every = [] if self._whole is None else list(self._whole.parameters.values())
        positional = [each for each in every if each.kind <= each.POSITIONAL_OR_KEYWORD]
        return len(positional) > 1 and positional[0].name in ("self", "cls")

    def _without_each(self) -> inspect.Signature:
        if self._whole is None:
            raise TypeError(f"each needs a function whose parameters are known; {self._name} does not tell them")
        every = list(self._whole.parameters.values())
        takers = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        may_be = [one.name for one in every[1 + self.name_an_owner :] if one.kind in takers]
        for name in self.each:
            if name not in may_be:
                raise TypeError(
                    f"each names {name}, which is no parameter of {self._name} beside its items that goes by name; "
                    f"those are: {', '.join(may_be) or 'none'}"
                )
        if any(one.kind is one.VAR_POSITIONAL for one in every):
            raise TypeError(f"each does not go with the *arguments of {self._name}: all others are handed over by name")
        return self._whole.replace(parameters=[one for one in every if one.name not in self.each])

    # --- calls -------------------------------------------------------------------------------------------------

    def shared(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Shared:
        """The arguments of a call beside its items.

        Raises TypeError for arguments that the function does not take, and for those without a hash.
        """
        given = key_of(args, kwargs)
        known = self._known.get(given)
        if known is None:
            known = self._checked(args, kwargs)
            if len(self._known) < _MOST_KNOWN and all(
                type(value) in _PLAIN and sys.getsizeof(value) <= _LARGEST_KNOWN for value in (*args, *kwargs.values())
            ):
                self._known[given] = known
        return known

    def _checked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Shared:
        if self._shared is not None:
            bound = self._bound(self._shared, args, kwargs)
            every = bound.args[len(self._before) :], bound.kwargs
            with contextlib.suppress(TypeError):  # a default without a hash is the same for all calls that leave it out
                return key_of(*every), every
        return key_of(args, kwargs), (args, dict(kwargs))

    def _bound(
        self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> inspect.BoundArguments:
        try:
            bound = signature.bind(*self._before, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}(): {error}") from None
        bound.apply_defaults()
        return bound

    # --- what each item has of its own ---------------------------------------------------------------------------

    def of_item(self, item: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Shared]:
        """The item, with its own of each, and the arguments that are not. Raises TypeError as `shared` does."""
        if self.each:
            own, kwargs = self._own(args, kwargs)
            item, args = (item, *own), ()
        return item, self.shared(args, kwargs)

    def of_items(
        self, items: Iterable[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], Shared]:
        """As `of_item` for many items: what was given of each is a list with one for every item.

        Raises ValueError that says what is given for how many items, and TypeError for a text in place of a list.
        """
        every = list(items)
        if self.each:
            own, kwargs = self._own(args, kwargs)
            columns = [self._column(*given, len(every)) for given in zip(self.each, own, strict=True)]
            every, args = list(zip(every, *columns, strict=True)), ()
        return every, self.shared(args, kwargs)

    def _column(self, name: str, values: Any, count: int) -> Sequence[Any]:
        if values is cast(inspect.Signature, self._whole).parameters[name].default:
            return [values] * count
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise TypeError(f"map takes a list of {name}, one for each item, not {values!r}")
        column = list(values)
        if len(column) != count:
            raise ValueError(f"map was given {len(column)} of {name} for {count} items")
        return column

    def _own(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Mapping[str, Any]]:
        """What is given of each, and the arguments that are not."""
        if not args and kwargs.keys() == set(self.each):
            return [kwargs[name] for name in self.each], {}
        signature = cast(inspect.Signature, self._whole)  # that there is one was checked
        bound = self._bound(signature, args, kwargs)
        own = [bound.arguments.pop(name) for name in self.each]
        places = list(signature.parameters)[: len(self._before)]
        others: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                others |= value
            elif name not in places:
                others[name] = value
        return own, others


def spread(each: Sequence[str], items: Sequence[tuple[Any, ...]], kwargs: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """The items alone, and arguments that have a list of each."""
    alone, *columns = map(list, zip(*items, strict=True))
    return alone, {**kwargs, **dict(zip(each, columns, strict=True))}


# --- keys -------------------------------------------------------------------------------------------------------


def key_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> calls.Key:
    """The batch key of a call's other arguments. Raises TypeError that names one that has no hash.

    Equal values of different types, such as 1 and True, make different keys.
    """
    if not args and not kwargs:
        return ()
    for name, value in [*((f"number {place}", value) for place, value in enumerate(args, 2)), *kwargs.items()]:
        try:
            hash(value)
            bool(value == _OTHER)  # in the caller's thread: later it would be everybody's trouble
        except Exception:
            raise TypeError(
                f"argument {name} of a batched function must be hashable and comparable, as only calls that agree in "
                f"it share a batch; {type(value).__name__} is not"
            ) from None
    return (
        tuple([typed(value) for value in args]),
        tuple([(name, *typed(kwargs[name])) for name in sorted(kwargs)]),
    )


def typed(value: Any) -> tuple[Any, ...]:
    """A value so that others that equal it and are not the same differ."""
    if type(value) is float:
        return float, value, math.copysign(1.0, value)  # 0.0 equals -0.0
    return type(value), value


_OTHER = object()
