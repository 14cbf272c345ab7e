"""The v2 protocol over HTTP: JSON, and Triton's binary tensor data extension. One codec for each model.

JSON is spliced and binary data are passed on as views. An input that came partly in JSON and partly in binary is sent
in binary. An output that at least one caller wants in binary is asked for in binary.
Sources: Open Inference Protocol, "Inference", and Triton's `extension_binary_data.md`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final, cast

import msgspec

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models, steps, v2
from carpool_sidecar.protocols.v2_http import answers, cuts, declarations, framing, json_bodies, json_lists, templates

# A request with more takes seconds to be looked through, and many times its size in memory.
_MOST_OBJECTS: Final = 64 * 1024

_LARGE: Final = 512 * 1024  # bytes of a body that is parsed in steps
_LITTLE: Final = 64 * 1024  # so much is joined rather than sent in pieces
_FAR: Final = 64  # brackets stand together at the beginning
_BLANK_OR_LIST: Final = frozenset(json_lists.BLANK_OR_LIST)


class Memory:
    """What is remembered of messages; models that share it share its limits, as callers choose models' names."""

    def __init__(self) -> None:
        self.requests = Reader()
        self.answers = json_bodies.BodySplitter("outputs", answers.learn)


class Codec:
    """One model's requests. `info` is what its predictor tells of it and may be replaced at any time."""

    def __init__(self, info: models.ModelInfo, on_uneven: Callable[[], None], memory: Memory | None = None) -> None:
        """`on_uneven` is told of outputs whose first dimension is not the batch's: the model cannot be batched."""
        self.info = info
        self.large = _LARGE
        memory = memory or Memory()
        self._answers = answers.Reader(on_uneven, memory.answers)
        self.parse = memory.requests.parse
        self.parse_in_steps = memory.requests.parse_in_steps

    @property
    def max_batch_size(self) -> int:
        return self.info.most_rows

    def merge(self, batch_id: str, target: str, parts: Sequence[messages.Part]) -> interface.UpstreamRequest:
        """See `interface.Codec`.

        Raises `errors.NotMergeable` for an input in JSON that has no equal in binary, where others sent theirs in that.
        """
        if len(parts) == 1:
            request, start, stop = parts[0]
            payload: Payload = request.payload
            if stop - start == payload.row_count:
                read = functools.partial(interface.read_whole, answers.LIST_NAME, payload.row_count)
                return interface.UpstreamRequest(target, framing.headers(payload.json_size), (payload.body,), read)
        headers, body, slots = _merge(batch_id, parts)
        in_steps = functools.partial(self._answers.read, slots)
        return interface.UpstreamRequest(target, headers, body, in_steps)


# --- parsing ----------------------------------------------------------------------------------------------------


class Payload(interface.Payload):
    """A parsed request. `data` are the inputs': JSON lists with their brackets, or binary.

    `ident` is the caller's id as written, if it is not the template's.
    """

    # State: by their numbers, the _columns that were cut or converted.
    __slots__ = ("_columns", "data", "json_size", "template")

    def __init__(
        self,
        template: templates.RequestTemplate,
        body: bytes,
        json_size: int | None,
        data: Sequence[v2.Data],
        ident: bytes | None,
    ) -> None:
        self.template = template
        self.key = template.signature.key
        self.row_count = template.rows
        self.body = body
        self.json_size = json_size
        self.data = data
        given = template.response_format
        self.response_format = given if ident is None else answers.ResponseFormat.of(ident, given.wanted)
        self._columns: dict[int, cuts.Column] | None = None

    def row_sizes(self, start: int, stop: int) -> Sequence[int]:
        """Bytes of the rows `start` to `stop` (exclusive); those of the whole request are shared out evenly."""
        size, left = divmod(len(self.body), self.row_count)
        return [size + 1 if row < left else size for row in range(start, stop)]

    def row_lengths(self, start: int, stop: int) -> Sequence[int]:
        """Elements of each of those rows, of all inputs together."""
        return [self.template.row_elements] * (stop - start)

    def column(self, number: int) -> cuts.Column:
        """An input, to be cut or converted."""
        if self._columns is None:
            self._columns = {}
        found = self._columns.get(number)
        if found is None:
            found = cuts.Column(self.template.tensors[number], self.data[number], self.row_count)
            self._columns[number] = found
        return found


