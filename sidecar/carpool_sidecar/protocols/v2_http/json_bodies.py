"""Bodies of tensors in JSON, taken apart: the tensors' `data`, and all the rest.

One JSON value can replace any other, so a body without its data (the rest) says all about the body but the data.
Clients send the same rest over and over, so what was understood of it is kept as a template. Of a body with a known
rest only the data are looked at. A caller's `id` differs from request to request, so it is taken out as well where it
is the first member or the last.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from carpool_sidecar import caches, errors
from carpool_sidecar.protocols import beyond_json, json_members, json_rows, steps, v2
from carpool_sidecar.protocols.v2_http import json_lists

PLACEHOLDER: Final = b"0"
"""What stands in the rest for a tensor's data, which are a list."""

_MOST_KEPT_BYTES: Final = 4 * 1024 * 1024  # of templates; what is known of them takes about three times as much again
_MOST_SIBLINGS: Final = 8  # alike up to their first data, and tried one after the other
_MOST_OF_SIBLINGS: Final = _MOST_SIBLINGS * (v2.MOST_TEXT + caches.ENTRY)
# As most clients write it, and as it may be written; all but the last of no more than `v2.LONGEST_ID` bytes.
_ID_FIRST: Final = b'{"id":'
_PLAIN_ID: Final = re.compile(rb'\{"id": ?("[ !#-\[\]-~]{0,1022}"),')
_ID: Final = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"id"[ \t\r\n]*:[ \t\r\n]*("[ !#-\[\]-~]{0,1022}")[ \t\r\n]*,')
_LONG_ID: Final = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"id"[ \t\r\n]*:[ \t\r\n]*"[^"]{1023}')
_LAST_ID: Final = re.compile(rb',[ \t\r\n]*"id"[ \t\r\n]*:[ \t\r\n]*("[ !#-\[\]-~]*")[ \t\r\n]*\}[ \t\r\n]*\Z')
_LONGEST_LAST_ID: Final = 256
_BRACE: Final = re.compile(rb"[ \t\r\n]*\{")
_PLAIN_DATA: Final = re.compile(rb'(?<="data")[ \t\r\n]*:[^"]*')  # up to the next string

_DATA: Final = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*')
_SPACE: Final = b" \t\r\n"
_SPACE_AND_COLON: Final = b" \t\r\n:"
_CLOSING: Final = 0x5D  # ]

Members = dict[str, bytes]
"""An object's members, their values as they were written."""

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_SHAPE: Final = msgspec.json.Decoder(list[int])
MISSING: Final = b"null"
_MOST_DIGITS: Final = 18  # more bytes than any body has


class Template(Protocol):
    """What is known of a rest: its `pieces` stand before, between and after the data.

    `numbers` is how many there are if the data are those of a single tensor of numbers that need not be looked at more
    closely (`json_lists.is_flat`); 0 otherwise.
    """

    @property
    def pieces(self) -> tuple[bytes, ...]: ...

    @property
    def numbers(self) -> int: ...


T = TypeVar("T", bound=Template)


class Rest(NamedTuple):
    """A body without its data: its members, with `PLACEHOLDER` for each tensor's data.

    `members` are without the tensors; an `id` is only among them if it is neither first nor last, or no simple string.
    """

    members: Members
    tensors: list[Members]
    pieces: tuple[bytes, ...]


class _Latest(Generic[T]):
    """A rest with the data of one tensor, with what tells at a glance that a body is of it."""

    __slots__ = ("_last", "_outline", "_size", "begin", "first", "kept", "opening")

    def __init__(self, kept: T) -> None:
        self.kept = kept
        self.first, self._last = kept.pieces
        self.opening = b"{" + self.first
        self.begin = len(self.opening)
        self._size = len(self._last)
        # Only of few numbers, as of more the text is long as well, and `json_lists.look` is as quick.
        self._outline = json_lists.outline(kept.numbers) if kept.numbers < json_lists.WORTH_A_VIEW else b""

    def data(self, body: bytes, begin: int) -> bytes | None:
        """The data, which begin at a place in a body, if they are few, and as flat and full as they should be."""
        end = len(body) - self._size
        if end - begin >= json_lists.WORTH_A_VIEW or not body.endswith(self._last, begin):
            return None
        text = body[begin:end]
        return text if json_lists.is_small_and_flat(text, self._outline) else None


