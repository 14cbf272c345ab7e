"""`carpool-sidecar plan`: the command line of the planner."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from carpool.program import settings
from carpool_sidecar.planning import forecasts, planner, report, service_times, timing

PROG = "carpool-sidecar plan"

_EPILOG = """\
Requests have one instance each and come as a Poisson stream; the sidecar is told the objective (--slo) and learns the
rest. What it refuses counts as not in time. Examples:

  carpool-sidecar plan --rate 2000 --slo 100 --service 10+0.1n
  carpool-sidecar plan --rate 300 --slo 250 --service 1:18,8:31,32:80 --max-batch-size 32 --balancer least-loaded
"""

_PATIENCE = 1.0  # seconds without a word


def main(argv: Sequence[str], effort: planner.Effort = planner.DEFAULT) -> int:
    """Print how many pods are needed; the exit status is 0.

    Exits with 2 and one line on standard error if an argument is bad or no number of pods is enough.
    """
    chosen = _parser().parse_args(argv)
    curve, words = chosen.service
    question = forecasts.Question(
        rate=chosen.rate,
        slo=chosen.slo / 1000,
        predictor=service_times.Predictor(curve, chosen.overhead / 1000, chosen.workers, chosen.noise),
        max_batch_size=chosen.max_batch_size,
        share=chosen.share,
        balancer=forecasts.Balancer(chosen.balancer),
    )
    try:
        plan = planner.plan(question, _progress(), effort)
    except planner.Infeasible as error:
        settings.fail(PROG, str(error))
    answer = json.dumps(report.values(plan, words), indent=2) if chosen.json else report.text(plan, words)
    sys.stdout.write(answer + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROG,
        description="How many pods (replicas of predictor and sidecar) a load needs, found by simulation.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--rate", required=True, metavar="X", type=_number(1e-3, 1e9), help="requests a second, of all pods")
    add("--slo", required=True, metavar="MS", type=_number(0.1, 60_000), help="milliseconds from arrival to answer")
    add("--service", required=True, metavar="TIME", type=_service, help=timing.ALLOWED)
    add("--share", default=0.99, metavar="X", type=_number(0.5, 0.999), help="of requests in time (%(default)s)")
    add("--max-batch-size", default=32, metavar="N", type=_whole(1, 10_000), help="instances (%(default)s)")
    add("--overhead", default=1.0, metavar="MS", type=_number(0, 60_000), help=_OVERHEAD)
    add("--noise", default=0.05, metavar="X", type=_number(0, 2), help=_NOISE)
    add("--workers", default=1, metavar="N", type=_whole(1, 16), help="batches the predictor works on at once (1)")
    add("--balancer", default="random", choices=[*forecasts.Balancer], help="how requests find a pod (%(default)s)")
    add("--json", action="store_true", help="print JSON")
    return parser


_OVERHEAD = "milliseconds around a batch that another may overlap: network, JSON (%(default)s)"
_NOISE = "coefficient of variation of the service time, lognormal (%(default)s)"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        settings.fail(PROG, message.removeprefix("argument "))


def _number(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"got {text!r}: must be a number from {least:g} to {most:,.10g}")
        return value

    return parse


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"got {text!r}: must be a whole number from {least} to {most:,}")
        return int(text)

    return parse


def _service(text: str) -> tuple[service_times.Service, str]:
    try:
        return timing.parse(text), text.strip()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _progress() -> planner.Progress:
    """Tells what goes on, once it takes longer than a person waits without wondering."""
    began = time.monotonic()

    def tell(pods: int, requests: int) -> None:
        if time.monotonic() - began > _PATIENCE:
            sys.stderr.write(f"simulating {requests:,} requests, {pods:,} pods …\n")

    return tell
