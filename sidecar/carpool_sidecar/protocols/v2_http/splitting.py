"""Bodies of tensors in JSON, taken apart: the tensors' `data`, and all the rest.

A JSON value can stand in the place of any other, so a body with its data taken out tells all about the body but the
data. Clients send the same rest over and over; what was found out about it once is kept, and of a body like one that
was seen before only the data are looked at. A caller's `id` differs from request to request, so where it is the first
member or the last it is taken out too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_http import data_spans, json_lists

PLACEHOLDER = b"0"
"""What stands in the rest for a tensor's data, which are a list."""

MAX_REST = 64 * 1024
"""Bytes that a message may have beside its tensors' data: they are read one by one, and kept."""
_MAX_KEPT = 1024  # rests, mostly of less than 1 KiB
_MAX_SIBLINGS = 8  # alike up to their first data, and tried one after the other
_MAX_KEPT_BYTES = 4 * 1024 * 1024  # what is known of them takes about three times as much again
# As most clients write it, and as it may be written.
_ID_FIRST = b'{"id":'
_PLAIN_ID = re.compile(rb'\{"id": ?("[ !#-\[\]-~]*"),')
_ID = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"id"[ \t\r\n]*:[ \t\r\n]*("[ !#-\[\]-~]*")[ \t\r\n]*,')
_LAST_ID = re.compile(rb',[ \t\r\n]*"id"[ \t\r\n]*:[ \t\r\n]*("[ !#-\[\]-~]*")[ \t\r\n]*\}[ \t\r\n]*\Z')
_LONGEST_LAST_ID = 256
_BRACE = re.compile(rb"[ \t\r\n]*\{")
_PLAIN_DATA = re.compile(rb'(?<="data")[ \t\r\n]*:[^"]*')  # up to the next string

Data = data_spans.Data
Member = data_spans.Member


class Kept(Protocol):
    """What is known of a rest: its `pieces` stand before, between and after the data.

    `numbers` is how many there are if the data are those of a single tensor of numbers that need not be looked at more
    closely (`texts.is_flat`); 0 otherwise.
    """

    @property
    def pieces(self) -> tuple[bytes, ...]: ...

    @property
    def numbers(self) -> int: ...


T = TypeVar("T", bound=Kept)


class Rest(NamedTuple):
    """A body without its data: its members, with `PLACEHOLDER` for each tensor's data.

    `members` are without the tensors; an `id` is only among them if it is neither first nor last, or no simple string.
    """

    members: Member
    tensors: list[Member]
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
        self._outline = json_lists.outline(kept.numbers)

    def data(self, body: bytes, begin: int, stop: int) -> Data | None:
        """The data, which begin at a place in a body, if they are as flat and full as they should be."""
        if not body.endswith(self._last, begin, stop):
            return None
        text = data_spans.data_at(body, begin, stop - self._size)
        return text if json_lists.is_flat(text, self._outline) else None


