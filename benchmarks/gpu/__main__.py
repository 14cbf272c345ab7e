"""`python -m benchmarks.gpu`: what batching buys on a GPU, how the policy does there, and what the sidecar can carry.

Every section says what it does while it does it, prints its tables when it is done, and writes its figures at once, so
that a run that is cut off leaves what it had. `--from` makes tables and chart of such files, without a GPU.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks import command_line, machine, processes, wrk
from benchmarks.gpu import buys, callers, ceiling, chart, gauges, measuring, policy, results, systems, tables
from benchmarks.gpu.peers import tables as peer_tables
from tests import marks

SECONDS, QUICK_SECONDS = 4.0, 1.0
WARM_UP, QUICK_WARM_UP = 1.0, 0.3
BUDGET = 540.0
_COMMAND = "python -m benchmarks.gpu --from … --page docs/gpu.md"


class Job(NamedTuple):
    """A section that can be measured: about how many seconds it takes, what it lacks here, and how."""

    name: str
    seconds: Callable[[measuring.Bench], float]
    missing: Callable[[], str | None]
    measure: Callable[[measuring.Bench], dict[str, Any]]


def jobs(precision: str) -> list[Job]:
    """All sections, in the order in which they are measured."""
    found = [Job("ceiling", ceiling.seconds, lambda: None, ceiling.measure)]
    for name, model in systems.MODELS.items():
        found += [
            Job(f"batching-{name}", buys.seconds, model.missing, _of(buys.measure, model, precision)),
            Job(f"agreement-{name}", buys.agreement_seconds, model.missing, _of(buys.agree, model)),
            Job(f"policy-{name}", policy.seconds, model.missing, _of(policy.measure, model, precision)),
        ]
    return found


def _of(measure: Callable[..., dict[str, Any]], *given: object) -> Callable[[measuring.Bench], dict[str, Any]]:
    return lambda bench: measure(bench, *given)


def select(names: Sequence[str], precision: str = "float16") -> list[Job]:
    """Sections by name, by what stands before or after the dash, or all. Raises `ValueError` for other names."""
    known = jobs(precision)
    allowed = {part for job in known for part in (job.name, *job.name.split("-"))}
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise ValueError(f"there is no section {', '.join(unknown)}; allowed: {', '.join(job.name for job in known)}")
    return [job for job in known if not names or {job.name, *job.name.split("-")} & set(names)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, or show what was measured. 0 when there is something to show, 1 if not, 130 when interrupted."""
    options = _parser().parse_args(argv)
    command_line.end_on_sigterm()
    console = Console(width=None if sys.stdout.isatty() else 180, highlight=False, markup=False)
    if options.read:
        return _show(options, console)
    try:
        gpu: gauges.Gpu = gauges.NoneThere() if options.device == "cpu" else gauges.NvidiaGpu()
    except gauges.NoGpu as error:
        console.print(f"error: {error}. This measures on a GPU; `--device cpu --quick` only tries the program.")
        return 1
    return _measure(options, console, gpu)


def _show(options: argparse.Namespace, console: Console) -> int:
    try:
        sections = results.read(options.read)
    except results.NotResults as error:
        console.print(f"error: {error}")
        return 1
    wanted = {job.name for job in select(options.only)} if options.only else None
    sections = [section for section in sections if wanted is None or section.name in wanted]
    if not options.markdown:
        for section in sections:
            _print(console, section)
    _publish(options, console, sections)
    return 0 if sections else 1


def _publish(options: argparse.Namespace, console: Console, sections: Sequence[results.Section]) -> None:
    """The tables as a page, on a file and as asked, what the targets come to, and the chart."""
    page = markdown(sections)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu.md").write_text(page)
    if options.markdown:
        console.print(page, soft_wrap=True)
    else:
        console.print(tables.terminal(tables.verdict_table(tables.verdicts(sections))))
    has_chart = chart.draw(sections, options.out / "gpu.svg")
    if options.page:
        content = markdown(sections, is_for_readers=True)
        options.page.write_text(marks.renewed(options.page.read_text(), "figures", _COMMAND, content))
        chart.draw(sections, options.page.with_suffix(".svg"))
        console.print(f"written to {options.page}")
    console.print(f"written to {options.out}: gpu.md{', gpu.svg' if has_chart else ''}")


def markdown(sections: Sequence[results.Section], *, is_for_readers: bool = False) -> str:
    """All of it as a page: runs that are the same are named once. Verdicts, tables of single parts, and how busy the
    machine was with the measuring, are for who works on it.
    """
    parts = [] if is_for_readers else [tables.markdown(tables.verdict_table(tables.verdicts(sections)))]
    told: dict[str, Any] | None = None
    for section in sections:
        shown = tables_of(section)
        if is_for_readers:
            shown = [table.for_readers() for table in shown if table.is_for_readers]
        if shown and section.facts != told:
            told = section.facts
            parts.append(results.heading(told))
        parts += map(tables.markdown, shown)
    return "\n\n".join(parts) + "\n"


def tables_of(section: results.Section) -> list[tables.Table]:
    """Those of any section, also of one that `benchmarks.gpu.peers` measured."""
    return peer_tables.of(section.content) if section.kind == peer_tables.KIND else tables.of(section)


def _print(console: Console, section: results.Section) -> None:
    for table in tables_of(section):
        console.print(tables.terminal(table))


