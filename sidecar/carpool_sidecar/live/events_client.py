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

from carpool_sidecar import admin_client

_PATIENCE = 5.0  # seconds without a message: the sidecar sends two a second
_PAUSES = (0.5, 1.0, 2.0)  # seconds between attempts to connect; the last one again and again


_EPILOG = """\
Inside the sidecar's container the address and port come from the environment variables that it was started with. From
elsewhere, forward the admin port first, or name the pod's address:

  kubectl exec POD -c CONTAINER -- carpool-sidecar {word}
  kubectl port-forward POD 9082  and then  carpool-sidecar {word}
"""


class Event(NamedTuple):
    """One message: its name and its JSON, decoded."""

    name: str
    value: dict[str, Any]


def epilog(word: str) -> str:
    """What the help of a command that reads events says of where to run it."""
    return _EPILOG.format(word=word)


def read(where: admin_client.Address, patience: float = _PATIENCE) -> Iterator[Event]:
    """The events of one connection, from `hello` on. Ends with `admin_client.Unreachable` when that does.

    `patience` is for how many seconds nothing may come.
    """
    try:
        with admin_client.asked(where, "GET", "/events", patience, accept="text/event-stream") as answer:
            if answer.headers.get_content_type() != "text/event-stream":
                raise admin_client.Unreachable(
                    "has no stream of events: is it a sidecar's admin port, of this version?"
                )
            yield from _events(answer)
            raise admin_client.Unreachable("ended the stream")
    except TimeoutError:
        raise admin_client.Unreachable(f"said nothing for {patience:g} s") from None


def read_on(
    where: admin_client.Address, lost: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> Iterator[Event]:
    """As `read`, but it connects again whenever the stream ends; `lost` is told why, each time.

    What cannot be reached the first time raises `admin_client.Unreachable`.
    """
    attempt, was_connected = 0, False
    while True:
        try:
            for event in read(where):
                attempt, was_connected = 0, True
                yield event
        except admin_client.Unreachable as error:
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
