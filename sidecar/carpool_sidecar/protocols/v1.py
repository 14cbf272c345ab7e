"""The v1 predict protocol, spliced rather than decoded.

A body is scanned once to find where each instance begins and ends. Batches and answers are made by joining those
byte ranges, so numbers and strings arrive exactly as they were written: nothing is parsed, rounded or re-escaped.
Format: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol and TensorFlow Serving's
REST API (`signature_name` and friends, `inputs` / `outputs`).
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from carpool.compiled import mypyc_attr
from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import beyond_json, forms, incremental_scan, interface, json_members, json_rows, steps

Rows = json_rows.Rows

# Members beside the list are compared byte for byte in the batch key and read one by one: keep them few.
_MAX_OTHERS = 64 * 1024

# Nearly every body has one member, known from its first bytes. `json_rows.LIST` then proves that all the rest is
# exactly one JSON list, so that nothing else (a duplicate key, a second member) can hide behind it. Most of them begin
# in one way, perhaps with a space behind it.
_USUAL_REQUEST: Final = b'{"instances":'
_USUAL_ANSWER: Final = b'{"predictions":'
_BRACKET: Final = ord("[")
_BLANK: Final = ord(" ")
_ONLY_MEMBER = rb'[ \t\r\n]*\{[ \t\r\n]*"(%b)"[ \t\r\n]*:[ \t\r\n]*(?=\[)'
_ONLY_REQUEST_MEMBER = re.compile(_ONLY_MEMBER % b"instances|inputs")
_ONLY_ANSWER_MEMBER = re.compile(_ONLY_MEMBER % b"predictions|outputs")
# The same behind some members that are no lists or objects.
_AFTER_SIMPLE_MEMBERS = (
    rb'[ \t\r\n]*\{(?:[ \t\r\n]*"[^"\\]{0,200}"[ \t\r\n]*:[ \t\r\n]*(?:"[^"\\]{0,1000}"|[-+.\w]{1,30})[ \t\r\n]*,){0,8}'
    rb'[ \t\r\n]*"(%b)"[ \t\r\n]*:[ \t\r\n]*(?=\[)'
)
_REQUEST_HEAD = re.compile(_AFTER_SIMPLE_MEMBERS % b"instances|inputs")
_ANSWER_HEAD = re.compile(_AFTER_SIMPLE_MEMBERS % b"predictions|outputs")
_SPACE: Final = b" \t\r\n"
_SPACE_AND_COLON = _SPACE + b":"

# From here on a view costs less than a copy, of a part of a body that is needed by itself, and of one in a batch.
_WORTH_A_VIEW: Final = 64 * 1024
_WORTH_A_VIEW_IN_A_BATCH: Final = 2 * 1024

LARGE: Final = 1024 * 1024
"""From so many bytes on a body is scanned while it arrives, or in steps: a smaller one takes one or two milliseconds
at once, and fewer in all."""

LONGEST_MEMBER: Final = 4096
"""Bytes of a member that each caller of a batch gets, at most; a longer one is left out."""

_REQUEST_MEMBERS = ("instances", "inputs")
_ANSWER_MEMBERS = ("predictions", "outputs")


class _RequestLists(msgspec.Struct):
    """The large members of a request; decoding into it skips all others without allocating."""

    instances: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()


class _AnswerLists(msgspec.Struct):
    """Those of an answer."""

    predictions: msgspec.Raw = msgspec.Raw()
    outputs: msgspec.Raw = msgspec.Raw()


_REQUEST_LISTS = msgspec.json.Decoder(_RequestLists)
_ANSWER_LISTS = msgspec.json.Decoder(_AnswerLists)


class Payload(interface.KeepsBody):
    """One parsed request body.

    `rows` are the instances as byte ranges, `text` is their list as it was written, brackets included, `list_name` is
    the list's name (`instances` or `inputs`) and `others` the remaining members as written, joined by commas. `form`
    is that of the rows. `body` is all of it. A large one may still be the `parts` it came in, with the list from
    `start` to `stop`: then `body` and `text` are empty.
    """

    __slots__ = ("list_name", "others", "parts", "rows", "start", "stop", "text")

    def __init__(
        self,
        list_name: bytes,
        body: bytes | json_rows.PartedText,
        text: bytes | memoryview,
        rows: Rows,
        others: bytes,
        form: bytes,
        start: int = 0,
        stop: int = 0,
    ) -> None:
        self.list_name = list_name
        self.parts = body if isinstance(body, json_rows.PartedText) else None
        self.body = b"" if isinstance(body, json_rows.PartedText) else body
        self.text = text
        self.start = start
        self.stop = stop
        self.rows = rows
        self.others = others
        self.row_count = len(rows)
        self.key = (list_name, others, form)
        self.response_format = None

    @property
    def content(self) -> bytes | None:
        """Implements `interface.Payload`."""
        return super().content if self.parts is None else None

    @property
    def row_pattern(self) -> bytes:
        """The punctuation and literals of the first instance, without strings and numbers."""
        return json_rows.pattern(self.rows)

    def row_sizes(self, start: int, stop: int) -> list[int]:
        """As they were written."""
        return [len(row) for row in self.rows[start:stop]]

    def row_lengths(self, start: int, stop: int) -> list[int]:
        """Elements of the instances `start` to `stop` (exclusive) that are JSON arrays; 1 for any other instance.

        An array with more than a million commas that has more in it than plain numbers counts as one more than those.
        """
        return [json_rows.length(bytes(row)) for row in self.rows[start:stop]]


def parse_request(
    body: bytes, max_rows: int = sys.maxsize, json_size: int | None = None, mixes: bool = False
) -> Payload:
    """Find the instances of a predict request; see `interface.Codec.parse`. If it `mixes`, any form is as any other.

    Raises `errors.BadRequest` (with the place and the reason) for anything that is not one JSON object with a
    non-empty list `instances` or `inputs` and no duplicate member, `errors.PayloadTooLarge` for more than `max_rows`
    instances (found before memory is spent on them), and `errors.Unbatchable` for an `inputs` object of columns, for
    more than `json_members.MOST` members, and as `forms.of` does.
    """
    if not body.isascii():
        json_rows.check_utf8(body)
    # A row takes at least two bytes, so most bodies are cleared by a glance.
    decode = json_rows.decode_list if len(body) <= 2 * max_rows else json_rows.careful_decoder(body, max_rows)
    try:
        single = _single_member(body, b"instances", _USUAL_REQUEST, _ONLY_REQUEST_MEMBER, decode, max_rows)
        if single is not None:
            member, text, rows, nesting = single
            payload = Payload(member, body, text, rows, b"", forms.ANY if mixes else forms.of(text, nesting))
        else:
            payload = _payload_of_members(body, decode, mixes)
    except RecursionError:
        raise errors.BadRequest("the body is nested too deeply") from None
    if not payload.rows:
        raise errors.NoInstances
    return payload


def merge(
    batch_id: str, target: str, parts: Sequence[messages.Part], kept: KeptMembers | None = None
) -> interface.UpstreamRequest:
    """Build one upstream call of its parts' rows; see `interface.Codec.merge`.

    All payloads must share `list_name` and `others`; the batch key guarantees that. Nothing is copied here, and a
    payload that travels whole and alone goes as it came. `kept` are for `parse_answer`.
    """
    read, in_steps = (parse_answer, read_in_steps) if kept is None else (kept.parse_answer, kept.read_in_steps)
    pieces: list[bytes | memoryview] = []
    for request, start, stop in parts:
        payload: Payload = request.payload
        is_whole = stop - start == len(payload.rows)
        if is_whole and len(parts) == 1:
            whole = [payload.body] if payload.parts is None else payload.parts.between(0, payload.parts.size)
            return interface.UpstreamRequest(target, (), whole, read, in_steps)
        if pieces:
            pieces.append(b",")
        else:
            others = payload.others + b"," if payload.others else b""
            pieces.append(b'{%b"%b":[' % (others, payload.list_name))
        if not is_whole:
            pieces.append(b",".join(payload.rows[start:stop]))
        elif payload.parts is None:
            text = payload.text if len(payload.text) < _WORTH_A_VIEW_IN_A_BATCH else memoryview(payload.text)
            pieces.append(text[1:-1])
        else:
            pieces += payload.parts.between(payload.start + 1, payload.stop - 1)
    if not pieces:
        raise ValueError("a batch needs at least one part")
    pieces.append(b"]}")
    return interface.UpstreamRequest(target, (), pieces, read, in_steps)


def parse_answer(response: interface.UpstreamResponse, kept: KeptMembers | None = None) -> interface.BatchPredictions:
    """Find the predictions in a predict response.

    Raises `errors.UpstreamBroken` for anything but a JSON object with a list `predictions` (or TensorFlow
    Serving's `outputs`). Other members, such as `model_version`, are skipped unless `kept` has them, however large they
    are and however often they are there. Of several of one name the last counts, as with most JSON parsers.
    """
    body = response.body
    try:
        if not body.isascii():
            json_rows.check_utf8(body)
        decode, most = json_rows.decode_list, sys.maxsize
        single = _single_member(body, b"predictions", _USUAL_ANSWER, _ONLY_ANSWER_MEMBER, decode, most)
        if single is not None:
            return interface.BatchPredictions(single[0], single[2])
        return _predictions_of_members(body, kept)
    except RecursionError:
        raise errors.UpstreamBroken("the predictor's answer is nested too deeply") from None
    except errors.Unbatchable:
        words = f"the predictor's answer has more than {json_members.MOST} members, and what is no JSON"
        raise errors.UpstreamBroken(words) from None
    except errors.BadRequest as error:
        raise errors.UpstreamBroken(f"the predictor's answer is not a valid predict response: {error}") from None


# --- in steps ---------------------------------------------------------------------------------------------------


class RequestScan(incremental_scan.IncrementalScan):
    """Fed with all parts of a body in order, finds the instances of a predict request; for `mixes` see `parse_request`.

    Their form it finds `in_detail`, or else without; then it may be one that `lacks_form`.
    """

    def __init__(self, max_rows: int = sys.maxsize, mixes: bool = False, in_detail: bool = False) -> None:
        super().__init__(_REQUEST_HEAD, max_rows, in_detail=None if mixes else in_detail)
        self._mixes = mixes

    def payload(self, body: bytes | json_rows.PartedText) -> Payload | None:
        """The payload of the `body` that was fed; None if it is for `parse_request` to tell."""
        found = self.rows(body)
        if found is None:
            return None
        rows, start, stop, around = found
        if not rows:
            return None
        if isinstance(body, bytes):
            around = _around(body, start, stop)  # what was fed may have been its mask
        others = b""
        if not _is_bare(around):
            try:
                alike = parse_request(around)  # what it says of all but the list
            except (errors.CarpoolError, errors.Unbatchable):
                return None
            if alike.list_name != self.name:
                return None
            others = alike.others
        text = b"" if isinstance(body, json_rows.PartedText) else memoryview(body)[start:stop]
        return Payload(self.name, body, text, rows, others, forms.ANY if self._mixes else self.form(), start, stop)


def parse_in_steps(
    body: bytes, max_rows: int = sys.maxsize, json_size: int | None = None, mixes: bool = False
) -> steps.Steps[Payload]:
    """`parse_request` for a large body."""
    payload = yield from _scanned_in_steps(body, body, max_rows, mixes)
    if payload is None and beyond_json.has_halves(body):
        mask = yield from beyond_json.masked_in_steps(body, with_words=False)
        if mask is not None:
            payload = yield from _scanned_in_steps(body, mask, max_rows, mixes)
    return payload or parse_request(body, max_rows, mixes=mixes)


def _scanned_in_steps(body: bytes, mask: bytes, max_rows: int, mixes: bool) -> steps.Steps[Payload | None]:
    """What a scan of the mask finds in a body, if it finds all."""
    for in_detail in (False, True):
        scan = RequestScan(max_rows, mixes, in_detail)
        yield from scan.feed_in_steps(mask)
        payload = scan.payload(body)
        if payload is not None or not scan.lacks_form:
            return payload
    return None


def read_in_steps(
    response: interface.UpstreamResponse, kept: KeptMembers | None = None
) -> steps.Steps[interface.BatchPredictions]:
    """`parse_answer` for a large body."""
    body = response.body
    scan = incremental_scan.IncrementalScan(_ANSWER_HEAD)
    yield from scan.feed_in_steps(body)
    found = scan.rows(body)
    if found is None:
        mask = yield from beyond_json.masked_in_steps(body)
        if mask is not None:
            scan = incremental_scan.IncrementalScan(_ANSWER_HEAD)
            yield from scan.feed_in_steps(mask)
            found = scan.rows(body)
    if found is None:
        return parse_answer(response, kept)
    rows, start, stop, _ = found
    around = _around(body, start, stop)
    members = b""
    if not _is_bare(around):
        # Of several lists the last counts.
        count = sum(around.count(b'"%b"' % name) for name in (b"predictions", b"outputs")) + around.count(b"\\u")
        try:
            alike = parse_answer(response._replace(body=around))
        except errors.UpstreamBroken:
            return parse_answer(response, kept)  # which knows the place
        if count > 1 or alike.list_name != scan.name:
            return parse_answer(response, kept)
        members = b"" if kept is None else kept.of(around)
    return interface.BatchPredictions(scan.name, rows, members)


def _around(body: bytes, start: int, stop: int) -> bytes:
    """A body with `[0]` for its list."""
    return b"%b[0]%b" % (body[:start], body[stop:])


def _is_bare(around: bytes) -> bool:
    """Whether there is nothing but the list in the body."""
    return around.endswith(b":[0]}") and around.count(b":") == 1


class KeptMembers:
    """Members of a batch's answer that each of its callers gets, with their values as they were written.

    The operator named them, as the same for all callers. Others never get past here.
    """

    def __init__(self, names: Sequence[str]) -> None:
        # As with all lists here: what has no field is skipped unread, and of equal names the last counts.
        fields = [f"member_{index}" for index in range(len(names))]
        form = msgspec.defstruct(
            "Members",
            [(field, msgspec.Raw, msgspec.Raw()) for field in fields],
            rename=dict(zip(fields, names, strict=True)),
        )
        self._names = tuple(names)
        self._starts = [b"%b:" % msgspec.json.encode(name) for name in names]
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(form)

    def of(self, body: bytes) -> bytes:
        """These members of an answer, each with a comma behind it; `body` is a JSON object, or has a mask that is."""
        texts: list[memoryview]
        try:
            texts = [memoryview(raw) for raw in msgspec.structs.astuple(self._decoder.decode(body))]
        except msgspec.DecodeError:
            members, view = json_members.find(beyond_json.masked(body) or body, last_counts=True), memoryview(body)
            places = [members.get(name, json_members.Member(0, 0, 0)) for name in self._names]
            texts = [view[at.value : at.stop] for at in places]
        found = [
            b"%b%b," % (start, bytes(text))
            for start, text in zip(self._starts, texts, strict=True)
            if 0 < text.nbytes <= LONGEST_MEMBER
        ]
        return b"".join(found)

    def parse_answer(self, response: interface.UpstreamResponse) -> interface.BatchPredictions:
        """`parse_answer` with these."""
        return parse_answer(response, self)

    def read_in_steps(self, response: interface.UpstreamResponse) -> steps.Steps[interface.BatchPredictions]:
        """`read_in_steps` with these."""
        return read_in_steps(response, self)


@mypyc_attr(allow_interpreted_subclasses=True)
class Codec:
    """See `interface.Codec`; there is one for all models, of which nothing is known.

    `answer_members` are the names of those that callers get beside their predictions. If it `mixes`, instances of any
    form share a call.
    """

    # Of each instance: a compiled class knows no functions as its attributes.
    def __init__(self, answer_members: Sequence[str] = (), mixes: bool = False) -> None:
        self.max_batch_size = sys.maxsize
        self.large = LARGE
        self.mixes = mixes
        self.parse: Callable[..., Payload] = functools.partial(parse_request, mixes=True) if mixes else parse_request
        self.parse_in_steps: Callable[..., steps.Steps[Payload]] = (
            functools.partial(parse_in_steps, mixes=True) if mixes else parse_in_steps
        )
        self.merge: Callable[[str, str, Sequence[messages.Part]], interface.UpstreamRequest] = merge
        if answer_members:
            self.merge = functools.partial(merge, kept=KeptMembers(answer_members))


START: Final = b'{"message":"","batchId":"%b",%b"%b":['
"""What all answers of a batch begin with, its id, `members` and `list_name` to be filled in; then come the predictions,
joined by commas, and `END`."""

END: Final = b"]}"


def render(batch_id: str, list_name: bytes, pieces: Sequence[Rows], members: bytes = b"") -> bytes:
    """Build one caller's answer from its predictions, in one or more runs of rows, and `members` of its batch's."""
    rows = pieces[0] if len(pieces) == 1 else [row for piece in pieces for row in piece]
    start = START % (batch_id.encode(), members, list_name)
    if len(rows) < 2:
        return b"".join((start, *rows, END))
    # Joined once, as it may be large.
    return b",".join((start + bytes(rows[0]), *rows[1:-1], bytes(rows[-1]) + END))


def render_error(message: str) -> bytes:
    """The v1 protocol's error body."""
    return msgspec.json.encode({"error": message})


# --- scanning ---------------------------------------------------------------------------------------------------


def _single_member(
    body: bytes,
    name: bytes,
    usual: bytes,
    start: re.Pattern[bytes],
    decode: Callable[[bytes | memoryview], Rows],
    max_rows: int,
) -> tuple[bytes, bytes | memoryview, Rows, int] | None:
    """`(name, list as written, its rows, nesting)` if the body is exactly one object with that one list; else None.

    `start` matches its beginning, up to the list; `usual` is what that mostly is, for the list of that `name`. The
    nesting is that of `number_lists.find`, -1 if it does not tell the form.
    """
    at, size = len(usual), len(body)
    is_usual = size > at + 1 and body.startswith(usual)
    if is_usual and body[at] == _BLANK and body[at + 1] == _BRACKET:
        at += 1
    elif not (is_usual and body[at] == _BRACKET):
        match = start.match(body)
        if match is None:
            return None
        name, at = match[1], match.end()
    if body.endswith(b"]}"):
        end = size - 1
    else:
        end = len(body.rstrip(_SPACE)) - 1
        if body[end : end + 1] != b"}":
            return None
        end = len(body[:end].rstrip(_SPACE)) if body[end - 1] in _SPACE else end
    # Of a large body no copy but a view.
    text = body[at:end] if end - at <= _WORTH_A_VIEW else memoryview(body)[at:end]
    if end - at >= json_rows.WORTH_A_LOOK:
        found = json_rows.rows_of_numbers(body, at, end, max_rows)
        if found is not None:
            return name, text, found[0], found[1]
    try:
        return name, text, decode(text), -1
    except msgspec.DecodeError:
        return None  # more members follow, or it is malformed: the general path tells which, and where


def _members(body: bytes) -> dict[str, json_members.Member]:
    """Where the members of a request are, in order.

    Raises `errors.BadRequest` for malformed JSON and for duplicate members.
    """
    try:
        lists = _REQUEST_LISTS.decode(body)
    except msgspec.ValidationError:
        raise errors.BadRequest("the body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise json_rows.no_json(body, str(error)) from None
    others = len(body) - sum(memoryview(raw).nbytes for raw in msgspec.structs.astuple(lists))
    if others > _MAX_OTHERS:
        raise errors.BadRequest(f"members beside the list take {others} bytes; at most {_MAX_OTHERS} are allowed")
    return json_members.find(body)


def _payload_of_members(body: bytes, decode: Callable[[bytes | memoryview], Rows], mixes: bool) -> Payload:
    mask = body
    try:
        members = _members(body)
    except errors.BadRequest:
        found = beyond_json.masked(body, with_words=False) if beyond_json.has_halves(body) else None
        if found is None:
            raise
        mask = found
        members = _members(mask)
    present = [name for name in _REQUEST_MEMBERS if name in members]
    if not present:
        near = next((name for name in members if name.lower() in _REQUEST_MEMBERS), None)
        raise errors.NoInstances(f"no member 'instances'; {near!r} is spelt differently" if near else None)
    if len(present) > 1:
        raise errors.BadRequest("both 'instances' and 'inputs' are present; send one of them")
    name = present[0]
    at = members.pop(name)
    text = body[at.value : at.stop]
    if text == b"null":
        raise errors.NoInstances
    if name == "inputs" and text.startswith(b"{"):
        raise errors.Unbatchable(errors.NotBatched.COLUMNAR)
    others = [
        body[other.start : other.value].rstrip(_SPACE_AND_COLON) + b":" + body[other.value : other.stop]
        for other in members.values()
    ]
    rows = _listed(body, mask, name, at, decode)
    return Payload(
        name.encode(), body, text, rows, b",".join(others), forms.ANY if mixes else forms.of(mask[at.value : at.stop])
    )


def _predictions_of_members(body: bytes, kept: KeptMembers | None) -> interface.BatchPredictions:
    """What is found in an answer with any members; all but what is asked for is skipped unread."""
    try:
        found = msgspec.structs.asdict(_ANSWER_LISTS.decode(body))
    except msgspec.ValidationError:
        raise errors.BadRequest("the body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        mask = beyond_json.masked(body)
        if mask is None:
            raise json_rows.no_json(body, str(error)) from None
        members = json_members.find(mask, last_counts=True)
        for name in _ANSWER_MEMBERS:
            if name in members:
                rows = _listed(body, mask, name, members[name], json_rows.decode_list)
                return interface.BatchPredictions(name.encode(), rows, b"" if kept is None else kept.of(body))
        raise _no_list(_ANSWER_MEMBERS) from None
    for name in _ANSWER_MEMBERS:
        raw = found[name]
        if memoryview(raw).nbytes:
            rows = _rows_of(name, bytes(raw), json_rows.decode_list)
            return interface.BatchPredictions(name.encode(), rows, b"" if kept is None else kept.of(body))
    raise _no_list(_ANSWER_MEMBERS)


def _listed(
    body: bytes, mask: bytes, name: str, at: json_members.Member, decode: Callable[[bytes | memoryview], Rows]
) -> Rows:
    """The rows of a member's list; `mask` is the body, or JSON of the same size where that is none."""
    rows = _rows_of(name, mask[at.value : at.stop], decode)
    return rows if mask is body else beyond_json.sliced(body, at.value, mask, rows)


def _rows_of(name: str, text: bytes, decode: Callable[[bytes | memoryview], Rows]) -> Rows:
    try:
        return decode(text)
    except msgspec.ValidationError:
        raise errors.BadRequest(f"{name!r} must be a list") from None
    except msgspec.DecodeError as error:
        raise errors.BadRequest(str(error)) from None


def _no_list(names: Sequence[str]) -> errors.BadRequest:
    return errors.BadRequest(f"no member {' or '.join(map(repr, names))}")
