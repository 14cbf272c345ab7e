"""The predictor's answer to a batch, and each caller's share of it in the form that the caller asked for."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, json_rows, steps, v2
from carpool_sidecar.protocols.v2_http import cuts, declarations, framing, json_bodies, json_lists

LIST_NAME: Final = b"outputs"

_GROUP: Final = 128 * 1024  # bytes of rows that are looked at in one step

_END: Final = b"]}]}"  # of the last output's data, and of an answer in JSON

# KServe and MLServer write the batch's id, which no other answer has, behind these two.
_ID_BEHIND_NAMES: Final = re.compile(
    rb'\{("model_name": ?"[^"\\]*", ?(?:"model_version": ?(?:"[^"\\]*"|null), ?)?)"id": ?"[ !#-\[\]-~]*", ?'
)


class AnswerTemplate(json_bodies.Template):
    """An answer's text without its data, which are looked at closely.

    `others` are the members but outputs and id, each before a comma.
    """

    __slots__ = ("others",)

    def __init__(self, pieces: tuple[bytes, ...], outputs: tuple[declarations.Tensor, ...], others: bytes) -> None:
        super().__init__(pieces, outputs)
        self.others = others


def learn(rest: json_bodies.Rest) -> AnswerTemplate:
    """The template of an answer; raises `errors.BadRequest` for what is none."""
    outputs = tuple(_read_output(f"outputs[{number}]", each) for number, each in enumerate(rest.tensors))
    others = [declarations.member(name, raw) for name, raw in rest.members.items() if name != "id"]
    return AnswerTemplate(rest.pieces, outputs, b"".join(each + b"," for each in others))


def _read_output(place: str, members: declarations.Members) -> declarations.Tensor:
    if members.get("parameters") == b"null":  # they would be there twice beside a size
        members = {name: raw for name, raw in members.items() if name != "parameters"}
    given = declarations.read_tensor(place, members)
    if (given.written_size is None) is not given.has_data:
        raise errors.BadRequest(f"{place} has neither data nor binary_data_size, or both")
    return given.with_size(place)


# --- an answer's data -------------------------------------------------------------------------------------------


def _texts(
    text: v2.Data, listed: json_rows.Rows | None, rows: int, width: int
) -> steps.Steps[tuple[list[bytes], bool]]:
    """Each row of data in JSON, and whether rows are as written: items of the list, which may be `listed`."""
    found: list[bytes] = []
    if listed is not None and len(listed) == rows:
        group = max(1, rows * _GROUP // len(text))
        for start in range(0, rows, group):
            some = [bytes(each) for each in listed[start : start + group]]
            if not _are_rows(some, width):
                break
            found += some
            yield
        if len(found) == rows:
            return found, True
    elif text[1] in json_lists.BLANK_OR_LIST:
        found = json_lists.items(text)
        if len(found) == rows and _are_rows(found, width):
            return found, True
    return (yield from json_lists.rows(text, rows, width)), False


def _are_rows(texts: Sequence[bytes], width: int) -> bool:
    return all(text.startswith(b"[") and json_lists.count(text) == width for text in texts)


Outputs = tuple[AnswerTemplate, list[v2.Data], declarations.Ends, Sequence[json_rows.Rows | None]]
"""An answer taken apart: its outputs' data, which fill their shapes, and where rows of BYTES end.

