"""`carpool-sidecar drain`: the preStop hook of the sidecar's own container.

It runs beside the serving process, within the same small CPU limit, while the last requests are being answered. So it
imports the standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from carpool_sidecar import admin_client

PROG = "carpool-sidecar drain"

_EPILOG = """\
The address and port are those the sidecar was started with. In the sidecar's container they come from the same
environment variables and need not be given. Addresses that mean "all", 0.0.0.0 and ::, are reached at 127.0.0.1. Any
other address needs a sidecar with --admin-write any, because callers that use it do not count as inside the pod. As the
hook of a container:

  lifecycle: {preStop: {exec: {command: [carpool-sidecar, drain]}}}
"""

_MOST_BYTES = 64 * 1024


def main(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Start the sidecar's shutdown and return 0 once everything accepted has been answered.

    Returns 1, with one line on standard error, if the sidecar cannot be reached, does not answer in time, answers
    something else, or gave up at the end of its grace period. Exits with 2 for bad arguments.
    """
    chosen = _parser(environment).parse_args(argv)
    where = admin_client.address(chosen)
    try:
        token = _token(chosen.admin_token_file)
        with admin_client.asked(where, "POST", "/drain", chosen.timeout, token=token) as answer:
            problem = _problem(answer.read(_MOST_BYTES))
    except TimeoutError:
        problem = f"did not answer within {chosen.timeout:g} s; a drain that has begun goes on"
    except admin_client.Unreachable as error:
        problem = str(error)
    return 0 if problem is None else admin_client.fail(PROG, where, problem)


def _token(path: str) -> str:
    """What a file has, "" where none is given. Raises `admin_client.Unreachable` for one that cannot be read."""
    try:
        return Path(path).read_text().strip() if path else ""
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise admin_client.Unreachable(f"takes the token in {path}, which cannot be read: {reason}") from None


def _problem(said: bytes) -> str | None:
    """Why an answer does not mean that the sidecar has drained; None if it does."""
    try:
        state = json.loads(said)
        phase, active = str(state["phase"]), int(state["active"])
    except (ValueError, TypeError, KeyError):
        return f"does not answer as a sidecar's does: {admin_client.shown(said)}"
    if phase == "drained":
        return None
    return f"answered at the end of the grace period: requests and streams still open: {active} (phase {phase})"


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    words = "Let the sidecar in this pod answer what it accepted and refuse the rest; return when it has."
    parser = admin_client.Parser("drain", words, _EPILOG, environment)
    token = environment.get("CARPOOL_ADMIN_TOKEN_FILE", "")
    parser.add_argument("--admin-token-file", default=token, metavar="FILE", help="as given to the sidecar")
    parser.add_argument("--timeout", default=None, metavar="SECONDS", type=_seconds, help=_TIMEOUT)
    return parser


_TIMEOUT = "to wait, at most; else as long as the sidecar takes, which ends with its --grace-period"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.001 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"got {text!r}: must be a number of seconds from 0.001 to 86400")
    return value