class Reader:
    """Parses requests, of one model or of several alike."""

    # Small ones in JSON are nearly all like the last one.

    def __init__(self) -> None:
        self._splitter = json_bodies.BodySplitter("inputs", templates.learn, _MOST_OBJECTS)

    def parse(self, body: bytes, max_rows: int, json_size: int | None = None) -> Payload:
        """See `interface.Codec`."""
        stop = len(body) if json_size is None else json_size
        known = self._splitter.match(body, stop) if 0 < stop <= len(body) else None
        if known is None:
            return steps.at_once(self.parse_in_steps(body, max_rows, json_size))
        template, ident, data, counts, is_full = known
        if is_full and template.rows <= max_rows:
            return Payload(template, body, json_size, data, ident)
        ends = steps.at_once(declarations.string_ends(template.tensors, body, stop)) if template.has_strings else {}
        return _payload(template, ident, data, counts, ends, body, max_rows, json_size)

    def parse_in_steps(self, body: bytes, max_rows: int, json_size: int | None = None) -> steps.Steps[Payload]:
        """See `interface.Codec`."""
        stop = len(body)
        if json_size is not None:
            if not 0 <= json_size <= stop:
                raise errors.BadRequest(f"Inference-Header-Content-Length is {json_size}, the body has {stop} bytes")
            if json_size == 0:
                raise errors.Unbatchable(errors.NotBatched.MEMBERS)  # no JSON at all: Triton's raw binary request
            stop = json_size
        try:
            template, ident, data, counts, _ = yield from self._splitter.split(body, stop)
        except v2.Misfit as misfit:
            raise errors.Unbatchable(misfit.not_batched) from None
        ends = yield from declarations.string_ends(template.tensors, body, stop)
        return _payload(template, ident, data, counts, ends, body, max_rows, json_size)


def _payload(
    template: templates.RequestTemplate,
    ident: bytes | None,
    data: Sequence[v2.Data],
    counts: Sequence[int],
    ends: declarations.Ends,
    body: bytes,
    max_rows: int,
    json_size: int | None,
) -> Payload:
    """The payload of a request that was taken apart (`json_bodies.Parted`), if its data are what it says."""
    if template.rows > max_rows:
        raise errors.PayloadTooLarge(f"more than {max_rows} rows in one request")
    _check_data(template, body, json_size, data, counts)
    try:
        filled = declarations.fill("input", template.tensors, body, json_size or 0, data, counts, ends)
    except v2.Misfit as misfit:
        raise errors.Unbatchable(misfit.not_batched) from None
    return Payload(template, body, json_size, filled, ident)


def _check_data(
    template: templates.RequestTemplate,
    body: bytes,
    json_size: int | None,
    data: Sequence[v2.Data],
    counts: Sequence[int],
) -> None:
    """Whether binary data are as long as they claim to be, and those in JSON have no more strings than may be."""
    at, expected = json_size or 0, template.binary_size
    if expected is not None or json_size not in (None, len(body)):
        if json_size is None:
            raise errors.BadRequest("binary data need the header Inference-Header-Content-Length")
        if at + (expected or 0) != len(body):
            told = f"{len(body) - at} bytes after {at} bytes of JSON, the inputs' binary_data_size is {expected or 0}"
            raise errors.BadRequest(f"the body has {told}")
    for number, text in enumerate(data):
        if len(text) > v2.MOST_STRINGS and counts[number] < 0 and json_lists.has_strings(text, v2.MOST_STRINGS):
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)


# --- merging ----------------------------------------------------------------------------------------------------


