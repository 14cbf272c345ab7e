"""`carpool-sidecar plan`: the command line of the planner."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from carpool.program import settings
from carpool.scheduling import own_time
from carpool_sidecar.planning import advise_text, arguments, fitting, planner, recorded, replay, service_times
from carpool_sidecar.recording import document

PROG = "carpool-sidecar plan"

_EPILOG = """\
Requests have one instance each and come as a Poisson stream, or are those that were recorded (--from), scaled to --rate
if it is given; the sidecar is told the objective (--slo) and learns the rest. What it refuses counts as not in time.
Examples:

  carpool-sidecar plan --rate 2000 --slo 100 --service 10+0.1n
  carpool-sidecar plan --rate 300 --slo 250 --service 1:18,8:31,32:80 --max-batch-size 32 --balancer least-loaded
  carpool-sidecar plan --from arrivals.jsonl --slo 100 --rate 2000
"""


def main(argv: Sequence[str], effort: planner.Effort = planner.DEFAULT) -> int:
    """Print how many pods are needed; the exit status is 0.

    Exits with 2 and one line on standard error if an argument is bad or no number of pods is enough.
    """
    chosen = _parser().parse_args(argv)
    predictor, words, own = _predictor(chosen)
    arrivals = None if chosen.recording is None else recorded.arrivals([block for _, block in chosen.recording.blocks])
    if arrivals is not None and chosen.rerank_to is not None:
        arrivals = arrivals.sharing()  # whatever the query: it goes along with each row
    most_rows, most_bytes = _limits(chosen)
    question = planner.Question(
        rate=chosen.rate or (arrivals.rate if arrivals else 0.0),
        slo=chosen.slo / 1000,
        predictor=predictor,
        max_batch_size=most_rows,
        max_batch_bytes=most_bytes,
        share=chosen.share,
        balancer=planner.Balancing(chosen.balancer),
        recorded=arrivals,
        own=own,
    )
    try:
        plan = planner.plan(question, _progress(), effort)
    except planner.Infeasible as error:
        settings.fail(PROG, str(error))
    answer = json.dumps(_values(plan, words), indent=2) if chosen.json else _text(plan, words)
    sys.stdout.write(answer + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = arguments.Parser(
        prog=PROG,
        description="How many pods (replicas of predictor and sidecar) a load needs, found by simulation.",
        epilog=_EPILOG,
    )
    add, number, whole = parser.add_argument, arguments.number, arguments.whole
    add("--rate", metavar="X", type=number(1e-3, 1e9), help="requests a second, of all pods")
    add("--slo", metavar="MS", type=number(0.1, 60_000), help="milliseconds from arrival to answer")
    add("--service", metavar="TIME", type=_service, help=service_times.ALLOWED)
    add("--from", dest="recording", metavar="FILE", type=arguments.recording, help=_FROM)
    add("--share", default=0.99, metavar="X", type=number(0.5, 0.999), help="of requests in time (%(default)s)")
    add("--max-batch-size", metavar="N", type=whole(1, 10_000), help="instances (32, or as recorded)")
    arguments.add_rules(parser, _LISTS)
    arguments.add_destination(parser, is_called=False)
    add("--overhead", metavar="MS", type=number(0, 60_000), help=_OVERHEAD)
    add("--own-time", metavar="TIME", type=_own_time, help=_OWN_TIME)
    add("--noise", metavar="X", type=number(0, 2), help=_NOISE)
    add("--workers", metavar="N", type=whole(1, 16), help="batches the predictor works on at once (1)")
    add("--balancer", default="random", choices=[*planner.Balancing], help="how requests find a pod (%(default)s)")
    add("--json", action="store_true", help="print JSON")
    return parser


_FROM = "recorded arrivals in place of Poisson (--record, /arrivals); their rate and predictor where no other is given"
_LISTS = "rules that the requests are by, whose limits hold; those in bytes, characters and tokens need --from"
_OVERHEAD = "milliseconds around a batch that another may overlap: network, JSON (1)"
_OWN_TIME = "milliseconds of its core that the sidecar takes for a batch of n requests: 0.1+0.02n (as recorded, or 0)"
_NOISE = "coefficient of variation of the service time, lognormal (0.05)"


def _service(text: str) -> tuple[service_times.Service, str]:
    try:
        return service_times.parse(text), text.strip()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _own_time(text: str) -> own_time.OwnTime:
    try:
        service = service_times.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not isinstance(service, service_times.Affine):
        raise argparse.ArgumentTypeError(f"{text!r} is not a formula; allowed: like 0.1+0.02n")
    return own_time.OwnTime(service.fixed, service.per_row)


def _predictor(chosen: argparse.Namespace) -> tuple[service_times.Predictor, str, own_time.OwnTime]:
    """The predictor as it was described, or else as it was recorded, its time in words, and the sidecar's own time."""
    recorded_names = () if chosen.recording else ("rate", "service")
    missing = [f"--{name}" for name in ("slo", *recorded_names) if getattr(chosen, name) is None]
    if missing:
        settings.fail(PROG, f"the following arguments are required: {', '.join(missing)}")
    own = own_time.NO_TIME if chosen.recording is None else fitting.own_time_of(chosen.recording)
    if chosen.service is not None:
        usual, words = service_times.Predictor(chosen.service[0], 0.001), chosen.service[1]
    else:
        try:
            blocks = [block for _, block in chosen.recording.blocks]
            tell = arguments.patiently()
            found = fitting.model(chosen.recording, blocks, chosen.workers, lambda label: tell(f"replaying: {label} …"))
        except replay.Nothing as error:
            settings.fail(PROG, f"--from: {error}; say it with --service")
        usual, words = found.predictor, found.predictor.words
    predictor = usual._replace(
        overhead=usual.overhead if chosen.overhead is None else chosen.overhead / 1000,
        workers=chosen.workers or usual.workers,
        variation=usual.variation if chosen.noise is None else chosen.noise,
    )
    return predictor, words, own if chosen.own_time is None else chosen.own_time


