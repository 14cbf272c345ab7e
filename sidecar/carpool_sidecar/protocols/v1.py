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
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, cast

import msgspec

from carpool.compiled import mypyc_attr
from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import beyond_json, forms, incremental_scan, interface, json_members, json_rows, steps

Rows = json_rows.Rows

_REQUEST_MEMBERS: Final = ("instances", "inputs")
_ANSWER_MEMBERS: Final = ("predictions", "outputs")

# Nearly every body has one member, known from its first bytes. A decoder then proves that all the rest is exactly one
# JSON list, so that nothing else (a duplicate key, a second member) can hide behind it. Most of them begin in one way,
# perhaps with a space behind it.
_USUAL_REQUEST: Final = b'{"instances":'
_USUAL_ANSWER: Final = b'{"predictions":'
_BRACKET: Final = ord("[")
_BLANK: Final = ord(" ")
_ONLY_MEMBER = rb'[ \t\r\n]*\{[ \t\r\n]*"(%b)"[ \t\r\n]*:[ \t\r\n]*(?=\[)'
_ONLY_REQUEST_MEMBER = re.compile(_ONLY_MEMBER % b"instances|inputs")
_ONLY_ANSWER_MEMBER = re.compile(_ONLY_MEMBER % b"predictions|outputs")
# The same behind some members that are no lists or objects.
_REQUEST_BEGINNING = re.compile(
    rb'[ \t\r\n]*\{(?:[ \t\r\n]*"[^"\\]{0,200}"[ \t\r\n]*:[ \t\r\n]*(?:"[^"\\]{0,1000}"|[-+.\w]{1,30})[ \t\r\n]*,){0,8}'
    rb'[ \t\r\n]*"(instances|inputs)"[ \t\r\n]*:[ \t\r\n]*(?=\[)'
)
_LONGEST_BEGINNING: Final = 4096
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


class _Lists(msgspec.Struct):
    """The large members of a request; decoding into it skips all others without allocating."""

    instances: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()


_LISTS = msgspec.json.Decoder(_Lists)


class Payload(interface.Payload):
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
    def content(self) -> Hashable | None:
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
        steps.at_once(json_rows.check_utf8(body))
    only = _only_member(body, b"instances", _USUAL_REQUEST, _ONLY_REQUEST_MEMBER)
    if only is not None:
        name, start, stop = only
        # Of a large body no copy but a view.
        text = body[start:stop] if stop - start <= _WORTH_A_VIEW else memoryview(body)[start:stop]
        is_short = stop - start < json_rows.WORTH_A_LOOK and stop - start <= 2 * max_rows
        try:
            rows = json_rows.LIST.decode(text) if is_short else json_rows.find(text, max_rows)
            if rows and mixes:
                return Payload(name, body, text, rows, b"", forms.ANY)
            if rows:
                form = forms.scan(b"", text, 0, len(text), False) if is_short else None
                if form is None or len(form) > forms.LONG:
                    form = json_rows.form(rows, text)
                return Payload(name, body, text, rows, b"", form)
        except (msgspec.DecodeError, RecursionError):
            pass  # more members follow, or it is malformed: which, and where, is found out below
    return steps.at_once(parse_in_steps(body, max_rows, mixes=mixes))


def parse_in_steps(
    body: bytes, max_rows: int = sys.maxsize, json_size: int | None = None, mixes: bool = False
) -> steps.Steps[Payload]:
    """The same for any body, in steps."""
    try:
        yield from json_rows.check_utf8(body)
        try:
            return (yield from _parse(body, body, max_rows, mixes))
        except (errors.BadRequest, errors.Unbatchable) as error:
            mask = yield from beyond_json.masked(body, with_words=False)
            if mask is None:
                raise _explained(body, error, interface.MOST_TEXT) from None
        try:
            return (yield from _parse(body, mask, max_rows, mixes))
        except (errors.BadRequest, errors.Unbatchable) as error:
            raise _explained(mask, error, interface.MOST_TEXT) from None
    except RecursionError:
        raise errors.BadRequest("the body is nested too deeply") from None


