"""The predictor's answer to a batch, and each caller's share of it in the caller's own words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface
from carpool_sidecar.protocols.v2_http import binary, columns, json_members, merging, requests, splitting, templates

MEMBER = b"outputs"

# KServe and MLServer write the batch's id, which no other answer has, behind these two.
_ID_BEHIND_NAMES = re.compile(
    rb'\{("model_name": ?"[^"\\]*", ?(?:"model_version": ?(?:"[^"\\]*"|null), ?)?)"id": ?"[ !#-\[\]-~]*", ?'
)


class Layout(NamedTuple):
    """An answer's text without its data. `others` are the members but outputs and id, each after a comma."""

    pieces: tuple[bytes, ...]
    outputs: tuple[columns.Output, ...]
    others: bytes
    numbers: int = 0  # what a predictor writes is looked at closely


def learn(rest: splitting.Rest) -> Layout:
    """The layout of an answer; raises `errors.BadRequest` for what is none."""
    outputs = tuple(_read_output(f"outputs[{number}]", dict(each)) for number, each in enumerate(rest.tensors))
    others = [json_members.member(name, bytes(raw)) for name, raw in rest.members.items() if name != "id"]
    return Layout(rest.pieces, outputs, b"".join(each + b"," for each in others))


def _read_output(place: str, members: splitting.Member) -> columns.Output:
    name, datatype, shape = json_members.tensor(place, members)
    parameters = json_members.parameters(members, f"{place}.")
    members.pop("parameters", None)  # null: it would be there twice beside a size
    size = parameters.pop("binary_data_size", None)
    if (size is None) is (members.pop("data", None) is None):
        raise errors.BadRequest(f"{place} has neither data nor binary_data_size, or both")
    width = math.prod(shape[1:])
    texts = [b'{"name":%b,"datatype":%b' % (msgspec.json.encode(name), msgspec.json.encode(datatype))]
    texts += [json_members.member(each, bytes(raw)) for each, raw in members.items()]
    return columns.Output(
        name, datatype, shape, width, None if size is None else json_members.size(size, place),
        b",".join([*texts, b'"shape":[']), b"".join(b",%d" % each for each in shape[1:]) + b"]",
        b",".join(json_members.member(each, raw) for each, raw in parameters.items()),
    )  # fmt: skip


class Reader:
    """Reads answers of one model."""

    def __init__(self, on_uneven: Callable[[], None], cache: splitting.Cache[Layout]) -> None:
        self._cache = cache
        self._on_uneven = on_uneven

    def read(self, slots: Sequence[merging.Slot], reply: interface.UpstreamResponse) -> interface.BatchPredictions:
        """The rows of a batch.

        Raises `errors.UpstreamBroken` for what is no answer to the batch, and `errors.NotMergeable` if somebody's rows
        cannot be written as wanted.
        """
        rows = slots[-1][2]
        size = binary.json_size(reply.headers, len(reply.body))
        stop = len(reply.body) if size is None else size
        text = _without_id(reply.body, stop)
        try:
            layout, _, data, _ = self._cache.split(text, stop if text is reply.body else len(text))
            self._check_rows(layout, rows)
            result = Result(layout, columns.read(layout.outputs, reply.body, stop, data, rows), rows)
        except (errors.BadRequest, errors.Unbatchable) as error:
            raise errors.UpstreamBroken(f"the predictor's answer is no valid inference response: {error}") from None
        result.prepare(slots)
        return interface.BatchPredictions(MEMBER, result)

    def _check_rows(self, layout: Layout, rows: int) -> None:
        if not layout.outputs:
            raise errors.UpstreamBroken("the predictor's answer has no outputs")
        for output in layout.outputs:
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


class Result:
    """An answer to a batch: `columns` are its outputs with their data."""

    # State: _plain, what stands around the data of answers in JSON, by their number of rows; _wants by layout.
    __slots__ = ("_plain", "_rows", "_wants", "columns", "is_json", "layout")

    def __init__(self, layout: Layout, found: Sequence[columns.Column], rows: int) -> None:
        self.layout = layout
        self.columns = found
        self.is_json = not any(column.is_binary for column in found)
        self._rows = rows
        self._plain: dict[int, list[bytes]] = {}
        self._wants: dict[templates.Layout, list[bool]] = {}

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, which: slice, /) -> Share:
        return tuple.__new__(Share, (self, which.start, which.stop))  # there is one for every caller

    def prepare(self, slots: Sequence[merging.Slot]) -> None:
        """Write what has to be converted for a caller, as only that can fail."""
        had = [column.is_binary for column in self.columns]
        for place, (form, start, stop) in enumerate(slots):
            wants = self.wants(form)
            if wants == had:
                continue
            try:
                for column, is_binary in zip(self.columns, wants, strict=True):
                    if is_binary is not column.is_binary:
                        column.convert(start, stop)
            except errors.NotMergeable as error:
                error.member = place
                raise

    def wants(self, form: templates.Form) -> list[bool]:
        """Which outputs a caller gets in binary; where it did not say clearly, as the predictor understood it."""
        found = self._wants.get(form.layout)
        if found is None:
            found = self._wants[form.layout] = [_wants_binary(form.layout, column) for column in self.columns]
        return found

    def plain(self, rows: int) -> list[bytes]:
        """What stands before the data of each output, and at the end, in an answer in JSON."""
        found = self._plain.get(rows)
        if found is None:
            found = self._plain[rows] = []
            start = self.layout.others + b'"outputs":['
            for column in self.columns:
                found.append(start + column.what.opening(rows))
                start = b"]},"
            found.append(b"]}]}")
        return found


