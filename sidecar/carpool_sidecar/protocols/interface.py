"""What differs between protocols, and nothing else: how requests become a batch, and how its answer is shared out.

Everything above - queues, policies, admission, replies - is the same for v1, for v2 in JSON or binary, and for gRPC.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from carpool.compiled import mypyc_attr
from carpool.scheduling import messages
from carpool_sidecar.protocols import steps

Headers = tuple[tuple[str, str], ...]
Pieces = Sequence[bytes | memoryview]  # a body, to be sent in order

BATCH_ID: Final = "carpool-batch-id"
BATCH_COUNT: Final = "carpool-batch-count"
"""What tells a caller of its batches where its protocol's answer has no room: the first one's id, and how many there
were if there were several. Not all ids: clients refuse headers, or metadata, of more than 8 kB."""

MOST_TEXT: Final = 64 * 1024
"""Bytes that a message may have beside its rows: they are read one by one, compared byte for byte, and kept."""

LARGEST_CONTENT = 64 * 1024
"""Largest body that is compared with others: hashing a larger one would take longer than all other work on it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Payload:
    """One parsed request; the base of those of all protocols. `body` is as its caller sent it, where that is kept.

    Requests with equal `key`s (and targets and headers) may share a batch. `response_format` is None for the v1
    protocol's answers, which are made of rows directly.
    """

    __slots__ = ("body", "key", "response_format", "row_count")
    body: bytes
    key: Hashable
    response_format: ResponseFormat | None
    row_count: int

    @property
    def content(self) -> Hashable | None:
        """What the caller sent, equal only for requests that ask for the same; None if it is too large to compare."""
        return self.body if len(self.body) <= LARGEST_CONTENT else None

    @property
    def row_pattern(self) -> Hashable | None:
        """What the rows look like with their values left out; None if the key tells that, or nothing does."""
        return None

    @property
    def added(self) -> int:
        """Bytes that its rows have beyond the caller's body, as what they share is repeated in each."""
        return 0

    def row_sizes(self, start: int, stop: int) -> Sequence[int]:
        """Bytes of the rows `start` to `stop` (exclusive)."""
        raise NotImplementedError

    def row_lengths(self, start: int, stop: int) -> Sequence[int]:
        """Elements of each of those rows."""
        raise NotImplementedError

    def row_room(self, start: int, stop: int) -> Sequence[int]:
        """How much of one call each of those rows takes up, in parts of `lists.room.WHOLE`, where that is limited."""
        return [0] * (stop - start)


LARGE_ANSWER = 512 * 1024
"""From so many bytes on the predictor's answers are read in steps."""


class UpstreamResponse(NamedTuple):
    """The predictor's answer to a call: its body, its headers by their names in lower case, and its HTTP status.

    `reason` and `fields`, all headers, are as they came, for who passes the answer on; else empty, but for the `fields`
    of an answer with several headers of one name. So is `head`, all of it, if the body is what follows it.
    """

    body: bytes
    headers: Mapping[bytes, bytes]
    status: int = 200
    reason: bytes = b""
    fields: Sequence[tuple[bytes, bytes]] = ()
    head: bytes = b""


class BatchPredictions(NamedTuple):
    """What a batch is answered. `list_name` is the name of the v1 protocol's list, `predictions` or `outputs`.

    `members` are those that all callers of the batch get beside it, each as it was written and with a comma behind it.
    """

    list_name: bytes
    rows: messages.Rows
    members: bytes = b""


class WholeResponse:
    """The rows of a response to a request that travelled whole and alone. The response is passed on unread."""

    __slots__ = ("_row_count", "response")

    def __init__(self, response: UpstreamResponse, row_count: int) -> None:
        self.response = response
        self._row_count = row_count

    def __len__(self) -> int:
        return self._row_count

    def __getitem__(self, which: slice, /) -> WholeResponse:
        return self


def read_whole(list_name: bytes, row_count: int, response: UpstreamResponse) -> steps.Steps[BatchPredictions]:
    """The predictions of a response that is passed on as it came, in no step at all."""
    yield from ()
    return BatchPredictions(list_name, WholeResponse(response, row_count))


class UpstreamRequest(NamedTuple):
    """One call to the predictor.

    `headers` are the message's own and stand for those of the same name that its members share. `read_in_steps` finds
    the rows in the answer; it raises `errors.UpstreamBroken` for what is no answer to this call, so that nothing can be
    wrong with the shares any more.
    """

    target: str
    headers: Headers
    body: Pieces
    read_in_steps: Callable[[UpstreamResponse], steps.Steps[BatchPredictions]]

    def read(self, response: UpstreamResponse) -> BatchPredictions:
        """The same, at once: for an answer of less than `LARGE_ANSWER` bytes."""
        return steps.at_once(self.read_in_steps(response))


def count_parts(rule: str, parts: Sequence[messages.Part], on_part: Callable[[str], None]) -> None:
    """Tell the rule of each part of a request that goes in a call without the rest."""
    for request, start, stop in parts:
        if stop - start < request.payload.row_count:
            on_part(rule)


class RenderedResponse(NamedTuple):
    """One caller's answer as its protocol writes it: all headers but Content-Length, and the body.

    Bytes of a header that are not UTF-8 are lone surrogates (PEP 383).
    """

    headers: Headers
    body: Pieces


class ResponseFormat(Protocol):
    """How one caller wants its answer: its id, its outputs, JSON or binary."""

    def render(self, shares: Sequence[messages.Piece]) -> RenderedResponse:
        """The answer, of one or more shares in the order of the caller's own rows; `predictions` is a slice of
        its batch's rows."""
        ...


class Codec(Protocol):
    """One protocol, or one model's requests in it."""

    @property
    def max_batch_size(self) -> int:
        """Rows that the predictor takes in one call; `sys.maxsize` where nothing is known."""
        ...

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        """Find the rows of a request's body; `json_size` is v2's Inference-Header-Content-Length.

        Raises `errors.BadRequest`, `errors.PayloadTooLarge` for more than `max_rows` rows, and `errors.Unbatchable`
        for what is valid but has to travel alone.
        """
        ...

    @property
    def large(self) -> int:
        """From so many bytes on a body is for `parse_in_steps`; a smaller one takes a millisecond or two at once."""
        ...

    def parse_in_steps(self, body: bytes, max_rows: int, json_size: int | None = None) -> steps.Steps[Payload]:
        """As `parse`, with the same outcome, for large bodies."""
        ...

    def merge(self, batch_id: str, target: str, parts: Sequence[messages.Part]) -> UpstreamRequest:
        """The call for a batch of parts; their requests' payloads came from `parse` and share a key.

        `batch_id` is the call's own id where its protocol has one (v2), and never reaches a member. `target` is what
        they asked for. Nothing is copied that can be spliced, and a payload that travels whole and alone goes as it
        came, with its own id or none, and is answered what it would be without us. Raises `errors.NotMergeable` if a
        member turns out not to go with the others.
        """
        ...
