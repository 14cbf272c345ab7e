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
from collections.abc import Callable
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
_WORTH_A_VIEW: Final = 64 * 1024  # from here on a view costs less than a copy

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


class LargeBody(NamedTuple, Generic[T]):
    """What `BodySplitter.split_in_steps` found: a body of one tensor, whose data are a valid JSON list."""

    kept: T
    ident: bytes | None
    data: v2.Data
    looked: json_lists.Looked


class _Latest(Generic[T]):
    """A rest with the data of one tensor, with what tells at a glance that a body is of it."""

    __slots__ = ("_last", "_outline", "_size", "begin", "first", "kept", "opening")

    def __init__(self, kept: T) -> None:
        self.kept = kept
        self.first, self._last = kept.pieces
        self.opening = b"{" + self.first
        self.begin = len(self.opening)
        self._size = len(self._last)
        # A longer one takes much memory, and little time to make beside that for its text, which is never short then.
        self._outline = json_lists.outline(kept.numbers) if kept.numbers < _WORTH_A_VIEW else b""

    def data(self, body: bytes, begin: int, stop: int) -> v2.Data | None:
        """The data, which begin at a place in a body, if they are as flat and full as they should be."""
        if not body.endswith(self._last, begin, stop):
            return None
        end = stop - self._size
        if end - begin < _WORTH_A_VIEW:
            text = body[begin:end]
            return text if json_lists.is_flat(text, self._outline) else None
        view = memoryview(body)[begin:end]
        return view if json_lists.is_flat(view, self._outline or json_lists.outline(self.kept.numbers)) else None

    def data_in_steps(self, body: bytes) -> steps.Steps[v2.Data | None]:
        """The same for a large body that begins like this."""
        if not body.endswith(self._last):
            return None
        text = data_at(body, self.begin, len(body) - self._size)
        outlined = self._outline or json_lists.outline(self.kept.numbers)
        return text if (yield from json_lists.is_flat_in_steps(text, outlined)) else None


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

    def match_last(self, body: bytes) -> tuple[T, v2.Data] | None:
        """What `split` finds if all of the body is like the one before, without an id; the data are full then."""
        latest = self._latest
        if latest is None or not body.startswith(latest.opening):
            return None
        text = latest.data(body, latest.begin, len(body))
        return None if text is None else (latest.kept, text)

    def match_last_in_steps(self, body: bytes) -> steps.Steps[tuple[T, v2.Data] | None]:
        """The same for a large body."""
        latest = self._latest
        if latest is None or not body.startswith(latest.opening):
            return None
        text = yield from latest.data_in_steps(body)
        return None if text is None else (latest.kept, text)

    def split_in_steps(self, body: bytes) -> steps.Steps[LargeBody[T] | None]:
        """What `split` finds of a large body that is all JSON; None where that has to be found at once."""
        ident, start = _ident(body, len(body))
        for kept in self._begun(body, start, len(body)) if start else ():
            pieces = kept.pieces
            if len(pieces) != 2 or not body.startswith(pieces[0], start) or not body.endswith(pieces[1], start):
                continue
            begin, end = start + len(pieces[0]), len(body) - len(pieces[1])
            data = data_at(body, begin, end)
            if 0 < kept.numbers < len(data):
                is_flat = yield from json_lists.is_flat_in_steps(data, json_lists.outline(kept.numbers))
                if is_flat:
                    self._latest = _Latest(kept)
                    return LargeBody(kept, ident, data, json_lists.Looked(kept.numbers, None))
            looked = yield from json_lists.look_in_steps(body, begin, end)
            if looked is not None:
                return LargeBody(kept, ident, data, looked)
        return None

    def split(self, body: bytes, stop: int) -> tuple[T, bytes | None, list[v2.Data], bool]:
        """What is known of the rest, the id taken out (as written, None if none was), the data, and if they are full.

        The data are valid JSON lists, or, if they are full, flat lists of as many numbers as their tensor has, of which
        some may be malformed (`json_lists.is_flat`).

        Only the body's first `stop` bytes are JSON. Raises `errors.BadRequest` for what is no JSON object with a list
        of objects of the member's name, or has a member twice, `v2.Misfit`, and `errors.Unbatchable`.
        """
        ident, start = _ident(body, stop)
        if not start:
            return self._parse_in_full(body if stop == len(body) else body[:stop])
        known = self._match_known(body, start, stop)
        if known is not None:
            return known[0], ident, known[1], known[2]
        return self._parse_in_full(body if stop == len(body) else body[:stop])

    def _match_known(self, body: bytes, start: int, stop: int) -> tuple[T, list[v2.Data], bool] | None:
        latest = self._latest
        if latest is not None and body.startswith(latest.first, start):
            text = latest.data(body, start + latest.begin - 1, stop)
            if text is not None:
                return latest.kept, [text], True
        for kept in self._begun(body, start, stop):
            pieces = kept.pieces
            if len(pieces) != 2:
                data = _fit(pieces, body, start, stop)
                if data is not None:
                    return kept, data, False
            elif body.startswith(pieces[0], start) and body.endswith(pieces[1], start, stop):
                text = data_at(body, start + len(pieces[0]), stop - len(pieces[1]))
                if 0 < kept.numbers < len(text) and json_lists.is_flat(text, json_lists.outline(kept.numbers)):
                    self._latest = _Latest(kept)
                    return kept, [text], True
                if json_lists.is_list(text):
                    return kept, [text], False
        return None

    def _begun(self, body: bytes, start: int, stop: int) -> tuple[T, ...]:
        """The templates of bodies that have the same text before their first data."""
        before = body.find(b'"data":', start, stop)
        end = before if before >= 0 else stop
        return self._known.get(body[start:end], ()) if end - start <= v2.MOST_TEXT else ()

    def _parse_in_full(self, text: bytes) -> tuple[T, bytes | None, list[v2.Data], bool]:
        """The same for a text that is written in another way, or is new."""
        _check_id(text)
        found, ident, start = _ID.match(text), None, 1
        if found:
            ident, start = found[1], found.end()
        elif last := _LAST_ID.search(text, max(0, len(text) - _LONGEST_LAST_ID)):
            text, ident = text[: last.start()] + b"}", last[1]
        known = self._match_known(text, start, len(text)) if found or text.startswith(b"{") else None
        if known:
            return known[0], ident, known[1], known[2]
        start = start if found else _start(text)
        try:
            return *self._learn_from(text, text, ident, start), False
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            flaw: Exception = error
        mask = None if isinstance(flaw, msgspec.ValidationError | RecursionError) else _masked(text)
        if mask is not None:
            try:
                return *self._learn_from(text, mask, ident, start), False
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                flaw = error if isinstance(error, msgspec.ValidationError) else flaw
        raise _refusal(text, flaw)

    def _learn_from(
        self, text: bytes, mask: bytes, ident: bytes | None, start: int
    ) -> tuple[T, bytes | None, list[v2.Data]]:
        """The same for a new text; `mask` is JSON of the same size for one that is none, else the text itself."""
        objects = text.count(b"{")
        if objects > self._most_objects or (objects > v2.MOST_TENSORS and not self._has_few(mask)):
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
        if not text.isascii():
            json_rows.check_utf8(text)
        found = _find(mask, getattr(self._decoder.decode(mask), self._member))
        if mask is not text and not all(json_lists.is_list(data_at(text, *span)) for span in found):
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
        return kept, ident, [data_at(text, *span) for span in found]

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