Of data in JSON, in order, the items of large lists; empty if there are none.
"""


def outputs_of(
    splitter: json_bodies.BodySplitter[AnswerTemplate],
    response: interface.UpstreamResponse,
    check: Callable[[AnswerTemplate], None] = lambda _: None,
) -> steps.Steps[Outputs]:
    """What the predictor answered.

    What `check` raises comes before what is wrong with the data. Raises `errors.UpstreamBroken` for what is no answer.
    """
    body = response.body
    size = framing.json_size(response.headers, len(body))
    stop = len(body) if size is None else size
    text = _without_id(body, stop)
    end = stop if text is body else len(text)
    rows: Sequence[json_rows.Rows | None] = ()
    try:
        known = splitter.match(text, end)
        if known is None:
            template, _, listed, counts, rows = yield from splitter.split(text, end)
        else:
            template, _, listed, counts, _ = known
        check(template)
        outputs = template.tensors
        ends: declarations.Ends = {}
        if template.has_strings:
            ends = yield from declarations.string_ends(outputs, body, stop)
        filled = declarations.fill("output", outputs, body, stop, listed, counts, ends)
        left = len(body) - stop - (template.binary_size or 0)
        if left:
            raise errors.BadRequest(f"{left} bytes are left over after the outputs' data")
    except (errors.BadRequest, errors.Unbatchable) as error:
        raise errors.UpstreamBroken(f"the predictor's answer is no valid inference response: {error}") from None
    return template, filled, ends, rows


class Reader:
    """Reads answers of one model."""

    def __init__(self, on_uneven: Callable[[], None], splitter: json_bodies.BodySplitter[AnswerTemplate]) -> None:
        self._splitter = splitter
        self._on_uneven = on_uneven

    def read(
        self, slots: Sequence[Slot], response: interface.UpstreamResponse
    ) -> steps.Steps[interface.BatchPredictions]:
        """The rows of a batch.

        Raises `errors.UpstreamBroken` for what is no answer to the batch, and `errors.NotMergeable` if somebody's rows
        cannot be written as wanted.
        """
        rows = slots[-1][2]
        check = functools.partial(self._check_rows, rows)
        template, filled, ends, items = yield from outputs_of(self._splitter, response, check)
        columns: list[cuts.Column] = []
        place = 0
        for number, (what, data) in enumerate(zip(template.tensors, filled, strict=True)):
            texts: list[bytes] = []
            is_nested = False
            if what.size is None:
                listed = items[place] if items else None
                texts, is_nested = yield from _texts(data, listed, rows, what.width)
                place += 1
            columns.append(cuts.Column(what, data, rows, ends.get(number), texts, is_nested))
        result = Result(template, columns, rows)
        result.prepare(slots)
        return interface.BatchPredictions(LIST_NAME, result)

    def _check_rows(self, rows: int, template: AnswerTemplate) -> None:
        if not template.tensors:
            raise errors.UpstreamBroken("the predictor's answer has no outputs")
        for output in template.tensors:
            if not output.shape or output.shape[0] != rows:
                self._on_uneven()
                raise errors.Uneven(
                    f"the predictor's output {output.name!r} has shape {list(output.shape)}; its first dimension"
                    f" should be {rows}, as the batch's"
                )


def _without_id(body: bytes, stop: int) -> bytes:
    """An answer's text without an id among its members, for the cache to know the rest again."""
    found = _ID_BEHIND_NAMES.match(body, 0, stop)
    return body if found is None else b"".join((b"{", found[1], memoryview(body)[found.end() : stop]))


# --- each caller's share ----------------------------------------------------------------------------------------


class WantedOutputs:
    """Which outputs a caller wants in binary: by its request's parameter, the `default`, and by those of each output
    that it lists. None among `listed`, which are by `names`, is nothing said.

    It `is_clear` if all servers understand it alike: where the two contradict each other, some heed only the latter.
    """

    __slots__ = ("default", "is_clear", "is_json", "listed", "names")

    def __init__(self, default: bool, listed: Sequence[bool | None], names: Sequence[str]) -> None:
        self.default = default
        self.listed = listed
        self.names = names
        self.is_clear = not listed or not default or None not in listed
        self.is_json = not default and not any(listed)

    def is_binary(self, column: cuts.Column) -> bool:
        """Whether this output is; as the predictor understood it where that is not clear."""
        if not self.is_clear:
            return column.is_binary
        name = column.what.name
        return bool(self.listed[self.names.index(name)]) if name in self.names else self.default


class ResponseFormat(NamedTuple):
    """How one caller wants its answer: `opening` is its beginning, with the caller's id if it has one."""

    opening: bytes
    wanted: WantedOutputs

    @classmethod
    def of(cls, ident: bytes | None, wanted: WantedOutputs) -> ResponseFormat:
        """The format for a caller with this id, as it wrote it, or none."""
        return cls(b"{" if ident is None else b'{"id":%b,' % ident, wanted)

    def text(self, share: object) -> bytes | None:
        """The body that `render` makes of one row of one output, in JSON; None of anything else.

        Most answers are such, and most of what they cost is calls.
        """
        if type(share) is not Share or not self.wanted.is_json:
            return None
        result, start, stop = share
        rows = result.rows
        if rows is None or stop - start != 1:
            return None
        return b"%b%b%b%b" % (self.opening, result.before, rows[start], _END)

    def render(self, shares: Sequence[messages.Piece]) -> interface.RenderedResponse:
        """Raises `errors.UpstreamBroken` if shares of several batches do not make one tensor."""
        first = shares[0].predictions
        if type(first) is interface.WholeResponse:
            return _as_it_came(first.response)
        result, start, stop = first
        if len(shares) > 1 or not self.wanted.is_json or not result.is_json:
            return _render(self, [share.predictions for share in shares])
        columns, texts = result.columns, result.texts_around(stop - start)
        if len(columns) == 1:
            body = (self.opening, texts[0], columns[0].text(start, stop), texts[1])
            return tuple.__new__(interface.RenderedResponse, (framing.JSON, body))
        found = [self.opening]
        for text, column in zip(texts, columns, strict=False):
            found += (text, column.text(start, stop))
        found.append(texts[-1])
        return interface.RenderedResponse(framing.JSON, (b"".join(found),))


