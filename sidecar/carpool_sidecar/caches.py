"""What is remembered of messages, so that the next one like it is understood at once: bounded in bytes, and counted.

Callers choose what they send, so whatever grows with it has to end somewhere. All that can is a `Cache`, whose name is
a label in the metrics. `tests/test_caches.py` finds what is none.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, Final, Literal, TypeVar, get_args

Name = Literal[
    "answer_heads", "forwarding", "grpc_answer_heads", "grpc_heads", "header_plans", "http2_blocks", "http2_heads",
    "http2_names", "http2_texts", "numbered_rows", "passed_heads", "read_heads", "request_heads",
    "unknown_models", "v2_answers", "v2_grpc_heads", "v2_grpc_messages", "v2_grpc_outlines", "v2_requests",
]  # fmt: skip
"""What is remembered."""

ENTRY: Final = 256
"""Bytes that count for each entry beside those of its text."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_all: Final[weakref.WeakValueDictionary[int, Cache[Any, Any]]] = weakref.WeakValueDictionary()


class Cache(dict[K, V]):
    """Values by keys. One that is full forgets everything: what is in use is soon there again.

    `make` makes the value of a key that is asked for by `cache[key]` and is not there; what it raises is raised. To
    look up is as quick as in any dict; only `put`, `drop` and `clear` may change it.
    """

    # State: beside the dict's own, what each entry counts for, and the sum.
    def __init__(
        self, name: Name, most_bytes: int, largest: int | None = None, make: Callable[[K], V] | None = None
    ) -> None:
        """No more than so many bytes in all, and for one value; without `largest` an eighth of all."""
        super().__init__()
        self.name = name
        self.held = 0
        """Bytes that count now."""
        self._most_bytes = most_bytes
        self._largest = most_bytes // 8 if largest is None else largest
        self._make = make
        self._costs: dict[K, int] = {}
        _all[id(self)] = self

    def put(self, key: K, value: V, size: int) -> None:
        """Remember a value that was made of `size` bytes, unless it is too large."""
        if size > self._largest:
            return
        cost = size + ENTRY
        more = cost - self._costs.get(key, 0)
        if self.held + more > self._most_bytes:
            self.clear()
            more = cost
        self[key] = value
        self._costs[key] = cost
        self.held += more

    def drop(self, key: K) -> None:
        """Forget one, if it is there."""
        if self.pop(key, None) is not None:
            self.held -= self._costs.pop(key)

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._costs.clear()
        self.held = 0

    def __missing__(self, key: K) -> V:
        if self._make is None:
            raise KeyError(key)
        made = self._make(key)
        self.put(key, made, text_size(key) + text_size(made))
        return made


def text_size(value: object) -> int:
    """Bytes of the texts in a value, and in the tuples that it is made of."""
    if isinstance(value, str | bytes):
        return len(value)
    size = 0
    if isinstance(value, tuple):
        for each in value:  # without a call for each text, as there is a new head with each batch
            size += len(each) if type(each) is str or type(each) is bytes else text_size(each)
    return size


def held() -> dict[str, int]:
    """Bytes that all caches of each name hold now."""
    found = dict.fromkeys(get_args(Name), 0)
    for cache in list(_all.values()):
        found[cache.name] += cache.held
    return found
