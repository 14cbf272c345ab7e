"""Requests with a list in them: found by their rules, merged by splicing, never decoded.

Clients write the same text around their rows again and again. So the last few texts are remembered, and a body that
begins and ends like one of them only has to have exactly one JSON value between.
"""

from __future__ import annotations

import collections
import functools
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, cast

import msgspec

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import forms, frames, incremental_scan, interface, json_rows, steps, v1
from carpool_sidecar.protocols.lists import answers, places, ranking, room, rules

AVOID_SECONDS = 60.0
"""For so long requests of a key are not batched after an answer that did not have the batch's rows."""

_VALUE = msgspec.json.Decoder(msgspec.Raw)

_MOST_TEMPLATES = 8
_MOST_KINDS = 64
_MOST_AVOIDED = 1000
_STEP = 128 * 1024  # bytes that are read in one step, each column counting as so many more
_AS_MUCH_AS_A_COLUMN = 2048

_SPACE = b" \t\r\n"
_TOKENS = "tokens"
_NO_STREAM = (b"false", b"null", b"0")
_NOT_SO = (b"false", b"null")

_KINDS = {
    **dict.fromkeys(b"-0123456789", "number"),
    ord('"'): "string",
    ord("["): "list",
    ord("{"): "object",
}


class Column(NamedTuple):
    """Rows as they were written, and the same with commas between, without the brackets of their list.

    `kind` says what they are, `form` is what those of other requests have to have in common with them. `is_list` is
    False for a single value that stands for a list of it.
    """

    rows: Sequence[msgspec.Raw]
    text: bytes | memoryview
    kind: str
    form: Hashable
    is_list: bool = True


class Template:
    """What stands around the lists of a request: `texts` in a merged call; `around` them in the request itself.

    `along` says of each list whether it goes along others, `main` which is the first that does not. `takes_single` says
    that a value that is no list may stand for the only one. `ranked` says how answers are ordered, if they are.
    """

    __slots__ = (
        "_keys", "after", "along", "around", "before", "main", "ranked", "rule", "size", "takes_single", "texts",
    )  # fmt: skip

    def __init__(
        self,
        rule: rules.Rule,
        texts: tuple[bytes, ...],
        around: tuple[bytes, ...],
        along: tuple[bool, ...],
        takes_single: bool,
    ) -> None:
        self.rule = rule
        self.texts = texts
        self.around = around
        self.before = around[0]
        self.after = around[-1]
        self.size = sum(map(len, around))
        self.along = along
        self.main = along.index(False)
        self.takes_single = takes_single
        self.ranked = ranking.wanted(rule, around)
        self._keys: dict[Hashable, Hashable] = {}

    def key(self, told: Hashable) -> Hashable:
        """The batch key of requests with this text and rows of which this is told."""
        found = self._keys.get(told)
        if found is None:
            if len(self._keys) >= _MOST_KINDS:  # names of members come from callers
                self._keys.clear()
            found = self._keys[told] = (self.rule.name, told, self.texts)
        return found


class Payload(interface.Payload):
    """One parsed request: `columns` are its lists in order, mostly one; `main` is the first not along others."""

    __slots__ = ("_room", "columns", "main", "template")

    def __init__(
        self, template: Template, body: bytes, columns: tuple[Column, ...], form: answers.ResponseFormat
    ) -> None:
        self.template = template
        self.body = body
        self.columns = columns
        self.main = columns[template.main]
        self._room: list[int] = []
        self.row_count = len(self.main.rows)
        self.key = template.key(tuple([(column.kind, column.form) for column in columns]))
        self.response_format = template.ranked or form

    @property
    def are_tokens(self) -> bool:
        """Whether the rows are lists of token ids, so that their lengths are tokens."""
        return self.main.kind == _TOKENS

    @property
    def row_pattern(self) -> bytes:
        """Implements `interface.Payload`: that of the first row."""
        return json_rows.pattern(self.main.rows)

    def row_sizes(self, start: int, stop: int) -> list[int]:
        """As they were written."""
        if len(self.columns) == 1:
            return [len(row) for row in self.columns[0].rows[start:stop]]
        return [sum(map(len, row)) for row in zip(*[column.rows[start:stop] for column in self.columns], strict=True)]

    def size(self, start: int, stop: int) -> int:
        """Bytes of so many rows, as they were written."""
        if self.row_count == 1 and len(self.columns) == 1:
            return len(self.columns[0].rows[0])
        return sum(self.row_sizes(start, stop))

    def row_lengths(self, start: int, stop: int) -> list[int]:
        """Elements of the rows that are JSON arrays; 1 for any other."""
        return [json_rows.length(bytes(row)) for row in self.main.rows[start:stop]]

    def row_room(self, start: int, stop: int) -> list[int]:
        """See `interface.Payload`: by the limits of the rule, of which lists along the rows take their part."""
        if not self.template.rule.has_room:
            return [0] * (stop - start)
        steps.at_once(self.measure())
        return self._room[start:stop]

    def measure(self) -> steps.Steps[None]:
        """Find what `row_room` tells, if it is not known yet."""
        if self._room or not self.template.rule.has_room:
            return
        found: list[int] = []
        for column in self.columns:
            taken = yield from room.taken(self.template.rule, column.rows, len(column.text))
            found = [sum(each) for each in zip(found, taken, strict=True)] if found else taken
        self._room = found

    def cut(self, number: int, start: int, stop: int) -> bytes | memoryview:
        """Rows of a list, with commas between."""
        column = self.columns[number]
        return column.text if stop - start == self.row_count else b",".join(column.rows[start:stop])


