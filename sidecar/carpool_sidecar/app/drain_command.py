"""`carpool-sidecar drain`: the preStop hook of the sidecar's own container.

It runs beside the serving process, within the same small CPU limit, while the last requests are being answered. So it
imports the standard library alone.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

PROG = "carpool-sidecar drain"

_EXIT_FAILED, _EXIT_USAGE = 1, 2

_EPILOG = """\
The address and port are those the sidecar was started with. In the sidecar's container they come from the same
environment variables and need not be given. Addresses that mean "all" are reached over loopback: 0.0.0.0 at 127.0.0.1,
and :: at ::1. Any other address needs a sidecar with --admin-write any, because callers that use it do not count as
inside the pod. As the hook of a container:

  lifecycle: {preStop: {exec: {command: [carpool-sidecar, drain]}}}
"""

# Where a server that listens on all interfaces is found without leaving the pod.
_LOOPBACK_OF = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_MOST_BYTES = 64 * 1024
_SHOWN_CHARACTERS = 200


def main(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Start the sidecar's shutdown and return 0 once everything accepted has been answered.

    Returns 1, with one line on standard error, if the sidecar cannot be reached, does not answer in time, answers
    something else, or gave up at the end of its grace period. Exits with 2 for bad arguments.
    """
    chosen = _parser(environment).parse_args(argv)
    host = reached_at(chosen.admin_host)
    address = f"[{host}]:{chosen.admin_port}" if ":" in host else f"{host}:{chosen.admin_port}"
    try:
        problem = _problem(*_ask(host, chosen.admin_port, chosen.timeout))
    except TimeoutError:
        problem = f"did not answer within {chosen.timeout:g} s; a drain that has begun goes on"
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        problem = f"cannot be reached: {reason}; are --admin-host and --admin-port those of the sidecar?"
    if problem is None:
        return 0
    sys.stderr.write(f"{PROG}: error: the admin port {address} {problem}\n")
    return _EXIT_FAILED


def _ask(host: str, port: int, timeout: float | None) -> tuple[int, str]:
    """Status and text of the answer, which comes when the drain is over."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("POST", "/drain")
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST_BYTES).decode(errors="replace")
    finally:
        connection.close()


def _problem(status: int, text: str) -> str | None:
    """Why an answer does not mean that the sidecar has drained; None if it does."""
    shown = " ".join(text.split())[:_SHOWN_CHARACTERS]
    if status != http.client.OK:
        return f"answered {status}: {shown or 'nothing'}"
    try:
        state = json.loads(text)
        phase, active = str(state["phase"]), int(state["active"])
    except (ValueError, TypeError, KeyError):
        return f"does not answer as a sidecar's does: {shown or 'nothing'}"
    if phase == "drained":
        return None
    return f"answered at the end of the grace period: requests and streams still open: {active} (phase {phase})"


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROG,
        description="Let the sidecar in this pod answer what it accepted and refuse the rest; return when it has.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_address(parser, environment)
    parser.add_argument("--timeout", default=None, metavar="SECONDS", type=_seconds, help=_TIMEOUT)
    return parser


def add_address(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    """Let a command line say where the sidecar's admin port is, as its own settings say it."""
    host = environment.get("CARPOOL_ADMIN_HOST", "0.0.0.0")
    parser.add_argument("--admin-host", default=host, metavar="ADDRESS", help="as given to the sidecar (%(default)s)")
    parser.add_argument("--admin-port", default=_port_from(environment), metavar="N", type=_port, help=_PORT)


def reached_at(host: str) -> str:
    """Where to reach, from inside the pod, what listens at this address."""
    return _LOOPBACK_OF.get(host, host)


_PORT = "as given to the sidecar (%(default)s)"
_TIMEOUT = "to wait, at most; else as long as the sidecar takes, which ends with its --grace-period"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{PROG}: error: {message.removeprefix('argument ')} (see {PROG} --help)\n")
        raise SystemExit(_EXIT_USAGE)


def _port_from(environment: Mapping[str, str]) -> str:
    value = environment.get("CARPOOL_ADMIN_PORT", "")
    # In the namespace of a Service named "carpool-admin" Kubernetes sets it to tcp://… in every pod.
    return "9082" if value.startswith(("tcp://", "udp://", "sctp://")) or not value else value


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"(CARPOOL_ADMIN_PORT) got {text!r}: must be a port from 1 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.001 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"got {text!r}: must be a number of seconds from 0.001 to 86400")
    return value
