"""Dynamic batching: many callers with one item each, one call of a function with all of them.

`batched` is the way in. Its parts are loaded when they are first used: the programs built on this package need the
scheduler alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from carpool import compiled

if TYPE_CHECKING:
    from carpool.errors import CarpoolError, DeadlineExceeded, NotIsolated, Overloaded, PayloadTooLarge, WouldBeLate
    from carpool.functions.arrays import arrays
    from carpool.functions.cache import LRU
    from carpool.functions.current import batch
    from carpool.functions.decorator import batched
    from carpool.functions.errors import BatchFailed, Closed, WrongLength, WrongResult
    from carpool.functions.futures import Future
    from carpool.functions.loader import loader
    from carpool.functions.merging import Merge
    from carpool.functions.running import inline
    from carpool.functions.stats import Stats
    from carpool.functions.streams import END, End, Stream
    from carpool.functions.views import Batched, BatchedStream
    from carpool.workers.errors import RemoteError, WorkerDied
    from carpool.workers.pool import processes

__version__ = "0.1.0"

compiled.choose(__path__)

_HOMES = {
    "carpool.errors": (
        "CarpoolError", "DeadlineExceeded", "NotIsolated", "Overloaded", "PayloadTooLarge", "WouldBeLate",
    ),
    "carpool.functions.arrays": ("arrays",),
    "carpool.functions.cache": ("LRU",),
    "carpool.functions.current": ("batch",),
    "carpool.functions.decorator": ("batched",),
    "carpool.functions.views": ("Batched", "BatchedStream"),
    "carpool.functions.errors": ("BatchFailed", "Closed", "WrongLength", "WrongResult"),
    "carpool.functions.futures": ("Future",),
    "carpool.functions.loader": ("loader",),
    "carpool.functions.merging": ("Merge",),
    "carpool.functions.running": ("inline",),
    "carpool.functions.stats": ("Stats",),
    "carpool.functions.streams": ("END", "End", "Stream"),
    "carpool.workers.errors": ("RemoteError", "WorkerDied"),
    "carpool.workers.pool": ("processes",),
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # a test holds that these are all of them
    "END", "LRU", "BatchFailed", "Batched", "BatchedStream", "CarpoolError", "Closed", "DeadlineExceeded", "End",
    "Future", "Merge", "NotIsolated", "Overloaded", "PayloadTooLarge", "RemoteError", "Stats", "Stream", "WorkerDied",
    "WouldBeLate", "WrongLength", "WrongResult", "arrays", "batch", "batched", "inline", "loader",
    "processes",
]  # fmt: skip


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'carpool' has no attribute {name!r}")
    found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
