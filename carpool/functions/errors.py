"""How calls of a batched function fail, beyond what the scheduler knows, and whose exception each caller is given.

Every caller gets an exception object of its own: a traceback grows on the object each time it is raised.
"""

from __future__ import annotations

import contextlib
import copy
from typing import cast

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
    return any(kind is MemoryError or _name(kind) == "OutOfMemoryError" for kind in type(error).__mro__)


def in_words(error: errors.CarpoolError, name: str, most: int | None) -> errors.CarpoolError:
    """The scheduler's errors in the words of a function, for which so many items may wait."""
    if type(error) is errors.Draining:
        return Closed(f"{name} is closed")
    if type(error) is errors.Overloaded:
        return errors.Overloaded(f"{name} has no room for more items; max_queue is {most}", error.retry_after or 1)
    if type(error) is errors.PayloadTooLarge:
        return errors.PayloadTooLarge(f"more items than max_queue, which is {most}")
    if type(error) is errors.NotIsolated:
        return errors.NotIsolated(
            f"{name} failed for a batch with this item and others in it, and there are too many such batches to find "
            "out whose fault it was"
        )
    if type(error) is errors.CarpoolError:
        return errors.CarpoolError(f"{name} could not be called for a reason that is a bug; the log has it")
    if type(error) is errors.DeadlineExceeded:
        return errors.DeadlineExceeded(f"{name} gave no result within the timeout")
    return error


# From here on nothing is trusted: other people's exceptions may refuse to be written to, copied or turned into text.


def is_exception(value: object) -> bool:
    """Whether a value is an exception. Its `__class__` is not asked: that of a lazy object may do anything."""
    return issubclass(type(value), BaseException)


def describe(error: BaseException) -> str:
    """An exception in one line: its type, and what it says, or else its arguments, if it can tell."""
    name = _name(type(error))
    for words_of in (str, lambda error: repr(errors.raw(error, "args"))):
        with contextlib.suppress(BaseException):
            return f"{name}: {words}" if (words := words_of(error)) else name
    return name


def named(value: object) -> str:
    """A value by its type, as a sentence has it."""
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def _name(kind: type) -> str:
    return str(type.__dict__["__name__"].__get__(kind))


def own(error: BaseException) -> Exception:
    """An exception for one caller alone, whose `__cause__` is what the function raised. Never raises.

    It has the type of what was raised if that can be copied and handed to a caller, else it is `BatchFailed`.
    """
    kind = type(error)
    original = cast(Raised, error).original if issubclass(kind, Raised) else error
    mine = _copied(original)
    if mine is None:
        mine = BatchFailed(f"the batched function raised {describe(original)}")
    is_ours = issubclass(kind, errors.CarpoolError) and original is error
    errors.put(mine, "__cause__", errors.raw(error, "__cause__") if is_ours and type(mine) is kind else original)
    return mine


def _copied(original: BaseException) -> Exception | None:
    """A copy, if there is one that says the same; many exceptions cannot be copied, or say something else then."""
    kind = type(original)
    # StopIteration means something else to whoever awaits, and what is no Exception would end an event loop.
    if not issubclass(kind, Exception) or issubclass(kind, StopIteration | StopAsyncIteration):
        return None
    for copy_of in (copy.copy, _copied_without_init):
        with contextlib.suppress(BaseException):
            mine = cast(Exception, copy_of(original))
            if type(mine) is kind and mine is not original and _says(mine) == _says(original):
                attributes = errors.raw(mine, "__dict__")
                if type(notes := attributes.get("__notes__")) is list:
                    attributes["__notes__"] = [*notes]
                return mine
    return None


def _says(error: BaseException) -> str | None:
    with contextlib.suppress(BaseException):
        return str(error)
    return None


def _copied_without_init(original: BaseException) -> BaseException:
    """For those whose `__init__` takes other arguments than those they keep."""
    kind, args = type(original), errors.raw(original, "args")
    mine = kind.__new__(kind, *args)
    errors.put(mine, "args", args)
    errors.raw(mine, "__dict__").update(errors.raw(original, "__dict__"))
    return mine
