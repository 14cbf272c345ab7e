"""What the core passes around: requests, batches, and the effects its callers must carry out."""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

from carpool import errors
from carpool.compiled import mypyc_attr


class Place(enum.Enum):
    """Where a request is. It moves down this list, and from travelling back to quarantine or, once cleared, to wait."""

    OUTSIDE = enum.auto()  # not accepted
    ACCEPTED = enum.auto()  # open, and not put in yet
    WAITING = enum.auto()  # some of its rows wait for a regular batch
    QUARANTINED = enum.auto()  # some of its rows wait as a suspect's
    TRAVELLING = enum.auto()  # all rows that are not answered are at the predictor, or are to go again
    ENDED = enum.auto()  # answered, refused, or left by its caller


# Known to the compiler, and quicker than to ask the class.
OUTSIDE: Final = Place.OUTSIDE
ACCEPTED: Final = Place.ACCEPTED
WAITING: Final = Place.WAITING
QUARANTINED: Final = Place.QUARANTINED
TRAVELLING: Final = Place.TRAVELLING
ENDED: Final = Place.ENDED


@mypyc_attr(allow_interpreted_subclasses=True)
class Request:
    """One caller's instances, from submission to answer.

    `key` says with whom it may share a batch; `rows` is its number of instances, `size` its bytes and `deadline`
    the time (on the core's clock) after which nobody waits for it; `goal` is when its answer should be there (the
    service objective), no later than the deadline. `payload`, `tag` and `replier`, who hands its outcome over,
    belong to the caller of the core, who gets them back in effects; the payload is let go as soon as the request is
    answered. `max_batch_size` is how many rows the predictor takes in one call of this key, if it has a limit of
    its own. `timeout` is in seconds from submission; None or 0 leaves it to the limits, which also bound it. Of two
    levels of `priority` the higher goes first, see `Limits`. `length` is that of its longest row, where rows of
    like length share batches.
    """

    # Set by the caller, constant:     key rows size timeout tag max_batch_size priority
    # Written by its moves alone:      place rows_taken goes_again
    # Owned by the scheduler, mutable: everything else; `queue_key` is that of the queue that it waits in, or did
    __slots__ = (
        "_goes_again", "_key", "_place", "_rows_taken", "arrived", "cost_queued", "deadline", "goal", "goes_whole",
        "length", "max_batch_size", "payload", "pieces", "priority", "queue_key", "replier", "rows", "rows_answered",
        "sequence", "size", "size_queued", "tag", "timeout",
    )  # fmt: skip

    # Set by the caller of the core, where it has several who hand outcomes over.
    replier: Any
    # Set on submission.
    arrived: float
    deadline: float
    goal: float
    sequence: int
    # Set when the request is first cut, which few are.
    pieces: list[Piece]
    rows_answered: int
    # Set where rows are grouped by their lengths.
    length: int

    def __init__(
        self,
        key: Hashable,
        rows: int,
        size: int = 0,
        payload: Any = None,
        tag: Any = None,
        timeout: float | None = None,
        max_batch_size: float = math.inf,
        priority: int = 0,
    ) -> None:
        self._key = self.queue_key = key
        self.rows = rows
        self.size = size
        self.payload = payload
        self.tag = tag
        self.timeout = timeout
        self.max_batch_size = max_batch_size
        self.priority = priority
        self._place = OUTSIDE
        self._goes_again = False
        self._rows_taken = 0
        self.goes_whole = False  # its parts could not be answered, so all of it goes in one call
        self.size_queued = size  # bytes of the rows that wait for a batch, while some do
        self.cost_queued = 0.0  # what those rows cost

    def cut(self) -> None:
        """Its rows go in several calls, and come back in pieces."""
        self.pieces, self.rows_answered = [], 0

    # --- where it is -------------------------------------------------------------------------------------------

    @property
    def key(self) -> Hashable:
        """With whom it may share a batch, from its first moment to its last; `queue_key` is what changes."""
        return self._key

    @property
    def place(self) -> Place:
        """Where it is."""
        return self._place

    @property
    def open(self) -> bool:
        """Whether it was accepted and has not ended."""
        return self._place is not ENDED and self._place is not OUTSIDE

    @property
    def is_queued(self) -> bool:
        """Whether rows of it wait in a queue."""
        return self._place is WAITING or self._place is QUARANTINED

    @property
    def rows_taken(self) -> int:
        """Rows that have left, the first ones."""
        return self._rows_taken

    @property
    def rows_queued(self) -> int:
        """Rows that wait for a batch; once it has ended, those that never left."""
        return self.rows - self._rows_taken

    @property
    def goes_again(self) -> bool:
        """Whether all of it left with others, which failed, and waits among suspects or did."""
        return self._goes_again

    @property
    def was_sent(self) -> bool:
        """Whether some of it left for the predictor, at least once."""
        return self._rows_taken > 0 or self._goes_again

    # --- its moves ---------------------------------------------------------------------------------------------

    def accept(self, sequence: int) -> None:
        """It is answered or refused from now on. Whoever has a higher `sequence` came later."""
        self.sequence = sequence
        self._place = ACCEPTED

    def wait(self, place: Place) -> None:
        """What has not left of it waits in a queue of that place."""
        self._place = place

    def take(self, stop: int) -> None:
        """Its rows up to `stop` (exclusive) have left, or go another way than its queue's."""
        self._rows_taken = stop
        if stop == self.rows:
            self._place = TRAVELLING

    def take_back(self) -> None:
        """All of it is to wait once more, as its batch failed."""
        self._rows_taken = 0
        self._goes_again = True

    def finish(self) -> None:
        """It is answered, refused or left."""
        self._place = ENDED
        self.payload = None