def _limits(chosen: argparse.Namespace) -> tuple[int, float]:
    """Instances and bytes of a call, at most: as said or recorded, and by the rules of the requests."""
    recording: document.Recording | None = chosen.recording
    recorded_bytes = 0 if recording is None else recording.head.settings.max_batch_bytes
    size = chosen.max_batch_size or (32 if recording is None else recording.head.settings.max_batch_size)
    if not chosen.lists and chosen.rerank_to is None:
        return size, recorded_bytes or math.inf
    from carpool_sidecar.protocols.lists import rules  # which takes long to load
    from carpool_sidecar.protocols.pairs import codec as pairs

    try:
        found = rules.named(chosen.lists)
    except ValueError as error:
        settings.fail(PROG, f"--lists: {error}")
    if chosen.rerank_to is not None:
        try:
            chosen.rerank_to.check(found)
        except ValueError as error:
            settings.fail(PROG, str(error))
    most_bytes = min([recorded_bytes or math.inf, *[rule.most_bytes for rule in found]])
    if recording is None and most_bytes < math.inf:
        settings.fail(PROG, "--lists: limits in bytes, characters or tokens need --from, which tells of bytes")
    if chosen.rerank_to is not None:
        found = tuple([pairs.called_by(rule, chosen.rerank_to) if rule.query else rule for rule in found])
    return min([size, *[rule.max_batch_size for rule in found if rule.max_batch_size is not None]]), most_bytes


def _progress() -> planner.Progress:
    tell = arguments.patiently()
    return lambda pods, requests: tell(f"simulating {requests:,} requests, {pods:,} pods …")


# --- the answer, for people and for programs ----------------------------------------------------------------------

_HEADS = (
    ("", "pods", "requests/s", "load", "busy", "mean", "p50", "p99", "in time"),
    ("", "", "per pod", "", "", "batch", "ms", "ms", ""),
)


def _text(plan: planner.Plan, service: str) -> str:
    """The answer, the table, and why; `service` is the predictor's time as the person wrote it."""
    question = plan.question
    return "\n".join(
        [
            f"{_pods(plan.chosen.pods)} for {question.rate:,.10g} requests/s, {_percent(question.share)} of them "
            f"answered within {_ms(question.slo)} ms.",
            "",
            *_table(plan),
            "",
            *_reasons(plan),
            "",
            *_basis(plan, service),
        ]
    )