class BodySplitter(Generic[T]):
    """Takes bodies apart and remembers what `learn` made of their rests."""

    # State: templates by what stands before the first data; the _latest that was flat.
    def __init__(self, member: str, learn: Callable[[Rest], T], most_objects: float = math.inf) -> None:
        """A text that is new and has more than so many opening braces is `errors.Unbatchable`."""
        self._member = member
        self._learn = learn
        self._most_objects = most_objects
        self._decoder = msgspec.json.Decoder(
            msgspec.defstruct(
                "Body", [(member, list[dict[str, msgspec.Raw]])]
            )  # one pass, and no objects but for tensors
        )
        self._list = msgspec.json.Decoder(msgspec.defstruct("List", [(member, msgspec.Raw)]))
        self._known: caches.Cache[bytes, tuple[T, ...]] = caches.Cache(
            "v2_requests" if member == "inputs" else "v2_answers", _MOST_KEPT_BYTES, _MOST_OF_SIBLINGS
        )
        self._latest: _Latest[T] | None = None

    def match_last(self, body: bytes) -> tuple[T, bytes | None, bytes] | None:
        """What `split` finds if a body, all JSON, is like the one before but for its numbers and its id."""
        latest = self._latest
        if latest is None:
            return None
        if body.startswith(latest.opening):
            text = latest.data(body, latest.begin)
            return None if text is None else (latest.kept, None, text)
        ident, start = _ident(body, len(body))
        if not start or not body.startswith(latest.first, start):
            return None
        text = latest.data(body, start + latest.begin - 1)
        return None if text is None else (latest.kept, ident, text)

    def split(self, body: bytes, stop: int) -> steps.Steps[tuple[T, bytes | None, list[json_lists.Data]]]:
        """What is known of the rest, the id taken out (as written, None if none was), and the data.

        Only the body's first `stop` bytes are JSON. Raises `errors.BadRequest` for what is no JSON object with a list
        of objects of the member's name, or has a member twice, `v2.Misfit`, and `errors.Unbatchable`.
        """
        ident, start = _ident(body, stop)
        known = (yield from self._match_known(body, start, stop)) if start else None
        if known is not None:
            return known[0], ident, known[1]
        text = body if stop == len(body) else body[:stop]
        _check_id(text)
        found, ident, start = _ID.match(text), None, 1
        if found:
            ident, start = found[1], found.end()
        elif last := _LAST_ID.search(text, max(0, len(text) - _LONGEST_LAST_ID)):
            text, ident = text[: last.start()] + b"}", last[1]
        if found or text.startswith(b"{"):
            known = yield from self._match_known(text, start, len(text))
            if known is not None:
                return known[0], ident, known[1]
        return self._learn_from(text, ident, start if found else _start(text))

    def _match_known(self, body: bytes, start: int, stop: int) -> steps.Steps[tuple[T, list[json_lists.Data]] | None]:
        for kept in self._begun(body, start, stop):
            found = yield from _fit(kept.pieces, kept.numbers, body, start, stop)
            if found is not None:
                if kept.numbers and found[0].elements == kept.numbers:
                    self._latest = _Latest(kept)
                return kept, found
        return None

    def _begun(self, body: bytes, start: int, stop: int) -> tuple[T, ...]:
        """The templates of bodies that have the same text before their first data."""
        before = body.find(b'"data":', start, stop)
        end = before if before >= 0 else stop
        return self._known.get(body[start:end], ()) if end - start <= v2.MOST_TEXT else ()

    def _learn_from(
        self, text: bytes, ident: bytes | None, start: int
    ) -> tuple[T, bytes | None, list[json_lists.Data]]:
        """The same for a text that is new."""
        try:
            return self._learn_masked(text, text, ident, start)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            flaw: Exception = error
        mask = None if isinstance(flaw, msgspec.ValidationError | RecursionError) else _masked(text)
        if mask is not None:
            try:
                return self._learn_masked(text, mask, ident, start)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                flaw = error if isinstance(error, msgspec.ValidationError) else flaw
        raise _refusal(text, flaw)

    def _learn_masked(
        self, text: bytes, mask: bytes, ident: bytes | None, start: int
    ) -> tuple[T, bytes | None, list[json_lists.Data]]:
        """The same; `mask` is JSON of the same size for a text that is none, else the text itself."""
        objects = text.count(b"{")
        if objects > self._most_objects or (objects > v2.MOST_TENSORS and not self._has_few(mask)):
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
        if not text.isascii():
            json_rows.check_utf8(text)
        found = _find(mask, getattr(self._decoder.decode(mask), self._member))
        if mask is not text and not all(json_lists.is_list(text[span[0] : span[1]]) for span in found):
            raise msgspec.DecodeError("the data are no JSON")
        edges = [0, *(edge for span in found for edge in span), len(text)]
        pieces = [text[edges[at] : edges[at + 1]] for at in range(0, len(edges), 2)]
        if sum(map(len, pieces)) > v2.MOST_TEXT:
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
        whole = PLACEHOLDER.join(pieces)
        json.loads(whole, object_pairs_hook=_unique, parse_int=str, parse_float=str)
        members = object_of(whole)
        tensors = list(map(object_of, json_lists.items(members.pop(self._member))))
        if any(tensor["data"] != PLACEHOLDER for tensor in tensors if "data" in tensor):
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)  # something else named `data` was taken for a tensor's
        if _ID.match(text):
            del members["id"]
        elif ident is not None and "id" in members:
            raise errors.BadRequest("duplicate member 'id'")
        pieces[0] = pieces[0][start:]
        kept = self._learn(Rest(members, tensors, tuple(pieces)))
        if "id" not in members:
            self._keep(kept)
        return kept, ident, [json_lists.Data(json_lists.data_at(text, *span)) for span in found]

    def _has_few(self, text: bytes) -> bool:
        """Whether there are no more tensors than may be, found before an object is made of each."""
        listed = bytes(getattr(self._list.decode(text), self._member))
        view, at = memoryview(listed), 0
        if not listed.startswith(b"[") or listed[1:].lstrip(_SPACE).startswith(b"]"):
            return True
        for _ in range(v2.MOST_TENSORS):
            at = json_members.end_of_value(view, at + 1)
            while listed[at] in _SPACE:
                at += 1
            if listed[at] == _CLOSING:
                return True
        return False

    def _keep(self, kept: T) -> None:
        first = kept.pieces[0]
        stop = first.find(b'"data":')
        key = first[:stop] if stop >= 0 else first
        before = self._known.get(key, ())
        if all(each.pieces != kept.pieces for each in before):
            siblings = (kept, *before[: _MOST_SIBLINGS - 1])
            self._known.put(key, siblings, sum([sum(map(len, each.pieces), caches.ENTRY) for each in siblings]))


