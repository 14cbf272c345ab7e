"""`carpool-sidecar`: serves, or runs the subcommand that the first argument names.

A module is imported only when it is needed: `drain` runs as a hook beside a serving process, and loading everything
takes a second of CPU time, which requests would miss.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import carpool_sidecar
from carpool.program import signals

_COMMANDS: Final = {
    **{name: f"carpool_sidecar.app.{name}_command" for name in ("advise", "doctor", "drain", "lists", "probe")},
    **{name: f"carpool_sidecar.live.{name}_command" for name in ("tap", "top")},
    "plan": "carpool_sidecar.planning.command",
}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Serve until SIGTERM or SIGINT, or do what the first argument says.

    `doctor` says what a predictor is and what to set, `probe` what batches take there; `plan` tells how many pods a
    load needs, `advise` which settings the load that came asks for, `lists` what rules make of requests; `top` and
    `tap` show what a sidecar does; `drain` shuts down the sidecar of this pod.

    The process exits with 0 when that succeeded (a sidecar that serves: when everything accepted was answered), with 1
    when it failed, with 2 for bad settings or arguments, and with 130 where SIGINT ended it before it served.
    """
    try:
        raise SystemExit(_exit_status(list(sys.argv[1:] if argv is None else argv)))
    except KeyboardInterrupt:
        raise SystemExit(signals.INTERRUPTED) from None


def _exit_status(argv: list[str]) -> int:
    if argv == ["--version"]:
        sys.stdout.write(f"carpool-sidecar {carpool_sidecar.__version__} ({carpool_sidecar.build()})\n")
        return 0
    command = _COMMANDS.get(argv[0]) if argv else None
    if command is not None:
        return int(importlib.import_module(command).main(argv[1:]))
    signals.at_start("carpool-sidecar")
    try:
        from carpool_sidecar.app import process

        return process.main(argv)
    finally:
        signals.at_end()
