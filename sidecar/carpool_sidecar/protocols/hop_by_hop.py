"""Which fields of a message belong to one connection, and so do not cross from it to another (RFC 9110, 7.6.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# The list of Go's httputil.ReverseProxy. TE is of each connection: the relay looks at the caller's where trailers came.
FIELDS: Final[frozenset[str]] = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# A Connection header must not name fields meant for the recipient. Dropping these two on a sender's word would change
# where the message goes or where its body ends.
_MEANT_FOR_ALL: Final[frozenset[str]] = frozenset({"content-length", "host"})


def members(lines: Iterable[str]) -> list[str]:
    """The members of a list that came in these lines (RFC 9110, section 5.6.1)."""
    return [member for each in ",".join(lines).split(",") if (member := each.strip())]


def options(connection: Iterable[str]) -> frozenset[str]:
    """What the lines of a `Connection` header name, in lower case."""
    return frozenset([option.lower() for option in members(connection)])


def fields(connection: Iterable[str]) -> frozenset[str]:
    """The names, in lower case, of what does not cross from a message whose `Connection` header has these lines."""
    return FIELDS | (options(connection) - _MEANT_FOR_ALL)
