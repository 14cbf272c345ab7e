"""The stream of events, read by a program: for `top` and `tap`, which run beside a serving process.

They may run in the sidecar's own container, within its small share of a CPU, so this loads the standard library alone.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_PATIENCE = 5.0  # seconds without a message: the sidecar sends two a second
_PAUSES = (0.5, 1.0, 2.0)  # seconds between attempts to connect; the last one again and again
_SHOWN_CHARACTERS = 300


class Event(NamedTuple):
    """One message: its name and its JSON, decoded."""

    name: str
    value: dict[str, Any]


class Unreachable(Exception):
    """The stream could not be read; `str()` says why."""


def read(host: str, port: int, patience: float = _PATIENCE) -> Iterator[Event]:
    """The events of one connection, from `hello` on. Ends with `Unreachable` when that does, or cannot be made.

    `patience` is for how many seconds nothing may come.
    """
    connection = http.client.HTTPConnection(host, port, timeout=patience)
    try:
        connection.request("GET", "/events", headers={"Accept": "text/event-stream"})
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            said = " ".join(answer.read(4096).decode(errors="replace").split())[:_SHOWN_CHARACTERS]
            raise Unreachable(f"answered {answer.status}: {said or 'nothing'}")
        if answer.headers.get_content_type() != "text/event-stream":
            raise Unreachable("has no stream of events: is it a sidecar's admin port, of this version?")
        yield from _events(answer)
        raise Unreachable("ended the stream")
    except TimeoutError:
        raise Unreachable(f"said nothing for {patience:g} s") from None
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise Unreachable(
            f"cannot be reached: {getattr(error, 'strerror', None) or str(error) or repr(error)}"
        ) from None
    finally:
        connection.close()


def read_on(
    host: str, port: int, lost: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> Iterator[Event]:
    """As `read`, but it connects again whenever the stream ends; `lost` is told why, each time.

    What cannot be reached the first time raises `Unreachable`.
    """
    attempt, was_connected = 0, False
    while True:
        try:
            for event in read(host, port):
                attempt, was_connected = 0, True
                yield event
        except Unreachable as error:
            if not was_connected:
                raise
            lost(str(error))
        sleep(_PAUSES[min(attempt, len(_PAUSES) - 1)])
        attempt += 1


def _events(answer: http.client.HTTPResponse) -> Iterator[Event]:
    name, data = "", ""
    while line := answer.readline():
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data = value
        elif not field and data:
            with contextlib.suppress(json.JSONDecodeError):  # cut off: the stream ends here
                yield Event(name, json.loads(data))
            name, data = "", ""
