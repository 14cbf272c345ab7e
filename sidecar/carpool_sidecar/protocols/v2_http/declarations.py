"""Tensors as v2 messages declare them in JSON: names, shapes, parameters, and whether their data are as much as that.

Nothing is read but what decides something; all else is kept as it was written, for the call and the answers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import beyond_json, json_members, steps, v2
from carpool_sidecar.protocols.v2_http import json_lists

_SPACE_AND_COLON: Final = b" \t\r\n:"

Members = dict[str, bytes]
"""An object's members, their values as they were written."""

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_SHAPE: Final = msgspec.json.Decoder(list[int])
MISSING: Final = b"null"
_MOST_DIGITS: Final = 18  # more bytes than any body has


class TensorText(NamedTuple):
    """A tensor as JSON: the number of its rows stands between `head` and `tail`; `said` are its parameters."""

    head: bytes
    tail: bytes
    said: bytes

    def in_json(self, rows: int) -> bytes:
        """The tensor up to the elements of its data."""
        said = b',"parameters":{%b}' % self.said if self.said else b""
        return b'%b%d%b%b,"data":[' % (self.head, rows, self.tail, said)

    def in_binary(self, rows: int, size: int) -> bytes:
        """The tensor with so many bytes of data in binary."""
        said = self.said + b"," if self.said else b""
        return b'%b%d%b,"parameters":{%b"binary_data_size":%d}}' % (self.head, rows, self.tail, said, size)


class Tensor(NamedTuple):
    """A tensor as it was written, but for its data: `parameters` are their names, `width` elements are in a row.

    `written_size` is its `binary_data_size`; `size` the same once it was read (`with_size`), None for data in JSON.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: int
    width: int
    parameters: tuple[str, ...]
    written_size: bytes | None
    has_data: bool
    text: TensorText
    size: int | None = None

    @property
    def rows(self) -> int:
        """Its first dimension; 1 where there is none."""
        return self.shape[0] if self.shape else 1

    def with_size(self, place: str) -> Tensor:
        """Raises `errors.BadRequest` for a size that is none."""
        raw = self.written_size
        if raw is None:
            return self
        if not raw.isdigit() or len(raw) > _MOST_DIGITS:
            raise errors.BadRequest(f"{place}.binary_data_size must be a number of bytes, not {raw.decode()[:40]}")
        return self._replace(size=int(raw))


Ends = dict[int, Sequence[int] | None]
"""By a tensor's number: where its rows of BYTES in binary end (`v2.row_ends`)."""


def string_ends(tensors: Sequence[Tensor], body: bytes, at: int) -> steps.Steps[Ends]:
    """Those of all tensors of BYTES in binary, of which the first begins at a place in the body."""
    found: Ends = {}
    view = memoryview(body)
    for number, what in enumerate(tensors):
        if what.size is not None:
            if what.datatype == v2.BYTES:
                found[number] = yield from v2.row_ends(view[at : at + what.size], what.rows, what.width)
            at += what.size
    return found


def fill(
    noun: str,
    tensors: Sequence[Tensor],
    body: bytes,
    at: int,
    listed: Sequence[v2.Data],
    counts: Sequence[int],
    ends: Ends,
) -> list[v2.Data]:
    """Each tensor's data; what is in binary begins at a place in the body.

    `listed` are those in JSON, with `counts` of their elements, negative for those that are not counted yet. Raises
    `v2.Misfit` for data that do not fill their shape, and `errors.Unbatchable` for those nested too deeply.
    """
    found: list[v2.Data] = []
    view, place = memoryview(body), 0
    for number, what in enumerate(tensors):
        count = -1
        if what.size is None:
            data, count = listed[place], counts[place]
            place += 1
            if count < 0:
                count = json_lists.count(data)
            is_full = count == what.elements
        else:
            data = view[at : at + what.size]
            at += what.size
            if what.datatype == v2.BYTES:
                is_full = ends[number] is not None
            else:
                kind = v2.DATATYPES.get(what.datatype)
                is_full = kind is not None and len(data) == what.elements * (kind.size or 0)
        if not is_full:
            told = f"there are {what.size} bytes" if count < 0 else f"'data' has {count}"
            shape = f"shape {list(what.shape)} of {what.datatype} has {what.elements} elements"
            raise v2.Misfit(f"{noun} {what.name!r}: {shape}, {told}")
        found.append(data)
    return found


def object_of(text: bytes) -> Members:
    """An object's members; raises `msgspec.DecodeError` for what is none."""
    try:
        return {name: bytes(raw) for name, raw in _OBJECT.decode(text).items()}
    except msgspec.DecodeError:
        mask = steps.at_once(beyond_json.masked(text, with_words=False))
        if mask is None:
            raise
    places = steps.at_once(json_members.find(mask, last_counts=True)).values()
    return {json.loads(text[at.start : at.value].rstrip(_SPACE_AND_COLON)): text[at.value : at.stop] for at in places}


def read_tensor(place: str, written: Members) -> Tensor:
    """Raises `errors.BadRequest` as all functions here do, and `v2.Misfit` for a shape."""
    members = dict(written)
    name = read_text(members.pop("name", MISSING), f"{place}.name")
    datatype = read_text(members.pop("datatype", MISSING), f"{place}.datatype")
    shape = _shape(members.pop("shape", MISSING), f"{place}.shape")
    parameters = read_parameters(members, f"{place}.")
    names = tuple(parameters)
    size = parameters.pop("binary_data_size", None)
    has_data = members.pop("data", None) is not None
    texts = [b'{"name":%b,"datatype":%b' % (write_text(name), write_text(datatype))]
    texts += [member(each, raw) for each, raw in members.items()]
    said = b",".join(member(each, raw) for each, raw in parameters.items())
    tail = b"".join(b",%d" % each for each in shape[1:]) + b"]"
    text = TensorText(b",".join([*texts, b'"shape":[']), tail, said)
    return Tensor(name, datatype, shape, math.prod(shape), math.prod(shape[1:]), names, size, has_data, text)


def read_text(raw: bytes, place: str) -> str:
    """A string; half characters in it are lone surrogates."""
    try:
        return _TEXT.decode(raw)
    except msgspec.ValidationError:
        raise errors.BadRequest(f"{place} must be a string") from None
    except msgspec.DecodeError:
        return str(json.loads(raw))


def write_text(text: str) -> bytes:
    """A string that was read, as JSON."""
    try:
        return msgspec.json.encode(text)
    except UnicodeEncodeError:
        return json.dumps(text).encode()


def read_parameters(members: Members, place: str) -> Members:
    """The members of the object `parameters`; it is taken out of the others."""
    raw = take(members, "parameters")
    if raw is None:
        return {}
    try:
        return object_of(raw)
    except msgspec.MsgspecError:
        raise errors.BadRequest(f"{place}parameters must be an object") from None


def take(members: Members, name: str) -> bytes | None:
    """Take a member out; one that is null stays, as something that is merely written along."""
    found = members.get(name)
    if found is None or found == b"null":
        return None
    del members[name]
    return found


def member(name: str, raw: bytes) -> bytes:
    """A member of an object, as JSON."""
    return b"%b:%b" % (write_text(name), raw)


def _shape(raw: bytes, place: str) -> tuple[int, ...]:
    try:
        shape = tuple(_SHAPE.decode(raw))
    except msgspec.MsgspecError:
        raise v2.Misfit(f"{place} must be a list of whole numbers") from None
    v2.check_shape(place, shape)
    return shape