def merge(
    batch_id: str, target: str, parts: Sequence[messages.Part], kept: KeptMembers | None = None
) -> interface.UpstreamRequest:
    """Build one upstream call of its parts' rows; see `interface.Codec.merge`.

    All payloads must share `list_name` and `others`; the batch key guarantees that. Nothing is copied here, and a
    payload that travels whole and alone goes as it came. `kept` are for `parse_answer`. Raises `errors.NotMergeable`
    for a part of a request with rows of several forms beside others.
    """
    read: Callable[[interface.UpstreamResponse], steps.Steps[interface.BatchPredictions]] = parse_answer
    if kept is not None:
        read = functools.partial(parse_answer, kept=kept)
    pieces: list[bytes | memoryview] = []
    for request, start, stop in parts:
        payload: Payload = request.payload
        is_whole = stop - start == len(payload.rows)
        if is_whole and len(parts) == 1:
            whole = [payload.body] if payload.parts is None else payload.parts.between(0, payload.parts.size)
            return interface.UpstreamRequest(target, (), whole, read)
        if pieces:
            pieces.append(b",")
        else:
            others = payload.others + b"," if payload.others else b""
            pieces.append(b'{%b"%b":[' % (others, payload.list_name))
        if not is_whole:
            if len(parts) > 1 and forms.may_be_several(cast(tuple[bytes, bytes, bytes], payload.key)[2]):
                raise errors.NotMergeable
            pieces.append(b",".join(payload.rows[start:stop]))
        elif payload.parts is None:
            text = payload.text if len(payload.text) < _WORTH_A_VIEW_IN_A_BATCH else memoryview(payload.text)
            pieces.append(text[1:-1])
        else:
            pieces += payload.parts.between(payload.start + 1, payload.stop - 1)
    if not pieces:
        raise ValueError("a batch needs at least one part")
    pieces.append(b"]}")
    return interface.UpstreamRequest(target, (), pieces, read)


def parse_answer(
    response: interface.UpstreamResponse, kept: KeptMembers | None = None
) -> steps.Steps[interface.BatchPredictions]:
    """Find the predictions in a predict response.

    Raises `errors.UpstreamBroken` for anything but a JSON object with a list `predictions` (or TensorFlow
    Serving's `outputs`). Other members, such as `model_version`, are skipped unless `kept` has them, however large they
    are and however often they are there. Of several of one name the last counts, as with most JSON parsers.
    """
    body = response.body
    only = None
    if len(body) < interface.LARGE_ANSWER and body.isascii():
        only = _only_member(body, b"predictions", _USUAL_ANSWER, _ONLY_ANSWER_MEMBER)
    if only is not None:
        name, start, stop = only
        is_short = stop - start < json_rows.WORTH_A_LOOK
        try:
            rows = json_rows.LIST.decode(body[start:stop]) if is_short else json_rows.find(memoryview(body)[start:stop])
            return interface.BatchPredictions(name, list(rows))  # of which each caller takes its share: cheap of a list
        except (msgspec.DecodeError, RecursionError):
            pass  # as in a request
    try:
        yield from json_rows.check_utf8(body)
        try:
            return (yield from _read(body, body, kept))
        except errors.BadRequest as error:
            mask = yield from beyond_json.masked(body)
            if mask is None:
                raise _explained(body, error) from None
        return (yield from _read(body, mask, kept))
    except RecursionError:
        raise errors.UpstreamBroken("the predictor's answer is nested too deeply") from None
    except errors.Unbatchable:
        words = f"the predictor's answer has more than {json_members.MOST} members, and what is no JSON"
        raise errors.UpstreamBroken(words) from None
    except errors.BadRequest as error:
        raise errors.UpstreamBroken(f"the predictor's answer is not a valid predict response: {error}") from None


class KeptMembers:
    """Members of a batch's answer that each of its callers gets, with their values as they were written.

    The operator named them, as the same for all callers. Others never get past here.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def of(self, body: bytes, members: Mapping[str, json_members.Member]) -> bytes:
        """These among the `members` of an answer's body, each with a comma behind it."""
        found = b""
        for name in self.names:
            at = members.get(name)
            if at is not None and at.stop - at.value <= LONGEST_MEMBER:
                found += b"%b:%b," % (msgspec.json.encode(name), body[at.value : at.stop])
        return found


class RequestScan:
    """Fed with all parts of a body in order, finds the instances of a request; for `mixes` see `parse_request`."""

    # State: the _beginning of the body, until it has shown the _name of the list, and where that begins.
    def __init__(self, max_rows: int = sys.maxsize, mixes: bool = False) -> None:
        self._max_rows = max_rows
        self._in_detail = None if mixes else False
        self._beginning = b""
        self._name = b""
        self._start = 0
        self._list: incremental_scan.IncrementalScan | None = None

    def feed(self, part: bytes) -> None:
        """The next bytes of the body."""
        if self._list is None:
            if len(self._beginning) > _LONGEST_BEGINNING:
                return
            self._beginning += part
            match = _REQUEST_BEGINNING.match(self._beginning)
            if match is None:
                return
            self._name, self._start = match[1], match.end()
            self._list = incremental_scan.IncrementalScan(self._start, self._max_rows, self._in_detail)
            part = self._beginning[self._start + 1 :]
            self._beginning = self._beginning[: self._start]
        self._list.feed(part)

    def payload(self, body: json_rows.PartedText) -> Payload | None:
        """The payload of the `body` that was fed; None if it is for `parse_in_steps` to tell."""
        found = self._list
        if found is None or not found.finish() or found.has_too_many or not found.starts:
            return None
        if body.size - found.end > interface.MOST_TEXT:
            return None
        around = b"%b[0]%b" % (self._beginning, b"".join(body.between(found.end, body.size)))
        try:
            alike = parse_request(around, mixes=True)  # what it says of all but the list
        except (errors.CarpoolError, errors.Unbatchable):
            return None
        if alike.list_name != self._name:
            return None
        rows = found.rows(body)
        return Payload(self._name, body, b"", rows, alike.others, found.form, self._start, found.end)


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


