"""Rerank requests as their rule describes them, and their answers made of scores: one dialect for each rule.

A predictor that takes pairs knows nothing of queries, of how many results are wanted, nor of an order. So all of that
is done here: documents are numbered from 0, the best comes first, of equal ones the earlier, and scores stay as the
predictor wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import incremental_scan, interface, json_rows, models, refusal_texts, steps
from carpool_sidecar.protocols.lists import answers, places, ranking, room, rules

MOST_PAIRS = 64 * 1024 * 1024
"""Bytes that a request may have as pairs: the query stands in each, so that they may be far more than the body."""

_KINDS = ("string", "object")
_MODEL = "model"
_MOST_DIGITS = 9
_NO_USAGE = {"prompt_tokens": 0, "total_tokens": 0}
_NOT_SO = (b"false", b"null", b"0", b'"false"', b'"0"', b'""', b"[]", b"{}")
_NULL = b"null"
_ROWS_A_STEP = 500
_USAGE = "usage"


class _Document(msgspec.Struct):
    """A document that is an object; whatever else it has is for people, but for images, which are not scored."""

    text: msgspec.Raw
    image: msgspec.Raw = msgspec.Raw(b"null")
    image_url: msgspec.Raw = msgspec.Raw(b"null")


_DOCUMENT = msgspec.json.Decoder(_Document)
_NAME = msgspec.json.Decoder(str)

T = TypeVar("T")


class Asked(NamedTuple):
    """A request: its query and the text of each of its documents as JSON strings, in their order.

    `model` is the name that it gives, empty if it gives none; `others` are the members that say more, as they were
    written.
    """

    rule: rules.Rule
    query: bytes
    texts: Sequence[bytes]
    model: str
    others: Mapping[str, bytes]
    form: Results

    def refuse(self, what: str, name: str) -> errors.BadMember:
        """An error that names the rule and the member that is at fault."""
        return _refused(self.rule, what, name)

    def room(self) -> steps.Steps[list[int]]:
        """How much of one call each pair takes up by the limits of the rule, in parts of `room.WHOLE`.

        The query takes its part in each of them.
        """
        count = len(self.texts)
        if not self.rule.has_room:
            return [0] * count
        (query,) = yield from room.taken(self.rule, [self.query], len(self.query))
        size = sum(map(len, self.texts)) + 4 * count - 1  # with the brackets and commas of each pair
        found = yield from room.taken(self.rule, self.texts, size)
        return [query + taken for taken in found]


def most_rows(rule: rules.Rule) -> int | None:
    """Rows of a call that a rule lets through; None for those built in, which speak of their dialects' own servers."""
    return None if rules.built_in().get(rule.name) == rule else rule.max_batch_size


def with_query(chosen: Sequence[rules.Rule]) -> tuple[rules.Rule, ...]:
    """The rules whose requests can become pairs."""
    return tuple([rule for rule in chosen if rule.query])


def read(chosen: Sequence[rules.Rule], body: bytes, max_rows: int) -> steps.Steps[Asked]:
    """A request by the first rule of which it has the list.

    Raises `errors.BadRequest` for all that no pairs can be made of, as `read_model` does for a name, and
    `errors.PayloadTooLarge` for more than
    `max_rows` documents, or more than `MOST_PAIRS` bytes of pairs.
    """
    return (yield from _told(body, _read(chosen, places.Text(body, max_rows), max_rows)))


def rule_of(chosen: Sequence[rules.Rule], body: bytes) -> steps.Steps[rules.Rule]:
    """The rule by which a body is read, whatever else is wrong with it; the first, if it has no rule's list."""
    try:
        found, *_ = yield from _find(chosen, places.Text(body))
    except (errors.BadRequest, errors.Unbatchable, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return chosen[0]
    return found


def read_model(body: bytes) -> str:
    """The name of the model that a body asks for.

    Raises `errors.BadRequest` if it names none, and `errors.ModelNotFound` for a name that no model has.
    """
    name = steps.at_once(_told(body, _read_model(places.Text(body))))
    if not name:
        raise errors.BadMember(
            "the member 'model' is missing: it names the model, unless --rerank-to does, as in v2:MODEL", _MODEL
        )
    return name


class Scores:
    """The scores of a batch from row `start` on: `values` to order by, None for none, and each as it was `written`.

    `counted` are each part's shares of what was counted for the whole call, by the first row of the part; they
    `are_prorated` if that is not what the part alone would have counted.
    """

    __slots__ = ("are_prorated", "counted", "start", "values", "written")

    def __init__(
        self,
        values: Sequence[float | None],
        written: Sequence[bytes],
        counted: Mapping[answers.Name, Mapping[int, int]],
        are_prorated: bool = False,
        start: int = 0,
    ) -> None:
        self.values = values
        self.written = written
        self.counted = counted
        self.are_prorated = are_prorated
        self.start = start

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, which: slice) -> Scores:
        start, stop, _ = which.indices(len(self.values))
        some = self.values[start:stop], self.written[start:stop]
        return Scores(*some, self.counted, self.are_prorated, self.start + start)


