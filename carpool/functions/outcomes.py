"""What becomes of an outcome: a result or an exception for each of those who called, in the words of functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from carpool import errors
from carpool.functions import calls, futures
from carpool.functions import errors as failures
from carpool.scheduling import messages


def hand_over(answers: Sequence[messages.Answer]) -> list[float]:
    """Settle the futures of calls that have their answers; returns when those who wait for them called."""
    arrived: list[float] = []
    for answer in answers:
        call: calls.Call = answer.request  # type: ignore[assignment] # what a driver is given are calls
        arrived += [call.arrived] * call.callers
        if call.futures is None:
            try:
                outcome = call.tag.answered([piece.predictions for piece in answer.pieces])
                futures.settle([] if outcome is None else [outcome])
            except BaseException as error:  # of a merge, when it joins parts
                futures.settle(of_refusal(call, error))
            continue
        results = answer.pieces[0][2]
        if any(issubclass(kind, BaseException) for kind in set(map(type, results))):
            futures.settle([_own(*each) for each in zip(call.futures, results, strict=True)])
        else:
            futures.settle_all(call.futures, results, call.loop if type(call) is calls.Turn else None)
    return arrived


def _own(future: futures.Future[Any], result: Any) -> futures.Settling:
    """A result, or an exception of its own."""
    return (future, None, failures.own(result)) if failures.is_exception(result) else (future, result, None)


def of_refusal(call: calls.Call, error: BaseException) -> list[futures.Settling]:
    """An exception of its own for each who called."""
    if call.futures is not None:
        return [(future, None, failures.own(error)) for future in call.futures]
    return [each for each in [call.tag.refused(failures.own(error))] if each is not None]


def in_words(error: errors.CarpoolError, name: str, waiting: int, most: int | None) -> errors.CarpoolError:
    """The scheduler's errors in the words of a function, of which so many items wait and this many may."""
    if type(error) is errors.Draining:
        return failures.Closed(f"{name} is closed")
    if type(error) is errors.Overloaded:
        return errors.Overloaded(
            f"{waiting} items wait for {name} already; max_queue is {most}", error.retry_after or 1
        )
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