class Share(NamedTuple):
    """Rows `start` to `stop` (exclusive) of a result."""

    result: Result
    start: int
    stop: int

    def render(self, form: templates.Form, shares: Sequence[messages.Piece]) -> interface.RenderedResponse:
        """As `codec.Form.render`."""
        if len(shares) > 1:
            return _render([share.predictions for share in shares], form)
        if not form.layout.is_json or not self.result.is_json:
            return _render([self], form)
        result, start, stop = self
        columns_, texts = result.columns, result.plain(stop - start)
        if len(columns_) == 1:
            body = (form.opening, texts[0], columns_[0].text(start, stop), texts[1])
            return tuple.__new__(interface.RenderedResponse, (binary.JSON, body))
        found = [form.opening]
        for text, column in zip(texts, columns_, strict=False):
            found += (text, column.text(start, stop))
        found.append(texts[-1])
        return interface.RenderedResponse(binary.JSON, (b"".join(found),))


def _render(mine: Sequence[Share], form: templates.Form) -> interface.RenderedResponse:
    """An answer with binary data in it, or of several shares."""
    result = mine[0].result
    rows = sum([share.stop - share.start for share in mine])
    if len(mine) > 1 and any(_differ(share.result.layout, result.layout) for share in mine):
        raise errors.UpstreamBroken("the predictor's answers to parts of the request do not go together")
    head = [form.opening, result.layout.others, b'"outputs":[']
    tail: list[requests.Data] = []
    wants = result.wants(form)
    for number, column in enumerate(result.columns):
        if number:
            head.append(b",")
        if wants[number]:
            data = [share.result.columns[number].binary(share.start, share.stop) for share in mine]
            head.append(column.what.binary(rows, sum(map(len, data))))
            tail += data
        else:
            head += (column.what.opening(rows), _text(mine, number), b"]}")
    head.append(b"]}")
    text = b"".join(head)
    return interface.RenderedResponse(binary.headers(len(text) if any(wants) else None), (text, *tail))


def _text(mine: Sequence[Share], number: int) -> bytes:
    if len(mine) == 1:
        return mine[0].result.columns[number].text(mine[0].start, mine[0].stop)
    texts = [share.result.columns[number].flat(share.start, share.stop) for share in mine]
    return b",".join(texts) if mine[0].result.columns[number].what.width else b""


def _differ(one: Layout, other: Layout) -> bool:
    if one is other:
        return False
    return [(each.name, each.datatype, each.shape[1:]) for each in one.outputs] != [
        (each.name, each.datatype, each.shape[1:]) for each in other.outputs
    ]


def _wants_binary(layout: templates.Layout, column: columns.Column) -> bool:
    ask, names = layout.ask, layout.kind.outputs
    if not ask.is_clear:
        return column.is_binary
    if ask.listed is not None and column.what.name in names:
        return bool(ask.listed[names.index(column.what.name)])
    return ask.default


class Verbatim:
    """The answer to a request that travelled whole and alone: as it came."""

    __slots__ = ("_reply", "_rows")

    def __init__(self, rows: int, reply: interface.UpstreamResponse) -> None:
        self._rows = rows
        self._reply = reply

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, which: slice, /) -> Verbatim:
        return self

    def render(self, form: templates.Form, shares: Sequence[messages.Piece]) -> interface.RenderedResponse:
        """As `codec.Form.render`."""
        kind = self._reply.headers.get(b"content-type", b"application/json")
        size = self._reply.headers.get(binary.HEADER_KEY)
        headers: interface.Headers = (("Content-Type", kind.decode("latin-1")),)
        if size is not None:
            headers += ((binary.HEADER, size.decode("latin-1")),)
        return interface.RenderedResponse(headers, (self._reply.body,))


def read_verbatim(rows: int, reply: interface.UpstreamResponse) -> interface.BatchPredictions:
    """An answer of so many rows that is not looked at."""
    return interface.BatchPredictions(MEMBER, Verbatim(rows, reply))
