"""How requests fail, as the scheduler sees it: what may still be done for them, and whether it means overload.

Nothing here knows a protocol. Whoever carries out batches raises one of these, or a subclass that says its remedy; who
answers callers decides what each is in its own words.
"""

from __future__ import annotations

import enum
from typing import Any, TypeVar


class Remedy(enum.Enum):
    """What may still be done for the members of a batch that failed.

    Halves are halved again; a batch that was resent is not resent again. A member that was alone in its call is told
    the error, unless its batch may still be resent.
    """

    GIVE_UP = "give up"
    """Nothing: each member is told the error."""

    RESEND_ONCE = "resend once"
    """The batch may go again as it was, once: the failure says nothing about its members."""

    HALVES = "halves"
    """One member may be at fault: the halves go again until it is found. A budget bounds that."""

    HALVES_WHILE_WELL = "halves while well"
    """As `HALVES`, unless lone requests keep failing as well: then the predictor is at fault."""

    APART = "apart"
    """Members do not go together, and none is at fault: the odd one goes alone, or the halves go, at no cost."""

    ONE_BY_ONE = "one by one"
    """Nobody can be given a share of the whole, and none is at fault: each goes alone, and uncut, at no cost."""

    SMALLER = "smaller"
    """The batch was too large: all of it goes again at once in smaller ones, at no cost, and later ones are smaller.

    A request that was refused as its caller sent it is told the error, unless that `cuts_requests`.
    """


class CarpoolError(Exception):
    """Base of all failures that become an answer.

    `reason` is a short label from a closed set (metrics), `retry_after` whole seconds after which to try again or
    None, and `str(error)` what the caller is told. `is_overload` says that the predictor has too much to do or is
    restarting, `is_doubtful` that it may be at fault as well as one member. `member` is the place in the batch of the
    one that does not go with the others, if that is known. `most_rows` is how many rows the predictor says it takes in
    one call, if it refused more and says so; `cuts_requests` that a request is sent in pieces also if it was refused as
    its caller sent it.
    """

    reason = "internal"
    message = "the sidecar failed to handle this request"
    retry_after: int | None = None
    remedy = Remedy.GIVE_UP
    is_overload = False
    is_doubtful = False
    member: int | None = None
    most_rows: int | None = None
    cuts_requests = False

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.message)

    def for_several(self) -> CarpoolError:
        """What each member of a batch is told if this happened to all of it."""
        return self

    def for_equals(self) -> CarpoolError:
        """What a caller is told if this happened to an equal request of another."""
        return self.for_several()


def raw(error: BaseException, name: str) -> Any:
    """An attribute that Python itself gives every exception, whatever its class puts in that place."""
    return vars(BaseException)[name].__get__(error)


def put(error: BaseException, name: str, value: object) -> None:
    """Set such an attribute, also of an exception whose class refuses that, as a frozen dataclass does."""
    vars(BaseException)[name].__set__(error, value)


Raised = TypeVar("Raised", bound=Exception)


def bare(error: Raised) -> Raised:
    """The error without its traceback and causes, to be kept.

    A kept traceback keeps the frames it went through, with request bodies in them; and a frame that keeps the error
    as well makes a cycle that lives until the garbage collector comes round.
    """
    for name in ("__cause__", "__context__", "__traceback__"):
        put(error, name, None)
    return error


def reasons(kind: type[CarpoolError] = CarpoolError) -> list[str]:
    """The words by which errors of a kind are counted, each once."""
    found = {kind.reason}.union(*(reasons(each) for each in kind.__subclasses__()))
    return sorted(found)


# --- load and life cycle ----------------------------------------------------------------------------------------


class PayloadTooLarge(CarpoolError):
    """The request, or its number of instances, is over a limit."""

    reason = "too_large"
    message = "the request is larger than the limit"


class Overloaded(CarpoolError):
    """The queue is full. `retry_after` is the predicted time to drain it, in whole seconds; 1 if none was predicted.

    Its subclasses say what else there is too much of; each is counted under a reason of its own.
    """

    reason = "queue_full"
    message = "the queue is full; try again later"

    def __init__(self, message: str | None = None, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class MemoryFull(Overloaded):
    """The bytes that may be held are held already."""

    reason = "memory_full"
    message = "the memory for request bodies is full; try again later"


class WouldBeLate(Overloaded):
    """It cannot be answered within the service objective or its own deadline, as long as the predictor is this slow."""

    reason = "would_be_late"
    message = "it could not be answered within its deadline"


class TooManySuspects(Overloaded):
    """Requests like this one were rejected by the predictor lately, and as many as may wait to travel alone do."""

    reason = "too_many_suspects"
    message = (
        "requests like this one were rejected by the predictor lately, and too many of them wait already; "
        "mend the request, or try again later"
    )


class Draining(CarpoolError):
    """The process is shutting down and takes no new work."""

    reason = "draining"
    message = "the sidecar is shutting down; send the request to another replica"
    retry_after = 1


class NotIsolated(CarpoolError):
    """The predictor rejected a whole batch, and the budget for finding out whose fault it was is spent.

    Its words may speak of another caller's data, so they are not passed on.
    """

    reason = "not_isolated"
    message = "the predictor rejected a batch with this request and others in it; send it again"
    retry_after = 1


class DeadlineExceeded(CarpoolError, TimeoutError):
    """The request's own deadline, or the general timeout, passed before an answer came."""

    reason = "deadline"
    message = "no answer within the request's deadline"


# --- the predictor's side ---------------------------------------------------------------------------------------


class UpstreamError(CarpoolError):
    """Base of everything that went wrong with the predictor."""


class UpstreamBroken(UpstreamError):
    """The predictor answered, but not with one usable prediction for each instance.

    That is one row's fault as often as not: NaN, half an emoji, a row left out.
    """

    reason = "broken_answer"
    message = "the predictor's answer is not a valid predict response"
    remedy = Remedy.HALVES


class NotMergeable(UpstreamBroken):
    """A member of a batch does not go with the others after all; alone, the predictor will tell what it thinks of it.

    If `member` tells which, it travels alone, and the others together.
    """

    reason = "not_mergeable"
    message = "the request does not go with others in one call"
    remedy = Remedy.APART


class Uneven(UpstreamBroken):
    """The outputs do not have the rows of the batch: nobody's fault, but nobody's share can be told."""

    reason = "uneven_answer"
    message = "the predictor's outputs do not have the rows of the batch"
    remedy = Remedy.ONE_BY_ONE


class Abandoned(UpstreamError):
    """The call was broken off because all who waited for it had left."""

    reason = "abandoned"
    message = "the call to the predictor was broken off"