def _values(plan: planner.Plan, service: str) -> dict[str, Any]:
    """The same as JSON values; times are milliseconds."""
    question = plan.question
    predictor = question.predictor
    return {
        "pods": plan.chosen.pods,
        "exact_to_pods": plan.step,
        "rate": question.rate,
        "slo_ms": question.slo * 1000,
        "share": question.share,
        "service": service,
        "max_batch_size": question.max_batch_size,
        "overhead_ms": predictor.overhead * 1000,
        "noise": predictor.variation,
        "workers": predictor.workers,
        "own_batch_ms": question.own.batch * 1000,
        "own_request_ms": question.own.request * 1000,
        "balancer": question.balancer.value,
        "chosen": _row(plan.chosen),
        "fewer": _row(plan.fewer) if plan.fewer else None,
        "more": _row(plan.more),
        "simulated_requests": plan.simulated,
        "recorded_requests": len(question.recorded.times) if question.recorded else None,
    }


def _row(found: planner.Forecast) -> dict[str, float]:
    row = {name: round(value, 6) for name, value in found._asdict().items() if name not in ("p50", "p99")}
    return row | {f"{name}_ms": round(getattr(found, name) * 1000, 3) for name in ("p50", "p99")}


def _table(plan: planner.Plan) -> Iterator[str]:
    labelled = (("too few", plan.fewer), ("plan", plan.chosen), ("head-room", plan.more))
    rows = [*_HEADS, *(_cells(label, found) for label, found in labelled if found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for label, *cells in rows:
        line = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield f"{label:<{widths[0]}}  {line}".rstrip()


def _cells(label: str, found: planner.Forecast) -> Sequence[str]:
    return (
        label,
        f"{found.pods:,}",
        f"{found.rate_per_pod:,.4g}" if found.rate_per_pod < 1000 else f"{found.rate_per_pod:,.0f}",
        f"{found.load:.0%}" if found.load >= 0.1 else f"{found.load:.1%}",
        f"{found.busy:.0%}",
        f"{found.mean_batch:.1f}",
        f"{found.p50 * 1000:.1f}",
        f"{found.p99 * 1000:.1f}",
        f"{found.in_time:.2%} ± {found.margin * 100:.2f}",
    )


def _reasons(plan: planner.Plan) -> Iterator[str]:
    question = plan.question
    one = plan.question.predictor.service.seconds(1, 0.0)
    if plan.fewer is not None:
        yield f"{_pods(plan.fewer.pods)}: {_why_not(plan.fewer)}"
    elif plan.chosen.load < 1:
        yield f"1 pod is enough: it could do {question.capacity / question.rows:,.0f} requests/s, in full batches."
    if question.is_limited_by_the_core:
        yield "What limits a pod is the sidecar's own core, and not the predictor."
    if plan.question.slo < 2 * one + plan.question.predictor.overhead:
        yield "The objective is shorter than two batches of one instance: who comes just after one has left is late, so"
        yield "nearly every request has to find an idle pod."
    spare = plan.more.pods - plan.chosen.pods
    room = plan.more.pods / plan.chosen.pods - 1
    yield f"{_pods(plan.more.pods)}: room for {room:.0%} more requests, or for {_pods(spare)} out of service."


def _why_not(found: planner.Forecast) -> str:
    missed = 1 - found.in_time
    if found.load >= 1:
        return f"asked for {found.load:.0%} of what full batches can do; {missed:.1%} would be refused or late."
    late = max(0.0, missed - found.refused)
    return (
        f"queues are too long too often at {found.load:.0%} of capacity; {found.refused:.1%} would be refused early "
        f"and {late:.1%} late."
    )


def _basis(plan: planner.Plan, service: str) -> Iterator[str]:
    question = plan.question
    predictor = question.predictor
    workers = f", {predictor.workers} at once" if predictor.workers > 1 else ""
    exact = f" The answer is exact to {plan.step} pods." if plan.step > 1 else ""
    kind = "one instance each, Poisson"
    if question.recorded is not None:
        kind = f"as recorded, {question.rows:.3g} instances each"
    yield (
        f"Simulated {plan.simulated:,} requests ({kind}) through the sidecar's own scheduler, policy adaptive.{exact}"
    )
    yield (
        f"Balancer: {question.balancer.value}. Predictor: {service} ms for a batch of n, at most "
        f"{question.max_batch_size}{workers}; noise {predictor.variation:.0%}; {_ms(predictor.overhead)} ms around it."
    )
    yield advise_text.own_words(question.own)
    yield "load: of what full batches can do. busy: of the time; high, because batches grow to fill it."
    yield "in time: answered within the objective, of all requests; ± two standard errors."


def _pods(count: int) -> str:
    return f"{count:,} pod" if count == 1 else f"{count:,} pods"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.10g}"


def _percent(share: float) -> str:
    return f"{share * 100:.6g} %"
