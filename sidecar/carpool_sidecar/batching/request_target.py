"""What a request asks for: the request target (RFC 9112, section 3.2), as this server and the predictor read it."""

from __future__ import annotations


def origin_form(target: str) -> str:
    """The path and query of a request target in absolute form, which a server has to accept; any other as it is.

    Byte for byte: nothing is decoded, encoded or left out, an empty query's question mark and a `#` included.
    """
    if target.startswith("/") or "://" not in target:
        return target  # origin form, or the asterisk of OPTIONS, or the authority of CONNECT
    rest = target.partition("://")[2]
    path = rest[len(rest.partition("/")[0].partition("?")[0]) :]
    return path if path.startswith("/") else f"/{path}"