# The same moves of many, written out, as most requests come and leave so.


def accept_all(requests: Sequence[Request], sequence: int) -> int:
    """`Request.accept` for each in turn, after the one with that number; returns the last one's."""
    for request in requests:
        sequence += 1
        request.sequence = sequence
        request._place = ACCEPTED
    return sequence


def wait_all(requests: Sequence[Request], place: Place) -> None:
    """`Request.wait` for each."""
    for request in requests:
        request._place = place


def take_all(requests: Iterable[Request]) -> list[Part]:
    """What waits of each leaves: `Request.take` of all its rows, as parts in this order."""
    new, part = tuple.__new__, Part  # past the constructor of the named tuple, which costs more than all the rest
    parts: list[Part] = []
    for request in requests:
        rows = request.rows
        parts.append(new(part, (request, request._rows_taken, rows)))
        request._rows_taken = rows
        request._place = TRAVELLING
    return parts


class Suspects(NamedTuple):
    """The queue of requests that share an outcome: their batch key, and their content or a number of their own.

    `is_known` is whether their origin failed before.
    """

    key: Hashable
    content: Hashable
    is_known: bool


class Apart(NamedTuple):
    """The queue of requests that share calls only among themselves, as rows of several lengths do not mix there.

    `shape` is that of their rows; None for the one request of this `number` that has rows of several.
    """

    key: Hashable
    shape: Hashable
    number: int


class Part(NamedTuple):
    """Rows `start` to `stop` (exclusive) of a request, travelling in one batch."""

    request: Request
    start: int
    stop: int


class Rows(Protocol):
    """A batch's predictions, one for each of its rows, to be handed out in slices."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: slice, /) -> Any: ...


class Piece(NamedTuple):
    """The predictions for one part, a slice of its batch's `Rows`, with the id of that batch."""

    start: int
    batch_id: str
    predictions: Any


class Reason(enum.StrEnum):
    """Why a batch left: by decision of a policy, or because something failed.

    `policies` says whose decision it is, `meaning` is for people.
    """

    FULL = "full", "both", "It held as much as it may."
    DUE = "due", "window", "Its oldest request was old enough."
    REST = "rest", "window", "It is what remained of a request that is larger than a batch."
    IDLE = "idle", "both", "The predictor had nothing to do."
    JUST_IN_TIME = "just_in_time", "adaptive", "It was timed to the end of the predictor's present work."
    HOLD = "hold", "adaptive", "It had waited for returning callers."
    PROBE = "probe", "adaptive", "It was sent early, to learn whether the predictor works on several batches at once."
    DRAIN = "drain", "both", "The process is shutting down."
    SUSPECT = "suspect", "both", "The request travelled alone, because it resembles rejected requests."
    ISOLATE = "isolate", "both", "A retry, to find the bad request in a batch."
    SMALLER = "smaller", "both", "A retry, because the predictor refused a larger batch for its size."
    CLOSED = "closed", "both", "A retry, because the call before broke off."

    policies: str
    meaning: str

    # Any: a compiled enumeration cannot be named as a type while its members are made.
    def __new__(cls, label: str, policies: str, meaning: str) -> Any:
        made = str.__new__(cast(Any, cls), label)
        made._value_ = label
        made.policies, made.meaning = policies, meaning
        return made


