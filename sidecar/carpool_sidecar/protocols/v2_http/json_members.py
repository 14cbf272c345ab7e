"""Members of v2 messages, read one by one: what they have to be, and where they are if they are not."""

from __future__ import annotations

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_http import rules, splitting

_TEXT = msgspec.json.Decoder(str)
_SHAPE = msgspec.json.Decoder(list[int])
_MEMBERS = msgspec.json.Decoder(splitting.Member)
_MISSING = msgspec.Raw(b"null")
_MOST_DIGITS = 18  # more bytes than any body has


def tensor(place: str, members: splitting.Member) -> tuple[str, str, tuple[int, ...]]:
    """Name, datatype and shape of a tensor, which are taken out of its members.

    Raises `errors.BadRequest` as all functions here do.
    """
    name = text(members.pop("name", _MISSING), f"{place}.name")
    datatype = text(members.pop("datatype", _MISSING), f"{place}.datatype")
    return name, datatype, _shape(members.pop("shape", _MISSING), f"{place}.shape")


def text(raw: msgspec.Raw, place: str) -> str:
    """A string."""
    try:
        return _TEXT.decode(raw)
    except msgspec.MsgspecError:
        raise errors.BadRequest(f"{place} must be a string") from None


def parameters(members: splitting.Member, place: str) -> dict[str, bytes]:
    """The members of the object `parameters`, as written; it is taken out of the others."""
    raw = pop(members, "parameters")
    if raw is None:
        return {}
    try:
        return {name: bytes(value) for name, value in _MEMBERS.decode(raw).items()}
    except msgspec.MsgspecError:
        raise errors.BadRequest(f"{place}parameters must be an object") from None


def pop(members: splitting.Member, name: str) -> msgspec.Raw | None:
    """Take a member out; one that is null stays, as something that is merely written along."""
    found = members.get(name)
    if found is None or bytes(found) == b"null":
        return None
    del members[name]
    return found


def size(raw: bytes, place: str) -> int:
    """The parameter `binary_data_size`."""
    if not raw.isdigit() or len(raw) > _MOST_DIGITS:
        raise errors.BadRequest(f"{place}.binary_data_size must be a number of bytes, not {raw.decode()[:40]}")
    return int(raw)


def member(name: str, raw: bytes) -> bytes:
    """A member of an object, as JSON."""
    return b"%b:%b" % (msgspec.json.encode(name), raw)


def _shape(raw: msgspec.Raw, place: str) -> tuple[int, ...]:
    try:
        shape = tuple(_SHAPE.decode(raw))
    except msgspec.MsgspecError:
        raise errors.BadRequest(f"{place} must be a list of whole numbers") from None
    rules.check_shape(place, shape)
    return shape