class Codec:
    """Requests to one path, by all rules for it; see `interface.Codec`.

    `clock` returns seconds and never goes back. If it `mixes`, rows of any form share a call. `on_part` is told the
    rule of each part of a request that goes in a call without the rest.
    """

    # State: the templates that were used last, the latest first; by the names of rules the outlines of their last
    # answers; which keys, by their hashes, are not batched, and until when.
    large = v1.LARGE

    def __init__(
        self,
        chosen: Sequence[rules.Rule],
        clock: Callable[[], float],
        mixes: bool = False,
        on_part: Callable[[str], None] | None = None,
    ) -> None:
        self._rules = tuple(chosen)
        self._mixes = mixes
        self._clock = clock
        self._on_part = on_part
        self.max_batch_size = min([rule.max_batch_size or sys.maxsize for rule in chosen])
        self._templates: list[Template] = []
        self._outlines: dict[str, answers.Outline] = {}
        self._avoided: collections.OrderedDict[int, float] = collections.OrderedDict()

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        """See `interface.Codec`.

        Raises only `errors.PayloadTooLarge` and `errors.Unbatchable`: what is wrong with a body, its server says best.
        """
        try:
            if not body.isascii():
                steps.at_once(json_rows.check_utf8(body))
            payload = self._parse_alike(body, max_rows) or steps.at_once(self._parse_anew(body, max_rows))
        except (errors.BadRequest, RecursionError):
            raise errors.Unbatchable(errors.NotBatched.NO_ROWS) from None
        return self._unless_avoided(payload) if self._avoided else payload

    def parse_in_steps(self, body: bytes, max_rows: int, json_size: int | None = None) -> steps.Steps[Payload]:
        """See `interface.Codec`: large lists are scanned, and measured, in steps. Raises the same as `parse`."""
        try:
            yield from json_rows.check_utf8(body)
            payload = yield from self._parse_anew(body, max_rows)
        except (errors.BadRequest, RecursionError):
            raise errors.Unbatchable(errors.NotBatched.NO_ROWS) from None
        yield from payload.measure()
        return self._unless_avoided(payload) if self._avoided else payload

    def merge(self, batch_id: str, target: str, parts: Sequence[messages.Part]) -> interface.UpstreamRequest:
        """See `interface.Codec`."""
        first: Payload = parts[0].request.payload
        if len(parts) == 1 and parts[0].stop - parts[0].start == first.row_count:
            read_whole = functools.partial(interface.read_whole, answers.LIST_NAME, first.row_count)
            return interface.UpstreamRequest(target, (), (first.body,), read_whole)
        if len(parts) > 1 and any(map(_is_uneven_part, parts)):
            raise errors.NotMergeable
        template = first.template
        if self._on_part is not None:
            interface.count_parts(template.rule.name, parts, self._on_part)
        pieces = spliced(template.texts, parts)
        shares = answers.Shares.of(parts) if template.rule.shared else answers.Shares.counted(parts)
        read = functools.partial(self._read, template.rule, first.key, shares)
        return interface.UpstreamRequest(target, (), pieces, read)

    def _read(
        self, rule: rules.Rule, key: Hashable, shares: answers.Shares, response: interface.UpstreamResponse
    ) -> steps.Steps[interface.BatchPredictions]:
        try:
            found = yield from answers.read(rule, shares, response, self._outlines)
            if rule.rank_by:
                yield from ranking.check(rule, cast(answers.Result, found.rows))
            return found
        except errors.Uneven:
            self._avoid(key)
            raise

    # --- keys that are not batched -----------------------------------------------------------------------------

    def _avoid(self, key: Hashable) -> None:
        self._avoided.pop(hash(key), None)
        self._avoided[hash(key)] = self._clock() + AVOID_SECONDS
        if len(self._avoided) > _MOST_AVOIDED:
            self._avoided.popitem(last=False)

    def _unless_avoided(self, payload: Payload) -> Payload:
        until = self._avoided.get(hash(payload.key))
        if until is not None:
            if self._clock() < until:
                raise errors.Unbatchable(errors.NotBatched.OUTPUTS)
            del self._avoided[hash(payload.key)]
        return payload

    # --- parsing -----------------------------------------------------------------------------------------------

    def _parse_alike(self, body: bytes, max_rows: int) -> Payload | None:
        """The payload of a body with the same text around its rows as one before it; else None."""
        for number, template in enumerate(self._templates):
            if len(body) <= template.size or not (body.startswith(template.before) and body.endswith(template.after)):
                continue
            try:
                if len(template.along) > 1:
                    form, columns = answers.ResponseFormat.LIST, self._columns(template, body, max_rows)
                else:
                    value = body[len(template.before) : len(body) - len(template.after)]
                    column, form = self._column(template.rule, value, max_rows)
                    # An object may hold what the rules ask for, and this has only looked at the text around it.
                    is_one = column.is_list or (template.takes_single and column.kind != "object")
                    columns = (column,) if is_one else None
            except (msgspec.DecodeError, errors.Unbatchable):
                continue  # something else begins and ends so, it is malformed, or another alternative has rows
            if columns is None:
                continue
            if number:
                self._templates.insert(0, self._templates.pop(number))
            return Payload(template, body, columns, form)
        return None

    def _columns(self, template: Template, body: bytes, max_rows: int) -> tuple[Column, ...] | None:
        """The lists of a body with the text of a template that has several, if they are lists of one length."""
        places = frames.gaps(template.around, body, 0, len(body)) or ()
        found: list[Column] = []
        for is_along, (start, stop) in zip(template.along, places, strict=False):
            value = body[start:stop]
            if not (value.startswith(b"[") and value.endswith(b"]")):
                return None
            found.append(_along(value, max_rows) if is_along else self._column(template.rule, value, max_rows)[0])
        are_lists = all(column.is_list for column in found)
        return tuple(found) if are_lists and len({len(column.rows) for column in found}) == 1 else None

    def _parse_anew(self, body: bytes, max_rows: int) -> steps.Steps[Payload]:
        text = places.Text(body, max_rows, with_forms=not self._mixes)
        refused: set[places.Span] = set()
        work = 0
        for rule in self._rules:
            for place in rule.rows:
                spans = yield from text.find(place)
                if not spans:
                    continue
                beside = [span for each in rule.along for span in steps.at_once(text.find(each))]
                found: dict[places.Span, tuple[Column, answers.ResponseFormat]] = {}
                reasons: list[errors.NotBatched] = []
                try:
                    for span in spans:
                        try:
                            found[span] = yield from self._column_in_steps(rule, body, span, max_rows)
                        except errors.Unbatchable as verdict:
                            reasons.append(verdict.reason)
                        work += span.stop - span.start + _AS_MUCH_AS_A_COLUMN
                        if work >= _STEP:
                            work = 0
                            yield
                    along = {
                        span: _along(body[span.start : span.stop], max_rows)
                        for span in beside
                        if text.begins(span, b"[")
                    }
                except msgspec.DecodeError as error:
                    raise errors.BadRequest(str(error)) from None
                if errors.NotBatched.NO_ROWS in reasons:
                    refused.update(spans)
                    continue  # the next alternative may have rows
                if reasons:
                    raise errors.Unbatchable(reasons[0])  # here are rows, and a server would not look elsewhere
                _check_stream(text)
                for place in rule.alone_if:
                    others = yield from text.find(place)
                    if any(body[other.start : other.stop] not in _NOT_SO for other in others):
                        raise errors.Unbatchable(errors.NotBatched.DEPENDENT_ROWS)
                column, form = found[spans[0]]
                takes_single = not any(steps.at_once(text.find(each)) for each in rule.alone_with)
                if not (takes_single or column.is_list):
                    raise errors.Unbatchable(errors.NotBatched.NO_ROWS)
                columns = {**{span: each for span, (each, _) in found.items()}, **along}
                if len({len(each.rows) for each in columns.values()}) > 1:
                    raise errors.Unbatchable(errors.NotBatched.SHAPE)
                in_order = sorted(columns)
                is_along = tuple([span in along for span in in_order])
                template = self._template(rule, text, in_order, is_along, takes_single, refused.isdisjoint(spans))
                return Payload(template, body, tuple([columns[span] for span in in_order]), form)
        raise errors.Unbatchable(errors.NotBatched.NO_ROWS)

    def _template(
        self,
        rule: rules.Rule,
        text: places.Text,
        spans: Sequence[places.Span],
        along: tuple[bool, ...],
        takes_single: bool,
        is_typical: bool,
    ) -> Template:
        """The text around these values, which is remembered if another value in its place would be found by this rule.

        If it `is_typical`, no rule before this one has refused the value.
        """
        around = text.around(spans)
        if sum(map(len, around)) > interface.MOST_TEXT:
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
        left_out = (*rule.ignore, *rule.top)
        texts = _without(text, spans, left_out) if left_out else around
        template = Template(rule, texts, around, along, takes_single)
        if is_typical:
            for known in self._templates:
                if known.rule is rule and known.around == around:
                    return known
            self._templates.insert(0, template)
            del self._templates[_MOST_TEMPLATES:]
        return template

    # --- rows --------------------------------------------------------------------------------------------------

    def _column(
        self, rule: rules.Rule, value: bytes, max_rows: int, found: json_rows.Rows | None = None
    ) -> tuple[Column, answers.ResponseFormat]:
        """The rows of a value, and how its caller is answered. Of a list they may have been `found`.

        Raises `msgspec.DecodeError` for what is not exactly one JSON value, `errors.PayloadTooLarge` for too many rows,
        and `errors.Unbatchable` for a value without rows, or with rows of which no form can be told.
        """
        if value.startswith(b'"') and value.endswith(b'"') and value != b'""':
            # What most callers send, and so the short way to what `_single` gives.
            form = _FORMS.get(rule.scalar)
            if form is not None and (not rule.kinds or "string" in rule.kinds) and not rule.same_members:
                text = forms.ANY if self._mixes else forms.TEXTS
                column: Column = tuple.__new__(Column, ((_VALUE.decode(value),), value, "string", text, False))
                return column, form
        value = value.strip(_SPACE)
        if not value.startswith(b"[") or (
            rule.token_ids and json_rows.are_integers(value[1:-1]) and value[1:-1].strip(_SPACE)
        ):
            return self._single(rule, value)
        rows = json_rows.find(value, max_rows) if found is None else found
        if not rows:
            raise errors.Unbatchable(errors.NotBatched.NO_ROWS)
        kind = _kind(rows)
        if rule.kinds and kind not in rule.kinds:
            raise errors.Unbatchable(errors.NotBatched.NO_ROWS)
        if rule.token_ids and kind == "list":
            insides = (bytes(memoryview(row)[1:-1]) for row in rows)
            kind = _TOKENS if all(map(json_rows.are_integers, insides)) else kind
        told: Hashable = forms.ANY
        if rule.same_members:
            told = forms.of_table(rows)
        elif not self._mixes:
            told = json_rows.form(rows, value)
        return Column(rows, value[1:-1], kind, told), answers.ResponseFormat.LIST

    def _column_in_steps(
        self, rule: rules.Rule, body: bytes, span: places.Span, max_rows: int
    ) -> steps.Steps[tuple[Column, answers.ResponseFormat]]:
        """The same for a value of a body, which is scanned in steps if it is a large list."""
        rows, is_large = None, span.stop - span.start >= incremental_scan.LARGE
        if span.scan is not None or (is_large and body.startswith(b"[", span.start)):
            rows = yield from incremental_scan.list_in_steps(
                body, body, span.start, span.stop, max_rows, span.scan, not self._mixes
            )
        return self._column(rule, body[span.start : span.stop], max_rows, rows)

    def _single(self, rule: rules.Rule, value: bytes) -> tuple[Column, answers.ResponseFormat]:
        """The value as the only row; see `_column`."""
        row = _VALUE.decode(value)
        kind = _KINDS.get(value[0])
        form = _FORMS.get(rule.scalar)
        # Servers differ on what an empty text is; an object is one only where the rule knows what is answered.
        is_foreign = bool(rule.kinds) and kind not in rule.kinds
        if (
            form is None
            or kind is None
            or is_foreign
            or value == b'""'
            or (kind == "object" and rule.scalar == "by_row")
        ):
            raise errors.Unbatchable(errors.NotBatched.NO_ROWS)
        told: Hashable = forms.ANY
        if rule.same_members:
            told = forms.of_table([row])
        elif not self._mixes:
            told = forms.of(b"[%b]" % value)
        return Column((row,), value, _TOKENS if kind == "list" else kind, told, False), form


