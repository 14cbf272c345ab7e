"""How calls of a batched function fail, beyond what the scheduler knows, and whose exception each caller is given.

Every caller gets an exception object of its own: a traceback grows on the object each time it is raised.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

from carpool import errors


class Closed(errors.CarpoolError):
    """The function was closed, its event loop or the interpreter ended, or the process forked: nothing is computed."""

    reason = "draining"  # as the sidecar counts it; "closed" is a connection there
    message = "the batched function is closed"


class WrongResult(errors.UpstreamError):
    """The function returned something other than a list with one result for each item."""

    reason = "wrong_result"
    message = "a batched function returns a list with one result for each item"


class WrongLength(WrongResult):
    """The function returned more or fewer results than it was given items."""

    reason = "wrong_length"


class BatchFailed(errors.UpstreamError):
    """The function raised what cannot be handed to each caller as a copy; `__cause__` is what it raised."""

    reason = "raised"
    message = "the batched function failed"


class Raised(errors.UpstreamError):
    """The function raised `original`. Callers never see this object, see `own`."""

    reason = "raised"
    message = "the batched function raised an exception"

    def __init__(self, original: BaseException) -> None:
        super().__init__(describe(original))
        self.original = original


class RaisedForOne(Raised):
    """As `Raised`, where one item of the batch may be at fault."""

    remedy = errors.Remedy.HALVES_WHILE_WELL
    is_doubtful = True


class RaisedForSize(RaisedForOne):
    """As `RaisedForOne`, where the batch may have needed more memory than there is."""

    remedy = errors.Remedy.SMALLER
    cuts_requests = True


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory was not to be had: `MemoryError`, torch's and cupy's `OutOfMemoryError`."""
    return isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)


def describe(error: BaseException) -> str:
    """An exception in one line."""
    words = str(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def own(error: BaseException) -> Exception:
    """An exception for one caller alone, whose `__cause__` is what the function raised.

    It has the type of what was raised if that can be copied and handed to a caller, else it is `BatchFailed`.
    """
    if isinstance(error, Raised):
        return _own_copy(error.original)
    if isinstance(error, errors.CarpoolError):
        mine = copy.copy(error)
        mine.__cause__ = error.__cause__
        return mine
    return _own_copy(error)


def _own_copy(original: BaseException) -> Exception:
    # StopIteration means something else to whoever awaits, and what is no Exception would end an event loop.
    if isinstance(original, Exception) and not isinstance(original, StopIteration | StopAsyncIteration):
        mine = _alike(copy.copy, original) or _alike(_copied_without_init, original)
        if mine is not None:
            if hasattr(original, "__notes__"):
                mine.__notes__ = list(original.__notes__)
            mine.__cause__ = original
            return mine
    failed = BatchFailed(f"the batched function raised {describe(original)}")
    failed.__cause__ = original
    return failed


def _alike(copy_of: Callable[[Exception], Exception], original: Exception) -> Exception | None:
    """A copy, if it says the same; many exceptions cannot be copied, or say something else then."""
    with contextlib.suppress(Exception):
        mine = copy_of(original)
        if type(mine) is type(original) and mine is not original and str(mine) == str(original):
            return mine
    return None


def _copied_without_init(original: Exception) -> Exception:
    """For those whose `__init__` takes other arguments than those they keep."""
    mine = type(original).__new__(type(original), *original.args)
    mine.args = original.args
    mine.__dict__.update(original.__dict__)
    return mine
