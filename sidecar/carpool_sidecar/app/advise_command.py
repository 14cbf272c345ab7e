"""`carpool-sidecar advise`: what other settings, or other numbers of pods, would have done with the traffic that came.

It asks the sidecar of its pod, or reads what was recorded. It may run beside the serving process: then it shares the
container's CPU, so it replays few requests at a time and says what it does.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
from collections.abc import Mapping, Sequence

from carpool_sidecar.app import drain_command
from carpool_sidecar.planning import advice, advise_text, arguments, replay
from carpool_sidecar.recording import document

PROG = "carpool-sidecar advise"

_EPILOG = """\
The sidecar keeps the arrivals of the last ten minutes, 100,000 at most: when, how many instances, how many bytes, and a
hash of the batch key; no payloads and no names. They are replayed through its own scheduler in front of the predictor
as it was learned. Examples:

  kubectl exec POD -c carpool -- carpool-sidecar advise --slo 50
  kubectl exec POD -c carpool -- carpool-sidecar advise --pods 4 --slo 50 --share 0.999
  curl -s localhost:9082/arrivals | carpool-sidecar advise --from -
"""

_TIMEOUT = 30.0  # seconds without a byte
_EXIT_FAILED = 1


def main(argv: Sequence[str], environment: Mapping[str, str] = os.environ, most: int = advice.MOST) -> int:
    """Print what would have been, and one sentence of advice; the exit status is 0.

    Returns 1, with one line on standard error, if the sidecar cannot be asked or too little was recorded. Exits with 2
    for bad arguments.
    """
    chosen = _parser(environment).parse_args(argv)
    told = arguments.patiently()
    try:
        recording = chosen.recording or _ask(chosen.admin_host, chosen.admin_port)
        slo = None if chosen.slo is None else chosen.slo / 1000
        found = advice.advise(
            recording, slo, chosen.pods, chosen.share, lambda label: told(f"replaying: {label} …"), most
        )
    except (_NoAnswer, replay.Nothing, document.NotARecording) as error:
        sys.stderr.write(f"{PROG}: error: {error}\n")
        return _EXIT_FAILED
    if chosen.json:
        sys.stdout.write(json.dumps(advise_text.values(found, chosen.pods), indent=2) + "\n")
    else:
        sys.stdout.write(advise_text.text(found, chosen.pods) + "\n")
    return 0


class _NoAnswer(Exception):
    pass


def _ask(host: str, port: int) -> document.Recording:
    """What the sidecar answers at /arrivals."""
    host = drain_command.reached_at(host)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
    try:
        connection.request("GET", "/arrivals")
        answer = connection.getresponse()
        body = answer.read()
    except TimeoutError:
        raise _NoAnswer(f"the admin port {address} did not answer within {_TIMEOUT:g} s") from None
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        words = f"cannot be reached: {reason}; are --admin-host and --admin-port those of the sidecar?"
        raise _NoAnswer(f"the admin port {address} {words}") from None
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise _NoAnswer(f"the admin port {address} answered {answer.status} to GET /arrivals")
    return document.decode(body)


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = arguments.Parser(
        prog=PROG,
        description="What other settings would have done with the requests that came lately, found by replaying them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--from", dest="recording", metavar="FILE", type=arguments.recording, help=_FROM)
    drain_command.add_address(parser, environment)
    add("--slo", metavar="MS", type=arguments.number(0.1, 60_000), help=_SLO)
    add("--share", default=0.99, metavar="X", type=arguments.number(0.5, 0.999), help=_SHARE)
    add("--pods", default=1, metavar="N", type=arguments.whole(1, 100_000), help=_PODS)
    add("--json", action="store_true", help="print JSON")
    return parser


_FROM = "recorded arrivals in place of the sidecar's own (--record, /arrivals); - is standard input"
_SLO = "milliseconds from arrival to answer: rate by the share that is in time, in place of the mean"
_SHARE = "of requests in time (%(default)s)"
_PODS = "how many pods shared the load when this was recorded (%(default)s)"