def _fit(pieces: tuple[bytes, ...], body: bytes, start: int, stop: int) -> list[v2.Data] | None:
    """The data if all else of the body is these pieces, and the data are JSON lists; None otherwise."""
    at, end = start + len(pieces[0]), stop - len(pieces[-1])
    if not body.startswith(pieces[0], start) or not body.endswith(pieces[-1], start, stop):
        return None
    if len(pieces) == 1:
        return [] if at == stop else None
    found: list[v2.Data] = []
    for piece in pieces[1:-1]:
        edge = body.find(piece, at, end)
        if edge < 0 or not json_lists.is_list(data := data_at(body, at, edge)):
            return None
        found.append(data)
        at = edge + len(piece)
    if not json_lists.is_list(data := data_at(body, at, end)):
        return None
    found.append(data)
    return found


def data_at(body: bytes, start: int, stop: int) -> v2.Data:
    """What is there."""
    return body[start:stop] if stop - start < _WORTH_A_VIEW else memoryview(body)[start:stop]


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
    """A tensor as it was written, but for its data: `parameters` are their names, `size` is `binary_data_size`."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: tuple[str, ...]
    size: bytes | None
    has_data: bool
    text: TensorText


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
    return Tensor(name, datatype, shape, names, size, has_data, text)


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


def read_size(raw: bytes, place: str) -> int:
    """The parameter `binary_data_size`."""
    if not raw.isdigit() or len(raw) > _MOST_DIGITS:
        raise errors.BadRequest(f"{place}.binary_data_size must be a number of bytes, not {raw.decode()[:40]}")
    return int(raw)


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