# --- measuring --------------------------------------------------------------------------------------------------------


def _measure(options: argparse.Namespace, console: Console, gpu: gauges.Gpu) -> int:
    cores = systems.share_out(systems.usable_cores())
    has_wrk = options.load == "wrk" or (options.load == "auto" and wrk.is_available())
    with callers.Callers(cores.load, has_wrk) as sending:
        facts = results.facts(gpu, options.device, cores, sending.words)
        bench = measuring.Bench(
            gpu=gpu,
            callers=sending,
            cores=cores,
            device=options.device,
            seconds=options.seconds or (QUICK_SECONDS if options.quick else SECONDS),
            warm_up=QUICK_WARM_UP if options.quick else WARM_UP,
            quick=options.quick,
            max_batch=options.max_batch_size,
            say=lambda text: console.print(text, soft_wrap=True),
        )
        console.print(results.heading(facts), soft_wrap=True)
        chosen = _plan(options, console, bench)
        if options.plan:
            return 0
        try:
            with machine.pinned(cores.own):
                done = _run_all(chosen, bench, facts, console, options.json)
        except KeyboardInterrupt:
            console.print(f"stopped: what was measured to the end is in {options.json}")
            return command_line.INTERRUPTED
    if done:
        _publish(options, console, done)
        console.print(f"figures: {options.json}")
    return 0 if done else 1


def _run_all(
    chosen: Sequence[Job], bench: measuring.Bench, facts: dict[str, Any], console: Console, file: pathlib.Path
) -> list[results.Section]:
    """Those that worked. The file has them from the end of each on."""
    done: list[results.Section] = []
    for job in chosen:
        section = _run(job, bench, facts)
        if section is not None:
            done.append(section)
            _print(console, section)
            results.write(file, done, facts)
    return done


def _plan(options: argparse.Namespace, console: Console, bench: measuring.Bench) -> list[Job]:
    """The sections that are measured, as far as the time goes; says which, how long, and what is left out and why."""
    chosen: list[Job] = []
    left = options.budget
    for job in select(options.only, options.precision):
        takes, lacking = job.seconds(bench), job.missing()
        if lacking is not None:
            console.print(f"plan: {job.name} is left out: {lacking}")
        elif takes > left:
            console.print(f"plan: {job.name} is left out: about {takes:.0f} s, and {left:.0f} s of --budget are left")
        else:
            console.print(f"plan: {job.name}, about {takes:.0f} s")
            left -= takes
            chosen.append(job)
    console.print(f"plan: about {options.budget - left:.0f} s in all")
    return chosen


def _run(job: Job, bench: measuring.Bench, facts: dict[str, Any]) -> results.Section | None:
    """One section; None if it failed, which is told."""
    bench.say(f"{job.name}:")
    start = time.monotonic()
    try:
        content = job.measure(bench)
    except processes.ChildFailed as error:
        bench.say(f"{job.name} failed: {error}\n{error.log}")
        return None
    except (OSError, ValueError, KeyError, wrk.WrkFailed) as error:
        bench.say(f"{job.name} failed: {type(error).__name__}: {error}")
        return None
    took = time.monotonic() - start
    bench.say(f"{job.name}: {took:.0f} s")
    return results.Section(job.name, content | {"took": took}, facts)


def _parser() -> argparse.ArgumentParser:
    names = ", ".join(job.name for job in jobs("float16"))
    parser = argparse.ArgumentParser(
        prog=f"python -m {results.PROGRAM}",
        description="Measures Carpool on a GPU: the predictor without and with the sidecar, precisions, the policy, "
        "and the sidecar alone. Everything runs on this machine's loopback and is stopped at the end.",
        epilog=f"Sections: {names}.",
    )
    add, default = parser.add_argument, "(default: %(default)s)"
    add(
        "--only",
        type=command_line.names(select),
        default=[],
        metavar="A,B",
        help="only these, e.g. ceiling,policy-minilm or minilm",
    )
    add("--device", default="cuda", choices=("cuda", "cpu"), help=f"cpu only tries the program {default}")
    add("--precision", default="float16", choices=systems.PRECISIONS, help=f"of all but `agreement` {default}")
    add("--max-batch-size", type=int, metavar="N", help="most instances in a batch (default: the model's)")
    add("--quick", action="store_true", help="short runs of a few cells: a rough look")
    add("--seconds", type=float, metavar="X", help=f"length of a run (default: {SECONDS:g})")
    add("--budget", type=float, default=BUDGET, metavar="X", help=f"seconds; what does not fit is left out {default}")
    add("--plan", action="store_true", help="only say what would be measured, and how long that takes")
    add("--load", default="auto", choices=("auto", "wrk", "python"), help=f"what sends in closed loops {default}")
    add(
        "--from",
        dest="read",
        type=_files,
        default=[],
        metavar="A,B",
        help="show the figures of these files, measure nothing",
    )
    add("--page", type=pathlib.Path, metavar="FILE", help="put the tables into this document, and the chart beside it")
    add("--out", type=pathlib.Path, default=pathlib.Path("out/gpu"), metavar="DIR", help=f"tables and chart {default}")
    command_line.add_results(parser, "out/gpu/gpu.json")
    return parser


def _files(text: str) -> list[pathlib.Path]:
    return [pathlib.Path(name) for name in text.split(",") if name]


if __name__ == "__main__":
    sys.exit(main())
