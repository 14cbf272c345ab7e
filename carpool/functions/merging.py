"""How items of any number of rows become one batch, and the function's output a share for each: `merge`.

A type of one's own is merged by an object with three methods, see `Merge`; for arrays there is `carpool.arrays`. What
the batcher asks of such an object goes through the functions below, which know what it may leave out and check what
it gives.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from typing import Any, Protocol, TypeVar

from carpool.functions import errors

Item = TypeVar("Item", contravariant=True)
Batch = TypeVar("Batch", covariant=True)
Output = TypeVar("Output", contravariant=True)
Result = TypeVar("Result", covariant=True)


class Merge(Protocol[Item, Batch, Output, Result]):
    """Joins items into the one argument of a function, and splits what the function returns.

    An item with more rows than a batch may hold is cut by `split` as well, and the results of its parts are put
    together by `join`, so both must take these too.

    It may offer more, and is asked for it if it does:

    - `key(item) -> Hashable`: only items with equal keys are ever joined. Without it, all must go together.
    - `keep(item) -> Item`: what waits in the item's place, so that its caller may change it meanwhile. Without it, a
      change reaches the function, or makes its batch fail.
    - `split_for(output, counts, items) -> Sequence[Result]`: in place of `split` where the items of the batch are
      needed to split its output, say because they were padded.
    - `rejoin(results) -> Result`: in place of `join` where results are put together in another way than items.

    `rows`, `key` and `keep` are called in the caller's thread, the others where the function runs, and each by several
    threads at once. None of them changes an item.
    """

    def rows(self, item: Item, /) -> int:
        """How many rows an item has, at least 1. What this raises goes to the item's caller, before anything is queued.

        It raises TypeError or ValueError for what cannot be joined, and says why.
        """
        ...

    def join(self, items: Sequence[Item], /) -> Batch:
        """One batch of the items' rows, in their order. There is at least one item, and all have equal keys."""
        ...

    def split(self, output: Output, counts: Sequence[int], /) -> Sequence[Result]:
        """A share of an output for each of `counts`, which are numbers of rows: the first share has the first rows.

        It raises `carpool.WrongLength` if the output does not have as many rows, and `carpool.WrongResult` if it has
        none.
        """
        ...


def rows(merge: Merge[Any, Any, Any, Any], item: Any) -> int:
    """How many rows an item has. Raises what `merge` raises, and TypeError or ValueError if it gives no such number."""
    counted = merge.rows(item)
    try:
        count = operator.index(counted)
    except TypeError:
        raise TypeError(f"rows of {type(merge).__name__} must give a whole number, not {counted!r}") from None
    if count < 1:
        raise ValueError(f"the item has {count} rows; an item must have at least 1")
    return count


def taken(merge: Merge[Any, Any, Any, Any], item: Any) -> tuple[int, Hashable, Any]:
    """How many rows an item has, its key (None if `merge` has no `key`), and what waits in its place.

    Raises as `rows` does, and TypeError if the key has no hash.
    """
    count = rows(merge, item)
    key_of, keep = getattr(merge, "key", None), getattr(merge, "keep", None)
    key = None if key_of is None else key_of(item)
    try:
        hash(key)
    except TypeError:
        raise TypeError(f"key of {type(merge).__name__} must give something hashable, not {key!r}") from None
    return count, key, item if keep is None else keep(item)


def split(merge: Merge[Any, Any, Any, Any], output: Any, counts: Sequence[int], items: Sequence[Any]) -> Sequence[Any]:
    """A share of a function's output for each item of its batch; `counts` are their rows.

    Raises what `merge` raises, of which `WrongResult` and `WrongLength` are the function's fault, and `WrongLength` if
    the shares are more or fewer than the items.
    """
    split_for = getattr(merge, "split_for", None)
    shares = merge.split(output, counts) if split_for is None else split_for(output, counts, items)
    if len(shares) != len(counts):
        raise errors.WrongLength(
            f"{type(merge).__name__} made {len(shares)} shares of an output for {len(counts)} items"
        )
    return shares


def rejoin(merge: Merge[Any, Any, Any, Any], results: Sequence[Any]) -> Any:
    """The result of an item that was larger than a batch, from those of its parts in their order."""
    put_together = getattr(merge, "rejoin", merge.join)
    return put_together(results)
