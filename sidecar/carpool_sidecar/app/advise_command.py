"""`carpool-sidecar advise`: what other settings, or other numbers of pods, would have done with the traffic that came.

It asks the sidecar of its pod, or reads what was recorded. It may run beside the serving process: then it shares the
container's CPU, so it replays few requests at a time and says what it does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence

from carpool_sidecar import admin_client
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
_EXIT_INTERRUPTED = 130  # as shells count Ctrl-C


def main(argv: Sequence[str], environment: Mapping[str, str] = os.environ, most: int = advice.MOST) -> int:
    """Print what would have been, and one sentence of advice; the exit status is 0.

    Returns 1, with one line on standard error, if the sidecar cannot be asked or too little was recorded. Exits with 2
    for bad arguments.
    """
    chosen = _parser(environment).parse_args(argv)
    where = admin_client.address(chosen)
    told = arguments.patiently()
    try:
        recording = chosen.recording or _ask(where)
        slo = None if chosen.slo is None else chosen.slo / 1000
        found = advice.advise(
            recording, slo, chosen.pods, chosen.share, lambda label: told(f"replaying: {label} …"), most
        )
    except admin_client.Unreachable as error:
        return admin_client.fail(PROG, where, str(error))
    except (replay.Nothing, document.NotARecording) as error:
        sys.stderr.write(f"{PROG}: error: {error}\n")
        return admin_client.EXIT_FAILED
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    if chosen.json:
        sys.stdout.write(json.dumps(advise_text.values(found, chosen.pods), indent=2) + "\n")
    else:
        sys.stdout.write(advise_text.text(found, chosen.pods) + "\n")
    return 0


def _ask(where: admin_client.Address) -> document.Recording:
    """What the sidecar answers at /arrivals."""
    try:
        with admin_client.asked(where, "GET", "/arrivals", _TIMEOUT) as answer:
            body = answer.read()
    except TimeoutError:
        raise admin_client.Unreachable(f"did not answer within {_TIMEOUT:g} s") from None
    return document.decode(body)


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    words = "What other settings would have done with the requests that came lately, found by replaying them."
    parser = admin_client.Parser("advise", words, _EPILOG, environment)
    add = parser.add_argument
    add("--from", dest="recording", metavar="FILE", type=arguments.recording, help=_FROM)
    add("--slo", metavar="MS", type=arguments.number(0.1, 60_000), help=_SLO)
    add("--share", default=0.99, metavar="X", type=arguments.number(0.5, 0.999), help=_SHARE)
    add("--pods", default=1, metavar="N", type=arguments.whole(1, 100_000), help=_PODS)
    add("--json", action="store_true", help="print JSON")
    return parser


_FROM = "recorded arrivals in place of the sidecar's own (--record, /arrivals); - is standard input"
_SLO = "milliseconds from arrival to answer: rate by the share that is in time, in place of the mean"
_SHARE = "of requests in time (%(default)s)"
_PODS = "how many pods shared the load when this was recorded (%(default)s)"