class Cache(Generic[T]):
    """Takes bodies apart and remembers what `learn` made of their rests."""

    # State: _known by what stands before the first data, _count and _bytes of all in it; the _latest that was flat.
    def __init__(self, member: str, learn: Callable[[Rest], T], most_objects: float = math.inf) -> None:
        """A text that is new and has more than so many opening braces is `errors.Unbatchable`."""
        self._member = member
        self._learn = learn
        self._most_objects = most_objects
        self._decoder = msgspec.json.Decoder(
            msgspec.defstruct("Body", [(member, list[Member])])  # one pass, and no objects but for tensors
        )
        self._known: dict[bytes, list[T]] = {}
        self._latest: _Latest[T] | None = None
        self._count = self._bytes = 0

    def glance(self, body: bytes) -> tuple[T, Data] | None:
        """`split` in a hurry: if all of the body is like the one before, without an id, the data are full."""
        latest = self._latest
        if latest is None or not body.startswith(latest.opening):
            return None
        text = latest.data(body, latest.begin, len(body))
        return None if text is None else (latest.kept, text)

    def split(self, body: bytes, stop: int) -> tuple[T, bytes | None, list[Data], bool]:
        """What is known of the rest, the id taken out (as written, None if none was), the data, and if they are full.

        The data are valid JSON lists, or, if they are full, flat lists of as many numbers as their tensor has, of which
        some may be malformed (`texts.is_flat`).

        Only the body's first `stop` bytes are JSON. Raises `errors.BadRequest` for what is no JSON object with a list
        of objects of the member's name, or has a member twice, and `errors.Unbatchable`.
        """
        found = _PLAIN_ID.match(body, 0, stop) if body.startswith(_ID_FIRST) else None
        if found is not None:
            ident, start = found[1], found.end()
        elif body.startswith(b"{"):
            ident, start = None, 1
        else:
            return self._study(body if stop == len(body) else body[:stop])
        known = self._recall(body, start, stop)
        if known is not None:
            return known[0], ident, known[1], known[2]
        return self._study(body if stop == len(body) else body[:stop])

    def _recall(self, body: bytes, start: int, stop: int) -> tuple[T, list[Data], bool] | None:
        latest = self._latest
        if latest is not None and body.startswith(latest.first, start):
            text = latest.data(body, start + latest.begin - 1, stop)
            if text is not None:
                return latest.kept, [text], True
        before = body.find(b'"data":', start, stop)
        for kept in self._known.get(body[start : before if before >= 0 else stop], ()):
            pieces = kept.pieces
            if len(pieces) != 2:
                data = data_spans.fit(pieces, body, start, stop)
                if data is not None:
                    return kept, data, False
            elif body.startswith(pieces[0], start) and body.endswith(pieces[1], start, stop):
                text = data_spans.data_at(body, start + len(pieces[0]), stop - len(pieces[1]))
                if 0 < kept.numbers < len(text) and json_lists.is_flat(text, json_lists.outline(kept.numbers)):
                    self._latest = _Latest(kept)
                    return kept, [text], True
                if json_lists.is_list(text):
                    return kept, [text], False
        return None

    def _study(self, text: bytes) -> tuple[T, bytes | None, list[Data], bool]:
        """The same for a text that is written in another way, or is new."""
        found, ident, start = _ID.match(text), None, 1
        if found:
            ident, start = found[1], found.end()
        elif last := _LAST_ID.search(text, max(0, len(text) - _LONGEST_LAST_ID)):
            text, ident = text[: last.start()] + b"}", last[1]
        known = self._recall(text, start, len(text)) if found or text.startswith(b"{") else None
        if known:
            return known[0], ident, known[1], known[2]
        try:
            return *self._learn_from(text, ident, start if found else _start(text)), False
        except msgspec.ValidationError as error:
            raise errors.BadRequest(f"the body is no v2 inference message: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if split := self._without_not_finite(text):
                return split[0], ident if split[1] is None else split[1], split[2], False
            raise errors.BadRequest(str(error)) from None
        except RecursionError:
            raise errors.BadRequest("the body is nested too deeply") from None

    def _without_not_finite(self, text: bytes) -> tuple[T, bytes | None, list[Data]] | None:
        """The same for a text with NaN or infinity in its data, which is no JSON but what Triton takes and writes."""
        tame = _PLAIN_DATA.sub(lambda found: json_lists.tame(found[0]), text)
        if tame == text:
            return None
        kept, ident, data, _ = self.split(tame, len(tame))
        at, found = tame.index(kept.pieces[0]), list[Data]()
        for piece, each in zip(kept.pieces, data, strict=False):
            stop = at + len(piece)
            found.append(data_spans.data_at(text, stop, stop + len(each)))
            if text[at:stop] != piece or not json_lists.is_plain(bytes(found[-1])):
                return None
            at = stop + len(each)
        return (kept, ident, found) if text.startswith(kept.pieces[-1][:-1], at) else None

    def _learn_from(self, text: bytes, ident: bytes | None, start: int) -> tuple[T, bytes | None, list[Data]]:
        if text.count(b"{") > self._most_objects:
            raise errors.Unbatchable("members")
        json_lists.check_utf8(text)
        found = data_spans.find(text, getattr(self._decoder.decode(text), self._member))
        edges = [0, *(edge for span in found for edge in span), len(text)]
        pieces = [text[edges[at] : edges[at + 1]] for at in range(0, len(edges), 2)]
        if sum(map(len, pieces)) > MAX_REST:
            raise errors.Unbatchable("members")
        whole = PLACEHOLDER.join(pieces)
        json.loads(whole, object_pairs_hook=_unique, parse_int=str, parse_float=str)
        members = _OBJECT.decode(whole)
        tensors = _OBJECTS.decode(members.pop(self._member))
        if any(bytes(tensor["data"]) != PLACEHOLDER for tensor in tensors if "data" in tensor):
            raise errors.Unbatchable("members")  # something else named `data` was taken for a tensor's
        if _ID.match(text):
            del members["id"]
        elif ident is not None and "id" in members:
            raise errors.BadRequest("duplicate member 'id'")
        pieces[0] = pieces[0][start:]
        kept = self._learn(Rest(members, tensors, tuple(pieces)))
        if "id" not in members:
            self._keep(kept)
        return kept, ident, [data_spans.data_at(text, *span) for span in found]

    def _keep(self, kept: T) -> None:
        size = sum(map(len, kept.pieces))
        if self._count >= _MAX_KEPT or self._bytes + size > _MAX_KEPT_BYTES:
            self._known.clear()
            self._count = self._bytes = 0
        first = kept.pieces[0]
        before = first.find(b'"data":')
        siblings = self._known.setdefault(first[:before] if before >= 0 else first, [])
        if all(each.pieces != kept.pieces for each in siblings):
            siblings.insert(0, kept)
            self._count += 1
            self._bytes += size
            for forgotten in siblings[_MAX_SIBLINGS:]:
                self._count -= 1
                self._bytes -= sum(map(len, forgotten.pieces))
            del siblings[_MAX_SIBLINGS:]


_OBJECT = msgspec.json.Decoder(Member)
_OBJECTS = msgspec.json.Decoder(list[Member])


def _start(piece: bytes) -> int:
    found = _BRACE.match(piece)
    return found.end() if found else 0


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise errors.BadRequest(f"duplicate member {twice!r}")