def _merge(
    batch_id: str, parts: Sequence[messages.Part]
) -> tuple[interface.Headers, interface.Pieces, Sequence[answers.Slot]]:
    """Headers and body of one request for rows of several of one signature, and whose rows are where in its answer."""
    payloads: list[Payload] = [part.request.payload for part in parts]
    slots, rows = [], 0
    for payload, (_, start, stop) in zip(payloads, parts, strict=True):
        end = rows + stop - start
        slots.append((cast(answers.ResponseFormat, payload.response_format), rows, end))
        rows = end
    found = list(dict.fromkeys([payload.template for payload in payloads]))  # few: clients repeat themselves
    signature = found[0].signature
    head: list[v2.Data] = [b'{"id":%b,"inputs":[' % msgspec.json.encode(batch_id)]
    tail: list[v2.Data] = []
    for number, text in enumerate(signature.inputs):
        if number:
            head.append(b",")
        if all(template.tensors[number].size is None for template in found):
            head += (text.in_json(rows), *_spliced(number, payloads, parts, rows), b"]}")
        else:
            data = _in_binary(number, payloads, parts)
            head.append(text.in_binary(rows, sum(map(len, data))))
            tail += data
    head.append(b"]" + _question(signature, _combined([template.response_format.wanted for template in found])) + b"}")
    size = sum(map(len, head))
    if size < _LITTLE:
        head = [b"".join(head)]
    is_binary = any(template.binary_size is not None for template in found)
    return framing.headers(size if is_binary else None), head + tail, slots


def _in_binary(number: int, payloads: Sequence[Payload], parts: Sequence[messages.Part]) -> Sequence[v2.Data]:
    """The rows of an input of which some sent binary."""
    data: list[v2.Data] = []
    for place, (payload, (_, start, stop)) in enumerate(zip(payloads, parts, strict=True)):
        try:
            is_as_it_was = stop - start == payload.row_count and payload.template.tensors[number].size is not None
            data.append(payload.data[number] if is_as_it_was else payload.column(number).binary(start, stop))
        except errors.NotMergeable as error:
            error.member = place
            raise
    return data


def _spliced(number: int, payloads: Sequence[Payload], parts: Sequence[messages.Part], rows: int) -> Sequence[v2.Data]:
    """The elements, or rows, of an input that all sent in JSON, with commas between them."""
    if not payloads[0].template.tensors[number].width:
        return ()
    if rows == sum([payload.row_count for payload in payloads]) and _are_alike(
        data := [payload.data[number] for payload in payloads]
    ):
        return _joined([text[1:-1] for text in data])
    pairs = zip(payloads, parts, strict=True)
    return _joined([payload.column(number).text(start, stop) for payload, (_, start, stop) in pairs])


def _are_alike(data: Sequence[v2.Data]) -> bool:
    """Whether all lists are nested equally deep."""
    if _BLANK_OR_LIST.isdisjoint([text[1] for text in data]):
        return True
    return len({json_lists.depth(bytes(text[:_FAR])) for text in data}) == 1


def _joined(found: Sequence[v2.Data]) -> Sequence[v2.Data]:
    if sum(map(len, found)) < _LITTLE:
        return (b",".join(found),)
    pieces: list[v2.Data] = []
    for text in found:
        pieces += (b",", text)
    return pieces[1:]


def _combined(wanted: Sequence[answers.WantedOutputs]) -> answers.WantedOutputs:
    """What to ask for so that each can be given what it wants: binary, where one of them wants that."""
    first = wanted[0]
    if all(each.default is first.default and each.listed == first.listed for each in wanted):
        return first
    default = any(each.default for each in wanted)
    return answers.WantedOutputs(default, list(map(any, zip(*(each.listed for each in wanted), strict=True))), ())


def _question(signature: templates.BatchSignature, wanted: answers.WantedOutputs) -> bytes:
    """The members of a request that follow its inputs."""
    parameters = list(signature.parameters)
    if wanted.default:
        parameters.append(b'"binary_data_output":true')
    found = [b'"parameters":{%b}' % b",".join(parameters)] if parameters else []
    if signature.outputs is not None:
        listed = [
            _output(members, said, want, wanted.is_clear)
            for (members, said), want in zip(signature.outputs, wanted.listed, strict=True)
        ]
        found.append(b'"outputs":[%b]' % b",".join(listed))
    return b"".join(b"," + member for member in (*found, *signature.others))


def _output(members: bytes, said: Sequence[bytes], want: bool | None, is_clear: bool) -> bytes:
    if want or (want is not None and not is_clear):
        said = (*said, b'"binary_data":true' if want else b'"binary_data":false')
    return b"{%b%b}" % (members, b',"parameters":{%b}' % b",".join(said) if said else b"")
