"""Several callers' requests as one: their tensors' rows behind each other, and one question for outputs.

JSON is spliced and binary data are passed on as views. An input that some sent in JSON and some in binary is sent in
binary, and so is asked for an output that some want so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface
from carpool_sidecar.protocols.v2_http import binary, json_lists, requested_outputs, requests, templates

_BLANK_OR_LIST = b"[ \t\r\n"
_LITTLE = 64 * 1024  # so much is joined rather than sent in pieces
_FAR = 64  # brackets stand together at the beginning


Slot = tuple[templates.Form, int, int]
"""How one caller wants its rows, and which of the batch's they are: from the second to before the third."""


class Call(NamedTuple):
    """The one request: its headers and body, and whose rows are where in the answer."""

    headers: interface.Headers
    body: interface.Pieces
    slots: Sequence[Slot]


def merge(batch_id: str, parts: Sequence[messages.Part]) -> Call:
    """One request for rows of one or more requests of one kind, with the batch's id as its own.

    Raises `errors.NotMergeable` for an input in JSON that has no equal in binary, where others sent theirs in that.
    """
    payloads: list[requests.Payload] = [part.request.payload for part in parts]
    slots, rows = [], 0
    for payload, (_, start, stop) in zip(payloads, parts, strict=True):
        end = rows + stop - start
        slots.append((payload.response_format, rows, end))
        rows = end
    found = list(dict.fromkeys([payload.layout for payload in payloads]))  # few: clients repeat themselves
    head: list[requests.Data] = [b'{"id":%b,"inputs":[' % msgspec.json.encode(batch_id)]
    tail: list[requests.Data] = []
    for number, text in enumerate(found[0].kind.inputs):
        head.append(b"%b%b%d" % (b"," if number else b"", text.head, rows))
        if all(layout.inputs[number].size is None for layout in found):
            head += (text.json, *_spliced(number, payloads, parts, rows), b"]}")
        else:
            data = _binary(number, payloads, parts)
            head.append(b"%b%d}}" % (text.binary, sum(map(len, data))))
            tail += data
    head.append(b"]" + question(found[0].kind, combined([layout.ask for layout in found])) + b"}")
    size = sum(map(len, head))
    if size < _LITTLE:
        head = [b"".join(head)]
    is_binary = any(layout.binary_size is not None for layout in found)
    return Call(binary.headers(size if is_binary else None), head + tail, slots)


def _binary(
    number: int, payloads: Sequence[requests.Payload], parts: Sequence[messages.Part]
) -> Sequence[requests.Data]:
    """The rows of an input of which some sent binary."""
    data: list[requests.Data] = []
    for place, (payload, (_, start, stop)) in enumerate(_pairs(payloads, parts)):
        try:
            data.append(payload.binary_rows(number, start, stop))
        except errors.NotMergeable as error:
            error.member = place
            raise
    return data


def combined(wanted: Sequence[requested_outputs.Ask]) -> requested_outputs.Ask:
    """What to ask for so that each can be given its due: binary, where somebody wants that."""
    first = wanted[0]
    if all(ask is first or ask == first for ask in wanted):
        return first
    default = any(ask.default for ask in wanted)
    if first.listed is None:
        return requested_outputs.Ask(default, None)
    return requested_outputs.Ask(default, tuple(map(any, zip(*(ask.listed or () for ask in wanted), strict=True))))


def question(kind: templates.Kind, ask: requested_outputs.Ask) -> bytes:
    """The members of a request that follow its inputs."""
    parameters = list(kind.parameters)
    if ask.default:
        parameters.append(b'"binary_data_output":true')
    found = [b'"parameters":{%b}' % b",".join(parameters)] if parameters else []
    if kind.output_members is not None:
        wants = ask.listed or (None,) * len(kind.output_members)
        listed = [
            _output(members, said, want, ask.is_clear)
            for (members, said), want in zip(kind.output_members, wants, strict=True)
        ]
        found.append(b'"outputs":[%b]' % b",".join(listed))
    return b"".join(b"," + member for member in (*found, *kind.others))


def _output(members: bytes, said: Sequence[bytes], want: bool | None, is_clear: bool) -> bytes:
    if want or (want is not None and not is_clear):
        said = (*said, b'"binary_data":true' if want else b'"binary_data":false')
    return b"{%b%b}" % (members, b',"parameters":{%b}' % b",".join(said) if said else b"")


def _spliced(
    number: int, payloads: Sequence[requests.Payload], parts: Sequence[messages.Part], rows: int
) -> Sequence[requests.Data]:
    """The elements, or rows, of an input that all sent in JSON, with commas between them."""
    if not payloads[0].layout.inputs[number].width:
        return ()
    if rows == sum([payload.row_count for payload in payloads]) and _are_alike(
        data := [payload.data[number] for payload in payloads]
    ):
        return _joined([text[1:-1] for text in data])
    return _joined([payload.json_rows(number, start, stop) for payload, (_, start, stop) in _pairs(payloads, parts)])


def _are_alike(data: Sequence[requests.Data]) -> bool:
    """Whether all lists are nested equally deep."""
    if all(text[1] not in _BLANK_OR_LIST for text in data):
        return True
    return len({json_lists.depth(bytes(text[:_FAR])) for text in data}) == 1


def _joined(found: Sequence[requests.Data]) -> Sequence[requests.Data]:
    if sum(map(len, found)) < _LITTLE:
        return (b",".join(found),)
    pieces: list[requests.Data] = []
    for text in found:
        pieces += (b",", text)
    return pieces[1:]


def _pairs(
    payloads: Sequence[requests.Payload], parts: Sequence[messages.Part]
) -> Iterator[tuple[requests.Payload, messages.Part]]:
    return zip(payloads, parts, strict=True)