def _only_member(body: bytes, name: bytes, usual: bytes, start: re.Pattern[bytes]) -> tuple[bytes, int, int] | None:
    """The name of the only list in a body, and where it begins and ends, if a list is there; None if there is more.

    `start` matches the beginning of such a body, up to the list; `usual` is what that mostly is, for the list of that
    `name`.
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
        return name, at, size - 1
    end = len(body.rstrip(_SPACE)) - 1
    if body[end : end + 1] != b"}":
        return None
    return name, at, len(body[:end].rstrip(_SPACE)) if body[end - 1] in _SPACE else end


def _parse(body: bytes, mask: bytes, max_rows: int, mixes: bool) -> steps.Steps[Payload]:
    """The payload of a body with any members; `mask` is the body, or JSON of the same size where that is none."""
    members = yield from json_members.find(mask, max_rows=max_rows, with_form=not mixes)
    present = [name for name in _REQUEST_MEMBERS if name in members]
    if not present:
        near = next((name for name in members if name.lower() in _REQUEST_MEMBERS), None)
        raise errors.NoInstances(f"no member 'instances'; {near!r} is spelt differently" if near else None)
    if len(present) > 1:
        raise errors.BadRequest("both 'instances' and 'inputs' are present; send one of them")
    name = present[0]
    at = members.pop(name)
    text = body[at.value : at.stop] if at.stop - at.value <= _WORTH_A_VIEW else memoryview(body)[at.value : at.stop]
    if len(body) - len(text) > interface.MOST_TEXT:
        raise _too_large(len(body) - len(text))
    if text == b"null":
        raise errors.NoInstances
    if name == "inputs" and body.startswith(b"{", at.value):
        raise errors.Unbatchable(errors.NotBatched.COLUMNAR)
    rows = yield from _rows(body, mask, name, at, max_rows)
    if not rows:
        raise errors.NoInstances
    others = [
        body[other.start : other.value].rstrip(_SPACE_AND_COLON) + b":" + body[other.value : other.stop]
        for other in members.values()
    ]
    form = forms.ANY if mixes else json_rows.form(rows, memoryview(mask)[at.value : at.stop])
    return Payload(name.encode(), body, text, rows, b",".join(others), form)


def _read(body: bytes, mask: bytes, kept: KeptMembers | None) -> steps.Steps[interface.BatchPredictions]:
    """The same for an answer; all but what is asked for is skipped."""
    only = _ANSWER_MEMBERS if kept is None else (*_ANSWER_MEMBERS, *kept.names)
    most = sys.maxsize if mask is body else json_members.MOST
    members = yield from json_members.find(mask, last_counts=True, only=only, most=most)
    for name in _ANSWER_MEMBERS:
        if name in members:
            rows = yield from _rows(body, mask, name, members[name], sys.maxsize)
            return interface.BatchPredictions(name.encode(), rows, b"" if kept is None else kept.of(body, members))
    raise errors.BadRequest(f"no member {' or '.join(map(repr, _ANSWER_MEMBERS))}")


def _rows(body: bytes, mask: bytes, name: str, at: json_members.Member, max_rows: int) -> steps.Steps[Rows]:
    """The rows of a member's list."""
    try:
        return (yield from incremental_scan.list_in_steps(body, mask, at.value, at.stop, max_rows, at.scan))
    except msgspec.ValidationError:
        raise errors.BadRequest(f"{name!r} must be a list") from None
    except msgspec.DecodeError as error:
        raise errors.BadRequest(str(error)) from None


def _explained(body: bytes, error: Exception, most_others: int = sys.maxsize) -> Exception:
    """What is wrong with a body for which an error was raised: what a decoder says of all of it, or that error."""
    try:
        lists = _LISTS.decode(body)
    except msgspec.ValidationError:
        return errors.BadRequest("the body must be a JSON object")
    except (msgspec.DecodeError, UnicodeDecodeError) as flaw:
        return json_rows.no_json(body, str(flaw))
    if not isinstance(error, errors.Unbatchable):
        return error
    others = len(body) - sum(memoryview(raw).nbytes for raw in msgspec.structs.astuple(lists))
    return _too_large(others) if others > most_others else error


def _too_large(others: int) -> errors.BadRequest:
    return errors.BadRequest(f"members beside the list take {others} bytes; at most {interface.MOST_TEXT} are allowed")
