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
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from carpool_sidecar import caches, errors
from carpool_sidecar.protocols import beyond_json, frames, interface, json_members, json_rows, steps, v2
from carpool_sidecar.protocols.v2_http import declarations, json_lists

PLACEHOLDER: Final = b"0"
"""What stands in the rest for a tensor's data, which are a list."""

_MOST_KEPT_BYTES: Final = 4 * 1024 * 1024  # of templates; what is known of them takes about three times as much again
_MOST_SIBLINGS: Final = 8  # alike up to their first data, and tried one after the other
_MOST_OF_SIBLINGS: Final = _MOST_SIBLINGS * (interface.MOST_TEXT + caches.ENTRY)
# As most clients write it, and as it may be written; all but the last of no more than `v2.LONGEST_ID` bytes.
_ID_FIRST: Final = b'{"id":'
_ID: Final = re.compile(rb'[ \t\r\n]*\{[ \t\r\n]*"id"[ \t\r\n]*:[ \t\r\n]*("[ !#-\[\]-~]{0,1022}")[ \t\r\n]*,')
_LAST_ID: Final = re.compile(rb',[ \t\r\n]*"id"[ \t\r\n]*:[ \t\r\n]*("[ !#-\[\]-~]*")[ \t\r\n]*\}[ \t\r\n]*\Z')
_LONGEST_LAST_ID: Final = 256
_BRACE: Final = re.compile(rb"[ \t\r\n]*\{")

_DATA: Final = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*')
_SPACE: Final = b" \t\r\n"
_CLOSING: Final = 0x5D  # ]


class Template:
    """What is known of a rest: its `pieces` stand before, between and after the data of its `tensors`.

    `counts` are how many elements each of the data has to have; None if not all data are in JSON. `numbers` is the same
    for those of a single tensor of numbers that need not be looked at more closely (`json_lists.is_flat`); else 0.
    `binary_size` is that of all data in binary, None if there are none; it `has_strings` if some of these are of BYTES.
    """

    __slots__ = ("binary_size", "counts", "has_strings", "numbers", "pieces", "tensors")

    def __init__(self, pieces: tuple[bytes, ...], tensors: tuple[declarations.Tensor, ...]) -> None:
        self.pieces = pieces
        self.tensors = tensors
        sizes = [each.size for each in tensors if each.size is not None]
        self.binary_size = sum(sizes) if sizes else None
        self.counts = None if sizes else [each.elements for each in tensors]
        self.has_strings = any(each.size is not None and each.datatype == v2.BYTES for each in tensors)
        self.numbers = 0


T = TypeVar("T", bound=Template)


class Rest(NamedTuple):
    """A body without its data: its members, with `PLACEHOLDER` for each tensor's data.

    `members` are without the tensors; an `id` is only among them if it is neither first nor last, or no simple string.
    """

    members: declarations.Members
    tensors: list[declarations.Members]
    pieces: tuple[bytes, ...]


class Parted(NamedTuple, Generic[T]):
    """A body taken apart: what is `known` of the rest, the id taken out (as written, None if none was), and the data.

    The data are JSON lists, or at least as long as they claim to be (`json_lists.is_flat`). `counts` are how many
    elements they have, negative where that is not known yet; `rows` are the items of large ones.
    """

    known: T
    ident: bytes | None
    data: list[v2.Data]
    counts: list[int]
    rows: list[json_rows.Rows | None]


