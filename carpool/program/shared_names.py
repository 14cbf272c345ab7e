"""Names in settings of what the requests of a batch share: headers in which they agree, headers that go along all the
same, and members of the batch's answer that all callers get.

The sidecar reads them, and the injector refuses what the sidecar would refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

# Headers that speak of one message or one connection; a batch has its own.
NOT_SHARED = frozenset({
    "host", "content-length", "content-encoding", "transfer-encoding", "connection", "keep-alive", "upgrade", "te",
    "trailer", "expect", "proxy-authorization", "accept-encoding", "x-request-id", "traceparent", "tracestate",
    "inference-header-content-length",
})  # fmt: skip


def read_key(names: tuple[str, ...]) -> tuple[str, ...]:
    """Each once and in lower case, as gRPC's metadata are named and the rest of the sidecar expects them.

    Raises `ValueError`.
    """
    for name in names:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a header name")
        if name.lower() in NOT_SHARED:
            raise ValueError(f"{name!r} belongs to a single message and cannot be shared by a batch")
    return tuple(dict.fromkeys([name.lower() for name in names]))


# What one caller must not lend to another's rows, and what a batch and its connection say of themselves.
NOT_FORWARDED = NOT_SHARED | {
    "authorization", "cookie", "content-type", "proxy-connection",
}  # fmt: skip
# Names that gRPC has for itself, binary values, which are not to be joined, and what metadata cannot be called.
NOT_METADATA = re.compile(r"grpc-.*|.*-bin|.*[^0-9a-z_.-].*", re.DOTALL)
_METADATA_VALUE = re.compile(r"[\x20-\x7e]*")


def read_priority(name: str) -> str:
    """The header that tells a request's level of priority, in lower case; empty: none does. Raises `ValueError`."""
    if is_taken(name):
        raise ValueError(f"{name!r} says something else of a request, so it cannot tell its level")
    return "".join(read_key((name,) if name else ()))


def is_taken(name: str) -> bool:
    """Whether a header has values of its own, none of which is a level of priority."""
    return name.lower() in NOT_FORWARDED or name.lower().startswith(("carpool-", "grpc-"))


class Forwarded(NamedTuple):
    """A header of --forward-headers: its name in lower case, and whether the values of all members are `joined`."""

    name: str
    joined: bool


def read_forwarded(entries: tuple[str, ...]) -> tuple[str, ...]:
    """Entries `name=first` or `name=joined`, each once and with its name in lower case. Raises `ValueError`."""
    read: dict[str, str] = {}
    for entry in entries:
        name, _, how = entry.partition("=")
        if how not in ("first", "joined"):
            raise ValueError(f"{entry!r} does not say which value goes along: {name}=first or {name}=joined")
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a header name")
        if name.lower() in NOT_FORWARDED:
            raise ValueError(
                f"{name!r} cannot go along with other callers' instances; --key-headers keeps those apart that differ "
                "in credentials or types"
            )
        if NOT_METADATA.fullmatch(name.lower()):
            raise ValueError(
                f"{name!r} cannot go along with a batch over gRPC; allowed: letters, digits and _.- in a name that "
                "does not begin with grpc- or end with -bin"
            )
        if read.setdefault(name.lower(), how) != how:
            raise ValueError(f"{name!r} is named twice, as first and as joined")
    return tuple(f"{name}={how}" for name, how in read.items())


def forwarded(entries: Iterable[str]) -> tuple[Forwarded, ...]:
    """What entries say that `read_forwarded` returned."""
    parts = [entry.partition("=") for entry in entries]
    return tuple([Forwarded(name, how == "joined") for name, _, how in parts])


def is_metadata(value: str) -> bool:
    """Whether gRPC can carry a header's value as it is."""
    return _METADATA_VALUE.fullmatch(value) is not None


# What v1 answers say of the request itself, in any case, as Go's readers of JSON pass over that.
OF_EACH_ANSWER = frozenset({"predictions", "outputs", "message", "batchid", "error"})
MEMBER = "[A-Za-z_][A-Za-z0-9_.-]{0,63}"
"""The pattern of a member's name in --answer-members."""
MOST_MEMBERS = 16


def read_members(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of members of answers, each once. Raises `ValueError`."""
    for name in names:
        if not re.fullmatch(MEMBER, name):
            raise ValueError(f"{name!r} is no member: at most 64 letters, digits and _.-, beginning with a letter or _")
        if name.lower() in OF_EACH_ANSWER:
            raise ValueError(
                f"{name!r} is each caller's own in a v1 answer, and not the same for all callers of a batch"
            )
    found = tuple(dict.fromkeys(names))
    if len(found) > MOST_MEMBERS:
        raise ValueError(f"{len(found)} members are named; at most {MOST_MEMBERS} are allowed")
    return found