def _ident(body: bytes, stop: int) -> tuple[bytes | None, int]:
    """The id that a body begins with, as written, and where the rest begins; 0 if it is not written as most are."""
    if body.startswith(_ID_FIRST):
        found = _PLAIN_ID.match(body, 0, stop)
        if found is not None:
            return found[1], found.end()
        _check_id(body)
    return None, 1 if body.startswith(b"{") else 0


def _masked(text: bytes) -> bytes | None:
    """JSON of the same size for a text with half characters, or with NaN or infinity in its data; else None.

    Those are no JSON, but what Triton, and Python's json, take and write.
    """
    found = beyond_json.masked(text, with_words=False) or text
    found = _PLAIN_DATA.sub(lambda data: json_lists.mask_non_finite(data[0]), found)
    return None if found == text else found


def _refusal(text: bytes, flaw: Exception) -> errors.BadRequest:
    if isinstance(flaw, RecursionError):
        return errors.BadRequest("the body is nested too deeply")
    if isinstance(flaw, msgspec.ValidationError):
        return errors.BadRequest(f"the body is no v2 inference message: {flaw}")
    return json_rows.no_json(text, str(flaw))


def _check_id(text: bytes) -> None:
    if _LONG_ID.match(text):
        raise errors.Unbatchable(errors.NotBatched.MEMBERS)


