"""Which outputs a request asks for, and in which form."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols.v2_http import json_members, rules, splitting

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


class Asked(NamedTuple):
    """The outputs that a request lists, by name and parameters, whether each is wanted in binary, as written, and what
    is said of it: its members and its parameters. `said` is None where there is no list."""

    outputs: tuple[rules.Wanted, ...] = ()
    flags: tuple[bytes | None, ...] = ()
    said: tuple[tuple[bytes, tuple[bytes, ...]], ...] | None = None

    def ask(self, default: bytes) -> Ask:
        """What is wanted, with what is said for all outputs; raises `errors.Unbatchable`."""
        wants = tuple([None if each is None else flag(each) for each in self.flags])
        return Ask(flag(default), wants or None)


def read(raw: msgspec.Raw | None) -> Asked:
    """What is asked for; raises `errors.BadRequest` for what the protocol does not allow."""
    if raw is None:
        return Asked()
    try:
        listed = _OUTPUTS.decode(raw)
    except msgspec.ValidationError:
        raise errors.BadRequest("'outputs' must be a list of objects") from None
    wants, names, said, wanted = [], [], [], list[rules.Wanted]()
    for number, members in enumerate(listed):
        names.append(json_members.text(members.pop("name", _MISSING), f"outputs[{number}].name"))
        parameters = json_members.parameters(members, f"outputs[{number}].")
        wanted.append(rules.Wanted(names[-1], tuple(parameters)))
        binary = parameters.pop("binary_data", None)
        wants.append(binary)
        texts = tuple(json_members.member(each, raw) for each, raw in parameters.items())
        about = [b'"name":%b' % msgspec.json.encode(names[-1])]
        about += [json_members.member(each, bytes(raw)) for each, raw in members.items()]
        said.append((b",".join(about), texts))
    return Asked(tuple(wanted), tuple(wants), tuple(said))


def flag(raw: bytes) -> bool:
    """A parameter about binary data; raises `errors.Unbatchable` for anything but true and false."""
    if raw not in (b"true", b"false"):
        raise errors.Unbatchable("outputs")  # the predictor knows what to say to that
    return raw == b"true"