class Results:
    """Implements `interface.ResponseFormat`: scores as the results that a rule's clients read.

    `top` is how many are wanted, None for all; `documents` are to be returned with them, if they are to be.
    """

    def __init__(
        self, rule: rules.Rule, model: bytes | None, top: int | None, documents: Sequence[bytes | msgspec.Raw] | None
    ) -> None:
        self._rule = rule
        self._model = model
        self._top = top
        self._documents = documents

    def render(self, shares: Sequence[messages.Piece]) -> interface.RenderedResponse:
        """All documents of the request in one order, whatever calls they went in."""
        mine: list[Scores] = [share.predictions for share in shares]
        values = [value for scores in mine for value in scores.values]
        written = [score for scores in mine for score in scores.written]
        results = [self._result(place, written[place]) for place in ranking.best_first(values)[: self._top]]
        listed = b"[%b]" % b",".join(results)
        headers: interface.Headers = (("Content-Type", "application/json"),)
        if self._rule.shared and any(scores.are_prorated for scores in mine):
            headers += (answers.PRORATED,)
        around = b"".join(self._around(shares[0].batch_id, mine, listed))
        return interface.RenderedResponse(headers, (around,))

    def render_error(self, error: errors.CarpoolError, status: int) -> bytes:
        """The body of an error for the same client."""
        return self._rule.render_error(refusal_texts.text_of(error), status, error.reason)

    def _result(self, place: int, score: bytes) -> bytes:
        rule = self._rule
        found = b"{%b:%d,%b:%b" % (_word(rule.index or ""), place, _word(rule.rank_by[0]), score)
        if self._documents is not None:
            found += b"," + _nested(rule.return_as[0].names, bytes(self._documents[place]))
        return found + b"}"

    def _around(self, batch_id: str, mine: Sequence[Scores], listed: bytes) -> Iterator[bytes]:
        names = self._rule.answers[0].names
        if not names:
            yield listed
            return
        yield b'{"id":%b,' % _word(batch_id)
        if self._model is not None:
            yield b'"model":%b,' % self._model
        yield _nested(names, listed)
        if any(place.names[0] == _USAGE for place in self._rule.shared):
            yield b',"usage":%b' % msgspec.json.encode(_usage(mine) or _NO_USAGE)
        yield b"}"


# --- requests ---------------------------------------------------------------------------------------------------


