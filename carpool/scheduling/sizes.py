"""Allowed batch sizes: how many of the waiting instances go now when the predictor computes with a few sizes only.

Compiled models and captured graphs exist for some batch sizes; a batch of another size is padded up to the next one,
and the padding costs as much as real work. The rule is TensorFlow Serving's MINIMIZE_TPU_COST_PER_REQUEST: pad up, or
send a smaller batch that needs no padding and leave the rest, whichever costs less per instance.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence


def parse(text: str) -> tuple[int, ...]:
    """Read sizes like `1,2,4,8`; empty means any size.

    Raises `ValueError` that says what is allowed.
    """
    items = [item.strip() for item in text.split(",")] if text.strip() else []
    found = tuple(int(item) for item in items if item.isascii() and item.isdigit() and len(item) <= 9)
    if len(found) != len(items) or any(small >= large for small, large in zip((0, *found), found, strict=False)):
        raise ValueError(f"{text!r} is not a list of ascending whole numbers from 1, like 1,2,4,8")
    return found


def padded(n: int, allowed: Sequence[int]) -> int:
    """The smallest allowed size that holds `n` instances; `n` itself if there is none."""
    at = bisect_left(allowed, n)
    return allowed[at] if at < len(allowed) else n


def usable(n: int, allowed: Sequence[int]) -> int:
    """The largest allowed size that `n` waiting instances fill; `n` itself if there is none."""
    at = bisect_right(allowed, n)
    return allowed[at - 1] if at else n


def best_size(n: int, allowed: Sequence[int], cost: Callable[[int], float] | None = None) -> int:
    """How many of `n` waiting instances to send now: all of them, or as many as fill an allowed size.

    The size that costs less per instance wins, all of them in a tie. `cost(b)` is the price of a batch padded to the
    allowed size `b`, in any unit; without one it is `b`. More than the largest allowed size is never sent.
    """
    down = usable(n, allowed)
    if down == n or n > allowed[-1]:
        return down
    up = padded(n, allowed)
    price_up, price_down = (up, down) if cost is None else (cost(up), cost(down))
    return n if price_up * down <= price_down * n else down