def spliced(texts: Sequence[bytes], parts: Sequence[messages.Part]) -> list[bytes | memoryview]:
    """A call: these texts, with a list between each two, of what the parts' payloads `cut` there."""
    pieces: list[bytes | memoryview] = []
    for number, text in enumerate(texts[:-1]):
        pieces += (text, b"[")
        for request, start, stop in parts:
            pieces += (request.payload.cut(number, start, stop), b",")
        pieces[-1] = b"]"
    pieces.append(texts[-1])
    return pieces


def rules_for(path: str, chosen: Sequence[rules.Rule]) -> tuple[rules.Rule, ...]:
    """The rules for requests to a path, in their order.

    Raises `errors.Unbatchable` for paths at which one query goes with many texts, unless there is a rule for that.
    """
    with_query = [rule for rule in chosen if rule.has_one_query(path)]
    found = tuple([rule for rule in chosen if rule not in with_query and rule.matches(path)])
    if with_query and not found:
        raise errors.Unbatchable(errors.NotBatched.ONE_QUERY)
    return found


class V1First(v1.Codec):
    """v1 requests, and for the same path those with lists that are no v1 request, such as objects of columns."""

    def __init__(self, lists: Codec, answer_members: Sequence[str] = (), mixes: bool = False) -> None:
        self._lists = lists
        self.mixes = mixes
        self._kept = v1.KeptMembers(answer_members) if answer_members else None
        self.max_batch_size = lists.max_batch_size
        self.large = v1.LARGE

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> interface.Payload:  # type: ignore[override] # more than v1's
        """See `interface.Codec`; raises what v1 does."""
        try:
            return v1.parse_request(body, max_rows, mixes=self.mixes)
        except (errors.BadRequest, errors.Unbatchable):
            try:
                return self._lists.parse(body, max_rows)
            except errors.Unbatchable:
                pass
            raise

    def parse_in_steps(  # type: ignore[override] # more than v1's
        self, body: bytes, max_rows: int, json_size: int | None = None
    ) -> steps.Steps[interface.Payload]:
        """The same, in steps."""
        try:
            return (yield from v1.parse_in_steps(body, max_rows, mixes=self.mixes))
        except (errors.BadRequest, errors.Unbatchable):
            try:
                return (yield from self._lists.parse_in_steps(body, max_rows))
            except errors.Unbatchable:
                pass
            raise

    def merge(self, batch_id: str, target: str, parts: Sequence[messages.Part]) -> interface.UpstreamRequest:
        """See `interface.Codec`."""
        if isinstance(parts[0].request.payload, v1.Payload):
            return v1.merge(batch_id, target, parts, self._kept)
        return self._lists.merge(batch_id, target, parts)