def _told(body: bytes, work: steps.Steps[T]) -> steps.Steps[T]:
    """What these steps make of a body; raises `errors.BadRequest` where they find no JSON that can be read."""
    try:
        yield from json_rows.check_utf8(body)
        return (yield from work)
    except errors.Unbatchable:
        raise errors.BadRequest("the body has an object of too many members") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise json_rows.no_json(body, f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise errors.BadRequest("the body is nested too deeply") from None


def _find(chosen: Sequence[rules.Rule], text: places.Text) -> steps.Steps[tuple[rules.Rule, places.Place, places.Span]]:
    for rule in chosen:
        for place in rule.rows:
            spans = yield from text.find(place)
            if spans:
                return rule, place, spans[0]
    wanted = " or ".join(dict.fromkeys(place.text for rule in chosen for place in rule.rows))
    if not text.begins(text.whole, b"{"):
        raise json_rows.no_json(text.text, f"the body must be a JSON object with {wanted}")
    raise errors.BadMember(f"the member {wanted} is missing: it has the documents", wanted)


def _read(chosen: Sequence[rules.Rule], text: places.Text, max_rows: int) -> steps.Steps[Asked]:
    body = text.text
    rule, place, span = yield from _find(chosen, text)
    if not text.begins(span, b"["):
        raise _refused(rule, "is no list", place.text)
    documents = yield from incremental_scan.list_in_steps(body, body, span.start, span.stop, max_rows, span.scan)
    if not documents:
        raise _refused(rule, "is empty", place.text)
    asked, query = yield from _query(rule, text)
    _check_beside(rule, text, (place, asked))
    texts: list[bytes] = []
    for number, document in enumerate(documents):
        texts.append(_text_of(rule, place, number, bytes(document)))
        if not len(texts) % _ROWS_A_STEP:
            yield
    if len(query) * len(texts) + span.stop - span.start > MOST_PAIRS:
        raise errors.PayloadTooLarge(
            f"rule {rule.name!r}: {rule.query[0].text!r} stands in each of {len(texts)} pairs, which would have more "
            f"than {MOST_PAIRS} bytes"
        )
    members = {name: body[at.value : at.stop] for name, at in text.members(text.whole).items()}
    top, returned = (
        _top(rule, members),
        any(name == rules.ALWAYS or members.get(name, _NULL) not in _NOT_SO for name in rule.return_if),
    )
    model = members.get(_MODEL)
    own = {place.names[0], asked.names[0], _MODEL, *rule.top, *rule.return_if, *rule.ignore}
    others = {name: value for name, value in members.items() if name not in own}
    if sum(map(len, (query, *others.values()))) > interface.MOST_TEXT:
        raise errors.BadRequest(
            f"rule {rule.name!r}: the body has more than {interface.MOST_TEXT} bytes beside its list"
        )
    form = Results(rule, model, top, documents if returned else None)
    return Asked(rule, query, texts, _model(text), others, form)


def _query(rule: rules.Rule, text: places.Text) -> steps.Steps[tuple[places.Place, bytes]]:
    """Where the query was found, and what it is."""
    for place in rule.query:
        spans = yield from text.find(place)
        if spans and text.begins(spans[0], b'"'):
            return place, text.text[spans[0].start : spans[0].stop]
    what = "must be a text" if spans else "is missing: it is the text that documents are compared with"
    raise _refused(rule, what, rule.query[0].text)


def _check_beside(rule: rules.Rule, text: places.Text, taken: Sequence[places.Place]) -> None:
    """Raises `errors.BadMember` for what stands in an object of which only the query or the documents are taken."""
    for place in taken:
        span = text.whole
        for depth, name in enumerate(place.names):
            members = text.members(span)
            known = {each.names[depth] for each in taken if each.names[:depth] == place.names[:depth]}
            for other, at in members.items():
                if depth and other not in known and text.text[at.value : at.stop] != _NULL:
                    raise _refused(rule, f"has a member {other!r}, which no pairs can be made of", place.names[0])
            span = places.Span(members[name].value, members[name].stop)


def _text_of(rule: rules.Rule, place: places.Place, number: int, document: bytes) -> bytes:
    kinds = rule.kinds or _KINDS
    if document.startswith(b'"') and "string" in kinds:
        return document
    if document.startswith(b"{") and "object" in kinds:
        try:
            found = _DOCUMENT.decode(document)
        except msgspec.ValidationError:
            found = _Document(msgspec.Raw(_NULL))
        if bytes(found.image) != _NULL or bytes(found.image_url) != _NULL:
            raise _refused(rule, f"has an image in item {number}, of which no pairs are made", place.text)
        if (words := bytes(found.text)).startswith(b'"'):
            return words
        raise _refused(rule, f"has no 'text' in item {number}, which pairs are made of", place.text)
    raise _refused(rule, f"has in item {number} no {' or '.join(kinds)}", place.text)


def _top(rule: rules.Rule, members: Mapping[str, bytes]) -> int | None:
    given = {name: members[name] for name in rule.top if members.get(name, _NULL) != _NULL}
    if not given:
        return None
    name, value = next(iter(given.items()))
    found = ranking.whole(value[:_MOST_DIGITS] if value.isdigit() else value)  # so many digits are all rows in any case
    if found is None or len(given) > 1:
        raise _refused(rule, "must be a whole number from 1 on, said once", name)
    return found


def _read_model(text: places.Text) -> steps.Steps[str]:
    yield
    return _model(text)


def _model(text: places.Text) -> str:
    """The name of the model, empty if none is given."""
    if not text.begins(text.whole, b"{"):
        raise json_rows.no_json(text.text, "the body must be a JSON object")
    member = text.members(text.whole).get(_MODEL)
    written = _NULL if member is None else text.text[member.value : member.stop]
    if written == _NULL:
        return ""
    if not written.startswith(b'"'):
        raise errors.BadMember("'model' must be a text", _MODEL)
    return models.check_name(_NAME.decode(written))


def _refused(rule: rules.Rule, what: str, name: str) -> errors.BadMember:
    return errors.BadMember(f"rule {rule.name!r}: {name!r} {what}", name)


# --- answers ----------------------------------------------------------------------------------------------------


def _word(text: str) -> bytes:
    return msgspec.json.encode(text)


def _nested(names: Sequence[str], value: bytes) -> bytes:
    """The members, without the outermost braces, by which these names lead to a value.

    An object stands where its own last member would: a document that came as `{"text": …}` is returned as it came.
    """
    if len(names) > 1 and value.startswith(b"{"):
        names = names[:-1]
    for name in reversed(names[1:]):
        value = b"{%b:%b}" % (_word(name), value)
    return b"%b:%b" % (_word(names[0]), value)


def _usage(mine: Sequence[Scores]) -> Mapping[str, Any]:
    """The sums of what all calls counted for the request, in the form in which the predictor wrote it."""
    found: dict[str, Any] = {}
    for name in mine[0].counted if mine else ():
        if name[0] == _USAGE and len(name) > 1 and all(name in scores.counted for scores in mine):
            holder = found
            for each in name[1:-1]:
                holder = holder.setdefault(each, {})
            holder[name[-1]] = sum([scores.counted[name][scores.start] for scores in mine])
    return found