Slot = tuple[ResponseFormat, int, int]
"""How one caller wants its rows, and which of the batch's they are: from the second to before the third."""


class Result:
    """An answer to a batch: `columns` are its outputs with their data.

    If there is only one, and it is in JSON, `rows` are its rows, and `before` stands before the data of one of them.
    """

    # State: _texts, what stands around the data of answers in JSON, by their number of rows; what callers get in
    # binary, by what they want.
    __slots__ = ("_rows", "_texts", "_wants", "before", "columns", "is_json", "rows", "template")

    def __init__(self, template: AnswerTemplate, columns: Sequence[cuts.Column], rows: int) -> None:
        self.template = template
        self.columns = columns
        self.is_json = not any(column.is_binary for column in columns)
        self._rows = rows
        self._texts: dict[int, list[bytes]] = {}
        self._wants: dict[WantedOutputs, list[bool]] = {}
        self.rows = columns[0].texts if self.is_json and len(columns) == 1 else None
        self.before = b"" if self.rows is None else self.texts_around(1)[0]

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, which: slice, /) -> Share:
        return tuple.__new__(Share, (self, which.start, which.stop))  # there is one for every caller

    def prepare(self, slots: Sequence[Slot]) -> None:
        """Write what has to be converted for a caller, as only that can fail."""
        had = [column.is_binary for column in self.columns]
        as_it_is: WantedOutputs | None = None  # wanted by the caller before, as by most
        for place, ((_, wanted), start, stop) in enumerate(slots):
            if wanted is as_it_is:
                continue
            wants = self.wants(wanted)
            if wants == had:
                as_it_is = wanted
                continue
            try:
                for column, is_binary in zip(self.columns, wants, strict=True):
                    if is_binary is not column.is_binary:
                        column.convert(start, stop)
            except errors.NotMergeable as error:
                error.member = place
                raise

    def wants(self, wanted: WantedOutputs) -> list[bool]:
        """Which outputs a caller gets in binary."""
        found = self._wants.get(wanted)
        if found is None:
            found = self._wants[wanted] = list(map(wanted.is_binary, self.columns))
        return found

    def texts_around(self, rows: int) -> list[bytes]:
        """What stands before the data of each output, and at the end, in an answer in JSON."""
        found = self._texts.get(rows)
        if found is None:
            found = self._texts[rows] = []
            start = self.template.others + b'"outputs":['
            for column in self.columns:
                found.append(start + column.what.text.in_json(rows))
                start = b"]},"
            found.append(_END)
        return found


class Share(NamedTuple):
    """Rows `start` to `stop` (exclusive) of a result."""

    result: Result
    start: int
    stop: int


def _as_it_came(response: interface.UpstreamResponse) -> interface.RenderedResponse:
    kind = response.headers.get(b"content-type", b"application/json")
    size = response.headers.get(framing.HEADER_KEY)
    headers: interface.Headers = (("Content-Type", kind.decode("latin-1")),)
    if size is not None:
        headers += ((framing.HEADER, size.decode("latin-1")),)
    return interface.RenderedResponse(headers, (response.body,))


def _render(form: ResponseFormat, mine: Sequence[Share]) -> interface.RenderedResponse:
    """An answer with binary data in it, or of several shares."""
    result = mine[0].result
    rows = sum([share.stop - share.start for share in mine])
    if len(mine) > 1 and any(_differ(share.result.template, result.template) for share in mine):
        raise errors.UpstreamBroken("the predictor's answers to parts of the request do not go together")
    head = [form.opening, result.template.others, b'"outputs":[']
    tail: list[v2.Data] = []
    wants = result.wants(form.wanted)
    for number, column in enumerate(result.columns):
        if number:
            head.append(b",")
        if wants[number]:
            data = [share.result.columns[number].binary(share.start, share.stop) for share in mine]
            head.append(column.what.text.in_binary(rows, sum(map(len, data))))
            tail += data
        else:
            head += (column.what.text.in_json(rows), _text(mine, number), b"]}")
    head.append(b"]}")
    text = b"".join(head)
    return interface.RenderedResponse(framing.headers(len(text) if any(wants) else None), (text, *tail))


def _text(mine: Sequence[Share], number: int) -> bytes:
    if len(mine) == 1:
        return mine[0].result.columns[number].text(mine[0].start, mine[0].stop)
    texts = [share.result.columns[number].flat(share.start, share.stop) for share in mine]
    return b",".join(texts) if mine[0].result.columns[number].what.width else b""


def _differ(one: AnswerTemplate, other: AnswerTemplate) -> bool:
    if one is other:
        return False
    return [(each.name, each.datatype, each.shape[1:]) for each in one.tensors] != [
        (each.name, each.datatype, each.shape[1:]) for each in other.tensors
    ]
