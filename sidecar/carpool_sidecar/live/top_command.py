"""`carpool-sidecar top`: the live page in a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from carpool_sidecar import admin_client
from carpool_sidecar.live import events_client

PROG = "carpool-sidecar top"

_DESCRIPTION = "Show what the sidecar does, as the live page does: rates, times, queues, batches, what was learned."
_MOST_BATCHES = 200
_ONCE_AFTER = 2.0  # seconds of rates that --once waits for


def main(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Show it until Ctrl-C, or print it once; the exit status is 0.

    Returns 1, with one line on standard error, if the sidecar cannot be reached. Exits with 2 for bad arguments.
    """
    chosen = _parser(environment).parse_args(argv)
    where = admin_client.address(chosen)
    try:
        if chosen.once or chosen.json or not sys.stdout.isatty():
            _print_once(where, chosen.json)
        else:
            _show(where)
    except admin_client.Unreachable as error:
        return admin_client.fail(PROG, where, str(error))
    except KeyboardInterrupt:
        pass
    return 0


def _parser(environment: Mapping[str, str]) -> admin_client.Parser:
    parser = admin_client.Parser("top", _DESCRIPTION, events_client.epilog("top"), environment)
    add = parser.add_argument
    add("--once", action="store_true", help="look for two seconds, print what was seen and end; so without a terminal")
    add("--json", action="store_true", help="with --once: print the latest snapshot as JSON, with the batches seen")
    return parser


def _print_once(where: admin_client.Address, as_json: bool) -> None:
    snapshot, batches = _look(where)
    if as_json:
        sys.stdout.write(json.dumps({**snapshot, "latest": batches}, indent=2) + "\n")
        return
    from rich import console

    from carpool_sidecar.live import top_view

    printer = console.Console(width=None if sys.stdout.isatty() else 120)
    printer.print(top_view.render(snapshot, batches, height=60))


def _look(where: admin_client.Address) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    snapshot: dict[str, Any] = {}
    batches: list[dict[str, Any]] | None = None
    for name, value in events_client.read(where):
        if name == "snapshot":
            snapshot = value
        elif name == "batches":  # at least once, with the history of a stream that others watch
            batches = [*(batches or ()), *value["batches"]][-_MOST_BATCHES:]
        if batches is not None and snapshot.get("rates") and snapshot["window"] >= _ONCE_AFTER:
            break
    return snapshot, batches or []


def _show(where: admin_client.Address) -> None:
    from rich import console, live

    from carpool_sidecar.live import top_view

    screen = console.Console()
    snapshot: dict[str, Any] = {}
    batches: list[dict[str, Any]] = []
    trouble: str | None = None

    def lost(words: str) -> None:
        nonlocal trouble
        trouble = f"the admin port {words}; trying again"
        shown.update(top_view.render(snapshot, batches, screen.height, trouble), refresh=True)

    with live.Live(console=screen, screen=True, auto_refresh=False) as shown:
        for name, value in events_client.read_on(where, lost=lost):
            trouble = None
            if name == "snapshot":
                if snapshot and snapshot["process"] != value["process"]:
                    batches = []
                snapshot = value
                shown.update(top_view.render(snapshot, batches, screen.height), refresh=True)
            elif name == "batches":
                batches = [*batches, *value["batches"]][-top_view.MOST_BATCHES :]