def _start(piece: bytes) -> int:
    found = _BRACE.match(piece)
    return found.end() if found else 0


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise errors.BadRequest(f"duplicate member {twice!r}")


# --- data -------------------------------------------------------------------------------------------------------


def _fit(
    pieces: tuple[bytes, ...], numbers: int, body: bytes, start: int, stop: int
) -> steps.Steps[list[json_lists.Data] | None]:
    """The data if all else of the body is these pieces, and the data are JSON lists; None otherwise."""
    at, end = start + len(pieces[0]), stop - len(pieces[-1])
    if not body.startswith(pieces[0], start) or not body.endswith(pieces[-1], start, stop):
        return None
    if len(pieces) == 1:
        return [] if at == stop else None
    found: list[json_lists.Data] = []
    for piece in pieces[1:]:
        edge = body.find(piece, at, end) if len(found) < len(pieces) - 2 else end
        data = (yield from json_lists.look(body, at, edge, numbers)) if edge >= at else None
        if data is None:
            return None
        found.append(data)
        at = edge + len(piece)
    return found


def _find(text: bytes, tensors: list[dict[str, msgspec.Raw]]) -> list[tuple[int, int]]:
    """Where each tensor's data are; all that is known of them is what they are.

    Raises `v2.Misfit` for data that are no list, and `errors.Unbatchable` for a name written in another way.
    """
    spans, at = [], 0
    for tensor in tensors:
        raw = tensor.get("data")
        if raw is None:
            continue
        data = bytes(raw)
        if not data.startswith(b"["):
            raise v2.Misfit(f"'data' must be a list, not {data[:40].decode(errors='replace')}")
        while True:
            found = _DATA.search(text, at)
            if found is None:
                raise errors.Unbatchable(errors.NotBatched.MEMBERS)
            at = found.end()
            if text.startswith(data, at):
                break
        spans.append((at, at + len(data)))
        at += len(data)
    return spans


# --- members, read one by one -----------------------------------------------------------------------------------


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

    def with_size(self, place: str) -> Tensor:
        """Raises `errors.BadRequest` for a size that is none."""
        raw = self.written_size
        if raw is None:
            return self
        if not raw.isdigit() or len(raw) > _MOST_DIGITS:
            raise errors.BadRequest(f"{place}.binary_data_size must be a number of bytes, not {raw.decode()[:40]}")
        return self._replace(size=int(raw))


def fill(
    noun: str, tensors: Sequence[Tensor], body: bytes, at: int, listed: Sequence[json_lists.Data]
) -> steps.Steps[list[tuple[v2.Data, Sequence[int] | None]]]:
    """Each tensor's data, and for BYTES in binary where its rows end; what is in binary begins at a place in the body.

    Raises `v2.Misfit` for data that do not fill their shape, and `errors.Unbatchable` for those nested too deeply.
    """
    found: list[tuple[v2.Data, Sequence[int] | None]] = []
    lists, view = iter(listed), memoryview(body)
    for what in tensors:
        ends: Sequence[int] | None = None
        if what.size is None:
            given = next(lists)
            data, count = given.text, given.count_elements()
            is_full, told = count == what.elements, f"'data' has {count}"
        else:
            data = view[at : at + what.size]
            at += what.size
            is_full, ends = yield from v2.fills(data, what.datatype, what.shape[0] if what.shape else 1, what.width)
            told = f"there are {what.size} bytes"
        if not is_full:
            shape = f"shape {list(what.shape)} of {what.datatype} has {what.elements} elements"
            raise v2.Misfit(f"{noun} {what.name!r}: {shape}, {told}")
        found.append((data, ends))
    return found


def object_of(text: bytes) -> Members:
    """An object's members; raises `msgspec.DecodeError` for what is none."""
    try:
        return {name: bytes(raw) for name, raw in _OBJECT.decode(text).items()}
    except msgspec.DecodeError:
        mask = beyond_json.masked(text, with_words=False)
        if mask is None:
            raise
    places = json_members.find(mask, last_counts=True).values()
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