class _Latest(Generic[T]):
    """A rest with the data of one tensor, with what tells at a glance that a body is of it."""

    __slots__ = ("_last", "_outline", "_size", "begin", "counts", "first", "kept", "opening")

    def __init__(self, kept: T) -> None:
        self.kept = kept
        self.counts = [kept.numbers]
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
        # One pass, and no objects but for tensors.
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("Body", [(member, list[dict[str, msgspec.Raw]])]))
        self._list = msgspec.json.Decoder(msgspec.defstruct("List", [(member, msgspec.Raw)]))
        self._known: caches.Cache[bytes, tuple[T, ...]] = caches.Cache(
            "v2_requests" if member == "inputs" else "v2_answers", _MOST_KEPT_BYTES, _MOST_OF_SIBLINGS
        )
        self._latest: _Latest[T] | None = None

    def match(self, body: bytes, stop: int) -> tuple[T, bytes | None, list[v2.Data], list[int], bool] | None:
        """What `split` finds in a small body whose rest is known, with the numbers of elements of its data, and whether
        nothing is left to be looked at: all data are there, and full. Else None."""
        latest = self._latest
        if latest is not None and stop == len(body) and body.startswith(latest.opening):
            text = latest.data(body, latest.begin)
            if text is not None:
                return latest.kept, None, [text], latest.counts, True
        ident, start = _ident(body, stop)
        if not start or stop - start > json_lists.STEP:
            return None
        if latest is not None and stop == len(body) and body.startswith(latest.first, start):
            text = latest.data(body, start + latest.begin - 1)
            if text is not None:
                return latest.kept, ident, [text], latest.counts, True
        known = self._match_small(body, start, stop)
        if known is None:
            return None
        kept, data, counts = known
        return kept, ident, data, counts, stop == len(body) and kept.counts == counts

    def split(self, body: bytes, stop: int) -> steps.Steps[Parted[T]]:
        """Take a body apart, of which only the first `stop` bytes are JSON.

        Raises `errors.BadRequest` for what is no JSON object with a list of objects of the member's name, or has a
        member twice, `v2.Misfit`, and `errors.Unbatchable`.
        """
        ident, start = _ident(body, stop)
        known = (yield from self._match(body, ident, start, stop)) if start else None
        if known is not None:
            return known
        text = body if stop == len(body) else body[:stop]
        match, ident, start = _ID.match(text), None, 1
        if match:
            ident, start = match[1], match.end()
        elif last := _LAST_ID.search(text, max(0, len(text) - _LONGEST_LAST_ID)):
            text, ident = text[: last.start()] + b"}", last[1]
        if match or text.startswith(b"{"):
            known = yield from self._match(text, ident, start, len(text))
            if known is not None:
                return known
        return self._learn_from(text, ident, start if match else _start(text))

    def _match(self, body: bytes, ident: bytes | None, start: int, stop: int) -> steps.Steps[Parted[T] | None]:
        """A body whose rest is known."""
        if stop - start <= json_lists.STEP:
            small = self._match_small(body, start, stop)
            return None if small is None else Parted(small[0], ident, small[1], small[2], [None] * len(small[1]))
        for kept in self._begun(body, start, stop):
            data = _between(kept.pieces, body, start, stop)
            looked: list[json_lists.Looked] = []
            at = start
            for piece, text in zip(kept.pieces, data or (), strict=False):
                at += len(piece)
                found = yield from json_lists.look(body, at, text, kept.numbers)
                if found is None:
                    break
                looked.append(found)
                at += len(text)
            if data is not None and len(looked) == len(data):
                if kept.numbers and looked[0] == (kept.numbers, None):
                    self._remember(kept)
                return Parted(kept, ident, data, [each.elements for each in looked], [each.rows for each in looked])
        return None

    def _match_small(self, body: bytes, start: int, stop: int) -> tuple[T, list[v2.Data], list[int]] | None:
        for kept in self._begun(body, start, stop):
            if len(kept.pieces) == 1 and body[start:stop] == kept.pieces[0]:
                return kept, [], []
            data = _between(kept.pieces, body, start, stop)
            if data is None:
                continue
            if 0 < kept.numbers < len(data[0]) and json_lists.is_small_and_flat(
                data[0], json_lists.outline(kept.numbers)
            ):
                self._remember(kept)
                return kept, data, [kept.numbers]
            counts = [json_lists.checked_count(text) for text in data]
            if -1 not in counts:
                return kept, data, counts
        return None

    def _remember(self, kept: T) -> None:
        """The latest body of these pieces was flat."""
        if self._latest is None or self._latest.kept is not kept:
            self._latest = _Latest(kept)

    def _begun(self, body: bytes, start: int, stop: int) -> tuple[T, ...]:
        """The templates of bodies that have the same text before their first data."""
        before = body.find(b'"data":', start, stop)
        end = before if before >= 0 else stop
        return self._known.get(body[start:end], ()) if end - start <= interface.MOST_TEXT else ()

    def _learn_from(self, text: bytes, ident: bytes | None, start: int) -> Parted[T]:
        """The same for a text that is new."""
        # No error is kept here: what it came through would be kept in a circle, with the body in it.
        try:
            return self._learn_masked(text, text, ident, start)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            is_sure, words = _told(error)
        mask = None if is_sure else steps.at_once(beyond_json.masked(text))
        if mask is not None:
            try:
                return self._learn_masked(text, mask, ident, start)
            except msgspec.ValidationError as misfit:
                is_sure, words = _told(misfit)
            except (msgspec.DecodeError, ValueError, RecursionError):
                pass  # the first one tells more, also where a word of the mask is beside the data
        raise errors.BadRequest(words) if is_sure else json_rows.no_json(text, words)

    def _learn_masked(self, text: bytes, mask: bytes, ident: bytes | None, start: int) -> Parted[T]:
        """The same; `mask` is JSON of the same size for a text that is none, else the text itself."""
        objects = text.count(b"{")
        if objects > self._most_objects or (objects > v2.MOST_TENSORS and not self._has_few(mask)):
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
        if not text.isascii():
            steps.at_once(json_rows.check_utf8(text))
        found = _find(mask, getattr(self._decoder.decode(mask), self._member))
        if mask is not text and not all(json_lists.is_list(text[span[0] : span[1]]) for span in found):
            raise msgspec.DecodeError("the data are no JSON")
        edges = [0, *(edge for span in found for edge in span), len(text)]
        pieces = [text[edges[at] : edges[at + 1]] for at in range(0, len(edges), 2)]
        if sum(map(len, pieces)) > interface.MOST_TEXT:
            raise errors.Unbatchable(errors.NotBatched.MEMBERS)
        whole = PLACEHOLDER.join(pieces)
        json.loads(whole, object_pairs_hook=_unique, parse_int=str, parse_float=str)
        members = declarations.object_of(whole)
        tensors = list(map(declarations.object_of, json_lists.items(members.pop(self._member))))
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
        data = [json_lists.data_at(text, *span) for span in found]
        return Parted(kept, ident, data, [-1] * len(data), [None] * len(data))

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
        found = _ID.match(body, 0, stop)
        if found is not None:
            return found[1], found.end()
    return None, 1 if body.startswith(b"{") else 0


def _told(flaw: Exception) -> tuple[bool, str]:
    """Whether it is certain what is wrong with a text, and what that is."""
    if isinstance(flaw, RecursionError):
        return True, "the body is nested too deeply"
    if isinstance(flaw, msgspec.ValidationError):
        return True, f"the body is no v2 inference message: {flaw}"
    return False, str(flaw)


def _start(piece: bytes) -> int:
    found = _BRACE.match(piece)
    return found.end() if found else 0


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise errors.BadRequest(f"duplicate member {twice!r}")


# --- data -------------------------------------------------------------------------------------------------------


def _between(pieces: tuple[bytes, ...], body: bytes, start: int, stop: int) -> list[v2.Data] | None:
    """What is between these pieces, if all else of the body is they; None otherwise."""
    gaps = frames.gaps(pieces, body, start, stop)
    return None if gaps is None else [json_lists.data_at(body, at, end) for at, end in gaps]


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