def _is_uneven_part(part: messages.Part) -> bool:
    """Whether it is a part of a request whose rows may be of several forms."""
    payload: Payload = part.request.payload
    if part.stop - part.start == payload.row_count:
        return False
    return any(isinstance(each.form, bytes) and forms.may_be_several(each.form) for each in payload.columns)


def _along(value: bytes, max_rows: int) -> Column:
    """A list with an entry for each row; raises as `Codec._column` does."""
    return Column(json_rows.find(value, max_rows), value[1:-1], "along", forms.ANY)


_FORMS = {
    "wrapped": answers.ResponseFormat.LIST,
    "unwrapped": answers.ResponseFormat.ROW,
    "by_row": answers.ResponseFormat.LIST_IF_NONE,
}


def _kind(rows: Sequence[msgspec.Raw]) -> str:
    if len(rows) == 1:
        return _KINDS.get(memoryview(rows[0])[0], "other")
    kinds = {_KINDS.get(first, "other") for first in {memoryview(row)[0] for row in rows}}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _check_stream(text: places.Text) -> None:
    if not text.begins(text.whole, b"{"):
        return
    member = text.members(text.whole).get("stream")
    if member is not None and text.text[member.value : member.stop] not in _NO_STREAM:
        raise errors.Unbatchable(errors.NotBatched.STREAMING)


def _without(text: places.Text, spans: Sequence[places.Span], names: Sequence[str]) -> tuple[bytes, ...]:
    """The text around values, without some members of the whole."""
    if not text.begins(text.whole, b"{"):
        return text.around(spans)
    members = text.members(text.whole)
    pieces = [b"{"]
    left = list(spans)
    for name, member in members.items():
        if name in names:
            continue
        if len(pieces) > 1 or pieces[-1] != b"{":
            pieces[-1] += b","
        at = member.start
        while left and left[0].start < member.stop:
            span = left.pop(0)
            pieces[-1] += text.text[at : span.start]
            pieces.append(b"")
            at = span.stop
        pieces[-1] += text.text[at : member.stop]
    pieces[-1] += b"}"
    return tuple(pieces)
