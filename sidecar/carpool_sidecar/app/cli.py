"""`carpool-sidecar`: serves, or runs the subcommand that the first argument names.

A module is imported only when it is needed: `drain` runs as a hook beside a serving process, and loading everything
takes a second of CPU time, which requests would miss.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import carpool_sidecar
from carpool.program import signals


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
    match argv:
        case ["--version"]:
            sys.stdout.write(f"carpool-sidecar {carpool_sidecar.__version__} ({carpool_sidecar.build()})\n")
            return 0
        case ["plan", *rest]:
            from carpool_sidecar.planning import command

            return command.main(rest)
        case ["advise", *rest]:
            from carpool_sidecar.app import advise_command

            return advise_command.main(rest)
        case ["lists", *rest]:
            from carpool_sidecar.app import lists_command

            return lists_command.main(rest)
        case ["probe", *rest]:
            from carpool_sidecar.app import probe_command

            return probe_command.main(rest)
        case ["doctor", *rest]:
            from carpool_sidecar.app import doctor_command

            return doctor_command.main(rest)
        case ["drain", *rest]:
            from carpool_sidecar.app import drain_command

            return drain_command.main(rest)
        case ["top", *rest]:
            from carpool_sidecar.live import top_command

            return top_command.main(rest)
        case ["tap", *rest]:
            from carpool_sidecar.live import tap_command

            return tap_command.main(rest)
        case _:
            signals.at_start("carpool-sidecar")
            try:
                from carpool_sidecar.app import process

                return process.main(argv)
            finally:
                signals.at_end()
