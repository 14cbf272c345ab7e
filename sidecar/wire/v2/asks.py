"""Which outputs a request asks for, and in which form."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from sidecar import errors
from sidecar.wire.v2 import fields, splitting

_MISSING = msgspec.Raw(b"null")
_OUTPUTS = msgspec.json.Decoder(list[splitting.Member])


class Ask(NamedTuple):
    """Which outputs are wanted in binary: by the request's parameter, and by those of each output it lists.

    None, for the outputs, is nothing said.
    """

    default: bool
    listed: tuple[bool | None, ...] | None

    @property
    def is_clear(self) -> bool:
        """Whether all servers understand it alike: where the two contradict each other, some heed only the latter."""
        return self.listed is None or not self.default or None not in self.listed

    @property
    def is_json(self) -> bool:
        """Whether nothing is wanted in binary."""
        return not self.default and not any(self.listed or ())


def read(
    raw: msgspec.Raw | None, default: bool
) -> tuple[Ask, tuple[str, ...], tuple[tuple[bytes, tuple[bytes, ...]], ...] | None]:
    """What is wanted, the names of the outputs listed, and what is said of each: its members and its parameters.

    Raises `errors.BadRequest` for what the protocol does not allow, and `errors.Unbatchable`.
    """
    if raw is None:
        return Ask(default, None), (), None
    try:
        listed = _OUTPUTS.decode(raw)
    except msgspec.ValidationError:
        raise errors.BadRequest("'outputs' must be a list of objects") from None
    wants, names, said = [], [], []
    for number, members in enumerate(listed):
        names.append(fields.text(members.pop("name", _MISSING), f"outputs[{number}].name"))
        parameters = fields.parameters(members, f"outputs[{number}].")
        if any(each.startswith("shared_memory_") for each in parameters):
            raise errors.Unbatchable("shared_memory")
        binary = parameters.pop("binary_data", None)
        wants.append(None if binary is None else flag(binary))
        texts = tuple(fields.member(each, raw) for each, raw in parameters.items())
        about = [b'"name":%b' % msgspec.json.encode(names[-1])]
        about += [fields.member(each, bytes(raw)) for each, raw in members.items()]
        said.append((b",".join(about), texts))
    if len(set(names)) < len(names):
        raise errors.Unbatchable("outputs")
    return Ask(default, tuple(wants) if wants else None), tuple(names), tuple(said)


def flag(raw: bytes) -> bool:
    """A parameter about binary data; raises `errors.Unbatchable` for anything but true and false."""
    if raw not in (b"true", b"false"):
        raise errors.Unbatchable("outputs")  # the predictor knows what to say to that
    return raw == b"true"