RETRIES = (Reason.CLOSED, Reason.ISOLATE, Reason.SMALLER)
"""Reasons why a batch leaves whose requests were sent before."""


class Batch:
    """Rows of requests with one key that go to the predictor in one call.

    `reason` says why it left, `rows` is the number of instances it carries. `newcomers` are the requests whose first
    rows leave with it, and for the first time. `about` belongs to whoever carries it out.
    If it was refused for its size and goes again in smaller pieces, `pieces_of` is how many rows each has at most.
    `search` is isolation's: the one that it is a part of, if its rows were refused before. `weight` is as how many rows
    it counts where its time is looked at.
    """

    __slots__ = (
        "about", "dispatched", "error", "id", "key", "newcomers", "parts", "pieces_of", "reason", "rows", "search",
        "weight",
    )  # fmt: skip
    pieces_of: int

    def __init__(self, batch_id: str, key: Hashable, parts: Sequence[Part], reason: Reason) -> None:
        self.id = batch_id
        self.key = key
        self.parts = parts
        self.reason = reason
        rows = 0
        newcomers: list[Request] = []
        for request, start, stop in parts:
            rows += stop - start
            if not start and not request._goes_again:
                newcomers.append(request)
        self.rows = self.weight = rows
        self.newcomers: Sequence[Request] = () if reason in RETRIES else newcomers
        self.dispatched = 0.0
        self.error: errors.CarpoolError | None = None  # why it failed, once it has
        self.about: Any = None
        self.search: Any = None


class Dispatch(NamedTuple):
    """Send this batch to the predictor, then call `done` or `failed` with it, exactly once."""

    batch: Batch


class Answer(NamedTuple):
    """Give the caller its predictions: `pieces` are in the order of its own instances."""

    request: Request
    pieces: Sequence[Piece]


class Refuse(NamedTuple):
    """Give the caller this error."""

    request: Request
    error: errors.CarpoolError


class Abandon(NamedTuple):
    """Nobody waits for this batch any more: break its call off, then call `failed` with it.

    A call that cannot be broken off goes on; `done` or `failed` come when it ends, as for any other.
    """

    batch: Batch


class Lesson(enum.StrEnum):
    """What is learned of what may share a call, whatever words the predictor refused it in."""

    APART = "apart"
    """Rows of several lengths were refused together, and answered each length by itself."""

    TOGETHER = "together"
    """They are answered together again."""

    ROWS = "rows"
    """What was refused together was answered in pieces with fewer rows."""

    BYTES = "bytes"
    """What was refused together was answered in pieces with fewer bytes."""


class Learned(NamedTuple):
    """Tell people what this batch completed: a `lesson` on its key. `most` is how many rows or bytes are sent now."""

    batch: Batch
    lesson: Lesson
    most: int


Effect = Dispatch | Answer | Refuse | Abandon | Learned


def split_predictions(batch: Batch, predictions: Rows, answers: list[Answer]) -> None:
    """Give every member that still waits its share, and close those that have all of theirs now: their `answers`.

    There is one prediction for each of the batch's instances. A request that was cut is answered with its last part.
    Written out, as every request comes through here.
    """
    batch_id = batch.id
    listed: list[Any] | None = predictions if type(predictions) is list else None
    new, piece_type, answer_type = tuple.__new__, Piece, Answer  # past constructors that cost more than all the rest
    end = 0
    for request, start, stop in batch.parts:
        rows = stop - start
        begin = end
        end += rows
        if request._place is ENDED:
            continue
        share = predictions[begin:end] if listed is None or rows > 1 else [listed[begin]]
        piece = new(piece_type, (start, batch_id, share))
        pieces = [piece] if rows == request.rows else _join(request, piece, rows)
        if pieces is not None:
            request._place = ENDED
            request.payload = None
            answers.append(new(answer_type, (request, pieces)))


def _join(request: Request, piece: Piece, rows: int) -> list[Piece] | None:
    """Keep a piece of a request that was cut; all of them in order, once none is missing."""
    request.pieces.append(piece)
    request.rows_answered += rows
    if request.rows_answered < request.rows:
        return None
    # Parts of one request may come back in any order.
    return sorted(request.pieces, key=lambda piece: piece.start)
