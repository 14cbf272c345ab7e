"""Answers with a list in them, and each caller's share: its rows, its numbering, its part of what was counted.

What stands around the rows of the answer goes to every caller as the server wrote it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from carpool.scheduling import messages
from carpool_sidecar import caches, errors
from carpool_sidecar.protocols import (
    beyond_json,
    frames,
    hop_by_hop,
    incremental_scan,
    interface,
    json_members,
    json_rows,
    steps,
)
from carpool_sidecar.protocols.lists import counts, places, rules

LIST_NAME = b"rows"

PRORATED = ("carpool-usage", "prorated")
"""Tells a caller that numbers of its answer are its share of the batch's, by bytes."""

_WHOLE_NUMBER = re.compile(rb"0|[1-9][0-9]{0,17}")
_OPENING, _CLOSING = b"[]"
_AFTER_NUMBER = b",} \t\r\n"
_SPACE = b" \t\r\n"
# Of the size of its body and of who sent it, and what is told of batches: each written anew, or not to be told.
_WRITTEN_ANEW: Final[frozenset[str]] = frozenset(
    {"content-encoding", "content-length", "date", "server", interface.BATCH_ID, interface.BATCH_COUNT}
)
_JSON: interface.Headers = (("Content-Type", "application/json"),)


class Shares(NamedTuple):
    """Whose rows are where in a batch: from one of `starts` to before the next; the last is the number of rows.

    `weights` are what numbers are shared out by; `are_tokens` says that they count tokens. Both are empty where nothing
    is shared.
    """

    starts: Sequence[int]
    weights: Sequence[int] = ()
    are_tokens: bool = False

    @classmethod
    def counted(cls, parts: Sequence[messages.Part]) -> Shares:
        """The parts of a batch, without weights."""
        starts = [0]
        for _, start, stop in parts:
            starts.append(starts[-1] + stop - start)
        return cls(starts)

    @classmethod
    def of(cls, parts: Sequence[messages.Part]) -> Shares:
        """The parts of a batch, weighed: by tokens if all rows are lists of token ids, else by bytes."""
        are_tokens = parts[0].request.payload.are_tokens  # so are all others: their kind is in the key
        starts, weights = [0], []
        for request, start, stop in parts:
            payload = request.payload
            starts.append(starts[-1] + stop - start)
            weights.append(sum(payload.row_lengths(start, stop)) if are_tokens else payload.size(start, stop))
        return cls(starts, weights, are_tokens)

    def split(self, total: int) -> tuple[list[int], bool]:
        """A number shared out by largest remainder, so that the shares add up to it; and whether they are exact."""
        whole = sum(self.weights)
        if not total or not whole:
            return [total, *[0] * (len(self.weights) - 1)], not total or len(self.weights) == 1
        found = [total * weight // whole for weight in self.weights]
        left = total - sum(found)
        if left:
            remainders = [total * weight % whole for weight in self.weights]
            for place in sorted(range(len(found)), key=remainders.__getitem__, reverse=True)[:left]:
                found[place] += 1
        return found, len(found) == 1 or (self.are_tokens and whole == total)


class Numbered(NamedTuple):
    """Rows with a number in each: what is before and after that, row by row."""

    before: Sequence[bytes]
    after: Sequence[bytes]


Rows = Sequence[bytes | msgspec.Raw] | Numbered


def texts(rows: Rows) -> Iterator[bytes]:
    """The rows one by one, for who looks at anything but their numbers: where they have some, each has the same."""
    return map(b"%b0%b".__mod__, zip(*rows, strict=True)) if isinstance(rows, Numbered) else map(bytes, rows)


class Brackets(NamedTuple):
    """How a list is written: its brackets with the white space within, and what is between two rows."""

    opening: bytes = b"["
    between: bytes = b","
    closing: bytes = b"]"


_BARE = Brackets()


class Result:
    """An answer to a batch: `texts` stand before, between and after its values, which have the `names`, in this order.

    By a value's name `rows` has the lists and `numbers` each part's share of a number, by the part's first row.
    `is_numbered` says that the rows are `Numbered`, `are_single` that each part is one row.
    """

    # State: the answers that were finished, as bare rows and as lists.
    __slots__ = (
        "_finished", "are_single", "brackets", "headers", "is_numbered", "names", "numbers",
        "row_count", "rows", "texts",
    )  # fmt: skip

    def __init__(
        self,
        outline: Outline,
        rows: Mapping[Name, Rows],
        numbers: Mapping[Name, Mapping[int, int]],
        headers: interface.Headers,
        shares: Shares,
    ) -> None:
        self.texts = outline.texts
        self.names = outline.names
        self.brackets = outline.brackets
        self.rows = rows
        self.numbers = numbers
        self.row_count = shares.starts[-1]
        self.headers = headers
        self.are_single = len(shares.starts) == self.row_count + 1
        self._finished: list[Sequence[bytes] | None] = [None, None]
        self.is_numbered = any(type(found) is Numbered for found in rows.values())

    def __len__(self) -> int:
        return self.row_count

    def __getitem__(self, which: slice, /) -> Share:
        # Past the constructor, since there is one for each caller.
        share: Share = tuple.__new__(Share, (self, which.start, which.stop))
        return share

    def finished(self, form: ResponseFormat) -> Sequence[bytes] | None:
        """The answers to all parts, made at once, which takes a third of the time; None if not each is of one row."""
        if form is ResponseFormat.LIST_IF_NONE or not self.are_single or len(self.rows) != 1:
            return None
        is_list = form is ResponseFormat.LIST
        found = self._finished[is_list]
        if found is None:
            found = self._finished[is_list] = self._finish(is_list)
        return found

    def _finish(self, is_list: bool) -> Sequence[bytes]:
        frame: list[bytes] = []
        gaps: list[Sequence[Any]] = []
        for text, name in zip(self.texts, self.names, strict=False):
            frame.append(text.replace(b"%", b"%%"))
            shares = self.numbers.get(name)
            if shares is not None:
                frame.append(b"%d")
                gaps.append([*shares.values()])
                continue
            rows = self.rows[name]
            is_numbered = type(rows) is Numbered
            row = b"%b0%b" if is_numbered else b"%b"
            opening, _, closing = self.brackets.get(name, _BARE)
            frame += (opening, row, closing) if is_list else (row,)
            gaps += rows if is_numbered else (rows,)
        frame.append(self.texts[-1].replace(b"%", b"%%"))
        answer = b"".join(frame)
        return [answer % values for values in zip(*gaps, strict=True)]


class Share(NamedTuple):
    """Rows `start` to `stop` (exclusive) of a result."""

    result: Result
    start: int
    stop: int


class ResponseFormat(enum.Enum):
    """How one caller wants its rows."""

    LIST = "a list"
    ROW = "its one row, without a list"
    LIST_IF_NONE = "its one row if that is a list, else a list of it"

    def render(
        self,
        shares: Sequence[messages.Piece],
        arrange: Callable[[Sequence[bytes]], Sequence[bytes]] | None = None,
    ) -> interface.RenderedResponse:
        """Raises `errors.UpstreamBroken` if shares of several batches do not make one answer.

        `arrange` is given the caller's rows, and says which come in which order.
        """
        first = shares[0].predictions
        if type(first) is interface.WholeResponse:
            return _as_it_came(first.response)
        result: Result
        result, start, _ = first
        finished = result.finished(self) if len(shares) == 1 and arrange is None else None
        if finished is not None:
            return interface.RenderedResponse(result.headers, (finished[start],))
        mine: Sequence[Share] = [first] if len(shares) == 1 else _alike([share.predictions for share in shares])
        pieces: list[bytes] = []
        for text, name in zip(result.texts, result.names, strict=False):
            pieces.append(text)
            if name in result.numbers:
                pieces.append(b"%d" % sum([share.result.numbers[name][share.start] for share in mine]))
                continue
            rows = _rows(mine, name)
            if arrange is not None:
                rows = arrange([*map(bytes, rows)])
            is_bare = self is not ResponseFormat.LIST and (
                self is ResponseFormat.ROW or bytes(rows[0]).lstrip().startswith(b"[")
            )
            opening, between, closing = result.brackets.get(name, _BARE)
            pieces += (bytes(rows[0]),) if is_bare else (opening, between.join(rows), closing)
        pieces.append(result.texts[-1])
        headers = result.headers
        if len(mine) > 1:  # one share that is not exact makes the sum so
            headers = next((share.result.headers for share in mine if PRORATED in share.result.headers), headers)
        return interface.RenderedResponse(headers, (b"".join(pieces),))


Name = tuple[str, ...]
"""A list by its place in the rule and its column, which is empty if there are none; a number by the names up to it."""


class Outline:
    """What stood around the values of an answer: the next answer is mostly like it.

    A body that begins and ends so has its values at the same places, if what is between is one list, and whole numbers.
    """

    __slots__ = ("brackets", "is_whole", "names", "texts")

    def __init__(
        self, texts: Sequence[bytes], names: Sequence[Name], brackets: Mapping[Name, Brackets], is_whole: bool = True
    ) -> None:
        """`texts` stand before, between and after the values of these `names`; `brackets` are those of the lists.

        It `is_whole` unless some of the text was left out.
        """
        self.texts = texts
        self.names = names
        self.brackets = brackets
        self.is_whole = is_whole

    @property
    def can_be_matched(self) -> bool:
        """Whether there is little text around the values, all of which is here."""
        return self.is_whole and sum(map(len, self.texts)) <= interface.MOST_TEXT

    def match(self, body: bytes) -> steps.Steps[Found | None]:
        """What is in a body that is like this one; None for another body."""
        rows: dict[Name, Sequence[bytes | msgspec.Raw]] = {}
        brackets: dict[Name, Brackets] = {}
        totals: dict[Name, int] = {}
        for name, (start, end) in zip(self.names, frames.gaps(self.texts, body, 0, len(body)) or (), strict=False):
            if name not in self.brackets:
                if not _WHOLE_NUMBER.fullmatch(body, start, end):
                    return None
                totals[name] = int(body[start:end])
                continue
            if end - start < 2 or body[start] != _OPENING or body[end - 1] != _CLOSING:
                return None  # white space there is not the list's
            try:
                rows[name] = yield from incremental_scan.list_in_steps(body, body, start, end)
            except msgspec.DecodeError:
                return None  # it ends so by chance, or is malformed
            brackets[name] = _brackets(body, start, end, rows[name], self.brackets[name])
        if not rows or len({len(found) for found in rows.values()}) > 1:
            return None  # such as a list along the rows that this answer leaves empty
        outline = self if brackets == self.brackets else Outline(self.texts, self.names, brackets)
        return Found(outline, rows, totals)


class Found(NamedTuple):
    """What is in an answer: its lists and its numbers by their names, and what stands around them."""

    outline: Outline
    lists: Mapping[Name, Sequence[bytes | msgspec.Raw]]
    totals: Mapping[Name, int]


def _brackets(
    body: bytes, start: int, stop: int, rows: Sequence[bytes | msgspec.Raw], usual: Brackets = _BARE
) -> Brackets:
    """How the list from `start` to before `stop` is written; one with a single row does not tell that."""
    if len(rows) < 2:
        return usual
    first = frames.next_row(body, start + 1)
    end = first + len(rows[0])
    second = frames.next_row(body, end)
    last = stop - 1
    while body[last - 1] in _SPACE:
        last -= 1
    return Brackets(body[start:first], body[end:second], body[last:stop])


def read(
    rule: rules.Rule, shares: Shares, response: interface.UpstreamResponse, outlines: dict[str, Outline]
) -> steps.Steps[interface.BatchPredictions]:
    """The rows of a batch. `outlines` has that of the last answer, by its rule's name, and is kept so.

    Raises `errors.Uneven` if they are not as many as the batch's, and `errors.UpstreamBroken` for what is no answer.
    """
    body = response.body
    try:
        yield from json_rows.check_utf8(body)
        outline = outlines.get(rule.name)
        found = None if outline is None else (yield from outline.match(body))
        if found is None:
            try:
                found = yield from _read(rule, bool(shares.weights), body, body)
            except (errors.BadRequest, msgspec.DecodeError):
                mask = yield from beyond_json.masked(body)
                if mask is None:
                    raise
                found = yield from _read(rule, bool(shares.weights), body, mask)
        if found.outline.can_be_matched:
            outlines[rule.name] = found.outline
        return interface.BatchPredictions(LIST_NAME, _result(rule, shares, response, found))
    except RecursionError:
        raise errors.UpstreamBroken("the predictor's answer is nested too deeply") from None
    except errors.Unbatchable:
        raise errors.Uneven(f"the predictor's answer has an object of more than {json_members.MOST} members") from None
    except (errors.BadRequest, msgspec.DecodeError, UnicodeDecodeError) as error:
        # Some callers ask for what is no JSON, such as vectors as bytes: that is nobody's fault, and goes one by one.
        kind = response.headers.get(b"content-type", b"application/json")
        failure = errors.UpstreamBroken if b"json" in kind.lower() else errors.Uneven
        raise failure(f"the predictor's answer is not as rule {rule.name!r} says: {error}") from None


def _read(rule: rules.Rule, is_shared: bool, body: bytes, mask: bytes) -> steps.Steps[Found]:
    """What is in any answer; `mask` is the body, or JSON of the same size where that is none."""
    text = places.Text(mask)
    lists = yield from _find_lists(rule, text)
    counted = counts.Counts(text, body, lists.values())
    for place in rule.shared if is_shared else ():
        counted.find(place)
    spans = sorted([(span, name) for name, span in (*lists.items(), *counted.spans.items())])
    rows: dict[Name, Sequence[bytes | msgspec.Raw]] = {}
    brackets: dict[Name, Brackets] = {}
    for name, span in lists.items():
        rows[name] = yield from incremental_scan.list_in_steps(body, mask, span.start, span.stop, scan=span.scan)
        brackets[name] = _brackets(mask, span.start, span.stop, rows[name])
    cuts = counted.left_out()
    texts = places.Text(body).around([span for span, _ in spans], cuts)
    return Found(Outline(texts, [name for _, name in spans], brackets, not cuts), rows, counted.totals)


def _result(rule: rules.Rule, shares: Shares, response: interface.UpstreamResponse, found: Found) -> Result:
    """What was found in an answer, shared out."""
    count = shares.starts[-1]
    rows: dict[Name, Rows] = {}
    for name, listed in found.lists.items():
        if len(listed) != count:
            raise errors.Uneven(f"the predictor's answer has {len(listed)} rows; the batch has {count}")
        rows[name] = (_numbered(listed, rule.index) if rule.index is not None else None) or listed
    split = {total: shares.split(total) for total in set(found.totals.values())}  # often two of them are the same
    numbers = {name: dict(zip(shares.starts, split[total][0], strict=False)) for name, total in found.totals.items()}
    kind = response.headers.get(b"content-type")
    headers = _JSON if kind is None else (("Content-Type", kind.decode("latin-1")),)
    if not all(is_exact for _, is_exact in split.values()):
        headers += (PRORATED,)
    return Result(found.outline, rows, numbers, headers, shares)


def _find_lists(rule: rules.Rule, text: places.Text) -> steps.Steps[Mapping[Name, places.Span]]:
    """Raises `errors.Uneven` if there is none: a server may answer another form of request than a rule knows."""
    for place in rule.answers:
        spans = yield from text.find(place)
        found: dict[Name, places.Span] = {(place.text, span.name): span for span in spans if text.begins(span, b"[")}
        if found:
            for each in rule.answers_along:
                spans = yield from text.find(each)
                if spans and text.begins(spans[0], b"[") and not _is_empty(text, spans[0]):
                    found[each.text, ""] = spans[0]
            return found
    wanted = " or ".join(place.text for place in rule.answers)
    raise errors.Uneven(f"the predictor's answer is not as rule {rule.name!r} says: no list at {wanted}")


def _is_empty(text: places.Text, span: places.Span) -> bool:
    return not text.text[span.start + 1 : span.stop - 1].strip(_SPACE)


# --- numbered rows ----------------------------------------------------------------------------------------------


def _numbered(rows: Sequence[bytes | msgspec.Raw], name: str) -> Numbered | None:
    """The rows in the order of their own numbers; None if none has one.

    Raises `errors.UpstreamBroken` if they are not numbered from 0, each number once.
    """
    first, last = _patterns(name)
    start = first.match(rows[0]) if rows else None
    if start is not None and start.start(1) <= _LONGEST_HEAD:
        alike = _numbered_alike(rows, bytes(rows[0])[: start.start(1)])
        if alike is not None:
            return alike
    found: list[tuple[bytes, bytes] | None] = [None] * len(rows)
    count = 0
    for raw in rows:
        row = bytes(raw)
        match = first.match(row) or last.search(row, max(0, len(row) - len(name) - _LONGEST_END))
        place = match.span(1) if match else _number(row, name)
        if place is None:
            continue
        count += 1
        number = int(row[place[0] : place[1]])
        if number >= len(rows) or found[number] is not None:
            raise errors.UpstreamBroken(f"the predictor's answer has a row with the {name!r} {number}, which cannot be")
        found[number] = (row[: place[0]], row[place[1] :])
    if not count:
        return None
    if count < len(rows):
        raise errors.UpstreamBroken(f"the predictor's answer has rows without {name!r}")
    known = [row for row in found if row is not None]
    return Numbered([before for before, _ in known], [after for _, after in known])


def _numbered_alike(rows: Sequence[bytes | msgspec.Raw], before: bytes) -> Numbered | None:
    """The rows, if each begins alike and they count from 0 in order, as most do; else None."""
    found: list[bytes] = []
    heads = _heads[before, len(rows)] if len(rows) <= _MOST_HEADS else _write_heads((before, len(rows)))
    for raw, head in zip(rows, heads, strict=True):
        row, end = bytes(raw), len(head)
        if not row.startswith(head) or row[end] not in _AFTER_NUMBER:
            return None
        found.append(row[end:])
    return Numbered([before] * len(rows), found)


def _write_heads(asked: tuple[bytes, int]) -> tuple[bytes, ...]:
    """How so many rows begin that count from 0, after the same text."""
    before, count = asked
    return tuple([b"%b%d" % (before, place) for place in range(count)])


_heads = caches.Cache("numbered_rows", 1024 * 1024, make=_write_heads)


def _number(row: bytes, name: str) -> tuple[int, int] | None:
    """Where an object has its number, wherever that stands."""
    if not row.startswith(b"{"):
        return None
    member = steps.at_once(json_members.find(row)).get(name)
    if member is None:
        return None
    if not _WHOLE_NUMBER.fullmatch(row, member.value, member.stop):
        raise errors.UpstreamBroken(f"the predictor's answer has a row whose {name!r} is no whole number")
    return member.value, member.stop


# What stands before the number of a row is written for as many rows as there are, and kept.
_LONGEST_HEAD = 200
_MOST_HEADS = 2048
_LONGEST_END = 40  # a number of 18 digits, quotes, a colon, a brace and white space


def _patterns(name: str) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """What finds the number of an object at its beginning, behind nothing or one text, and at its very end.

    A row is one JSON value, so a name between a comma and a number right before the last brace is a name of its own.
    """
    found = _PATTERNS.get(name)
    if found is None:
        word = re.escape(msgspec.json.encode(name))
        number = rb"%b[ \t\r\n]*:[ \t\r\n]*(0|[1-9][0-9]{0,17})(?=[ \t\r\n]*%b)"
        text = rb'(?:"[a-z_]+"[ \t\r\n]*:[ \t\r\n]*"[a-z_.-]*"[ \t\r\n]*,[ \t\r\n]*)?'
        first = re.compile(rb"\{[ \t\r\n]*" + text + number % (word, rb"[,}]"))
        last = re.compile(rb",[ \t\r\n]*" + number % (word, rb"\}\Z"))
        found = _PATTERNS[name] = (first, last)
    return found


_PATTERNS: dict[str, tuple[re.Pattern[bytes], re.Pattern[bytes]]] = {}  # by names in rules, which are few


# --- shares -----------------------------------------------------------------------------------------------------


def _rows(mine: Sequence[Share], name: Name) -> Sequence[bytes | msgspec.Raw]:
    """The rows of one list, numbered from 0 if they are numbered."""
    if len(mine) == 1 and not mine[0].result.is_numbered:
        result, start, stop = mine[0]
        return cast(Sequence[bytes | msgspec.Raw], result.rows[name])[start:stop]
    found: list[bytes | msgspec.Raw] = []
    before: list[bytes] = []
    for result, start, stop in mine:
        rows = result.rows[name]
        if isinstance(rows, Numbered):
            before += rows.before[start:stop]
            found += rows.after[start:stop]
        else:
            found += rows[start:stop]
    if not before:
        return found
    return [b"%b%d%b" % (start, place, end) for place, (start, end) in enumerate(zip(before, found, strict=True))]


def _alike(mine: Sequence[Share]) -> Sequence[Share]:
    """The same; raises `errors.UpstreamBroken` if they do not have the same values, and so make no one answer."""
    forms = {(result.is_numbered, frozenset(result.rows), frozenset(result.numbers)) for result, _, _ in mine}
    if len(forms) > 1:
        raise errors.UpstreamBroken("the predictor's answers to parts of the request do not go together")
    return mine


def _as_it_came(response: interface.UpstreamResponse) -> interface.RenderedResponse:
    fields = [
        (name.decode("ascii"), value.decode(errors="surrogateescape"))
        for name, value in response.fields or response.headers.items()
    ]
    dropped = _WRITTEN_ANEW | hop_by_hop.fields([value for name, value in fields if name == "connection"])
    headers = [(name.title(), value) for name, value in fields if name not in dropped]
    if response.body and b"content-type" not in response.headers:
        headers.insert(0, _JSON[0])
    return interface.RenderedResponse(tuple(headers), (response.body,))
