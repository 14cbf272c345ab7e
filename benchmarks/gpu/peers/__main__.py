"""`python -m benchmarks.gpu.peers`: Carpool beside mosec, LitServe, BentoML, batched and Triton, on the same GPU.

Everybody serves the predictor's MiniLM in the same precision. Figures are in the form that `python -m benchmarks.gpu`
writes.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from benchmarks import command_line, machine, processes, wrk
from benchmarks.gpu import callers, gauges, measuring, results, systems, tables
from benchmarks.gpu.peers import comparison, contenders
from benchmarks.gpu.peers import tables as peer_tables
from benchmarks.peers import registry

PROGRAM = "benchmarks.gpu.peers"
SECONDS, WARM_UP = 2.0, 1.0  # whole seconds, as wrk wants
BUDGET = 560.0


def main(argv: Sequence[str] | None = None) -> int:
    """Compare. 0 when there are figures, 1 if not, 130 when interrupted."""
    options = _parser().parse_args(argv)
    command_line.end_on_sigterm()
    console = Console(width=None if sys.stdout.isatty() else 180, highlight=False, markup=False)
    try:
        gpu: gauges.Gpu = gauges.NoneThere() if options.device == "cpu" else gauges.NvidiaGpu()
        return _run(options, console, gpu)
    except gauges.NoGpu as error:
        console.print(f"error: {error}. This measures on a GPU; `--device cpu --quick` only tries the program.")
    except processes.ChildFailed as error:
        console.print(f"error: {error}\n{error.log}", soft_wrap=True)
    except (OSError, ValueError) as error:
        console.print(f"error: {error}", soft_wrap=True)
    except KeyboardInterrupt:
        console.print("stopped")
        return command_line.INTERRUPTED
    return 1


def _run(options: argparse.Namespace, console: Console, gpu: gauges.Gpu) -> int:
    begun, cores = time.monotonic(), systems.share_out(systems.usable_cores())
    model = systems.MODELS[systems.MINILM]
    with machine.pinned(cores.own), callers.Callers(cores.load, wrk.is_available()) as sending:
        facts = results.facts(gpu, options.device, cores, sending.words)
        facts["command"] = command_line.as_typed(PROGRAM)
        bench = measuring.Bench(
            gpu=gpu,
            callers=sending,
            cores=cores,
            device=options.device,
            seconds=1.0 if options.quick else options.seconds,
            warm_up=WARM_UP,
            quick=options.quick,
            say=lambda text: console.print(text, soft_wrap=True),
        )
        console.print(results.heading(facts), soft_wrap=True)
        place = contenders.Place(options.cache, bench.say, options.packages, options.triton)
        found = comparison.entrants(bench, model, options.precision, place)
        taking_part = _selected(found, options.only)
        for each in taking_part:
            _prepare(each)
        rounds = 1 if options.quick else options.rounds
        present = [each for each in taking_part if not each.absence]
        console.print(f"plan: {len(present)} systems, about {comparison.seconds(bench, present, rounds):.0f} s")
        if options.plan:
            return 0
        until = begun + options.budget
        content = comparison.measure(bench, model, options.precision, taking_part, rounds, until=until)
    section = results.Section(f"{peer_tables.KIND}-{model.name}", content, facts)
    results.write(options.json, [section], facts)
    for table in peer_tables.of(content):
        console.print(tables.markdown(table) + "\n" if options.markdown else tables.terminal(table), soft_wrap=True)
    console.print(f"figures: {options.json}")
    return 0 if content["rows"] else 1


def _selected(found: Sequence[comparison.Entrant], only: Sequence[str]) -> list[comparison.Entrant]:
    """By name as one types it. Raises `ValueError` for a name that there is not."""
    known = {registry.slug(each.name) for each in found}
    if unknown := [name for name in only if name not in known]:
        raise ValueError(f"unknown system {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return [each for each in found if not only or registry.slug(each.name) in only]


def _prepare(entrant: comparison.Entrant) -> None:
    """Install a peer where it may be installed; whoever cannot be is left out."""
    prepare = getattr(entrant.chosen.system, "prepare", None)
    if entrant.absence or prepare is None:
        return
    try:
        prepare()
    except OSError as error:
        entrant.absence = f"it could not be installed: {error}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description="Measures Carpool and others in front of the same model on the same GPU, each at its best setting.",
    )
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--only", type=lambda text: text.split(","), default=[], metavar="A,B", help="only these, e.g. mosec,triton")
    add("--device", default="cuda", choices=("cuda", "cpu"), help=f"cpu only tries the program {default}")
    add("--precision", default="float16", choices=systems.PRECISIONS, help=default)
    add("--quick", action="store_true", help="one setting of each, one round of 1 s, two numbers of callers")
    add("--seconds", type=float, default=SECONDS, metavar="X", help=f"length of a run {default}")
    add("--rounds", type=int, default=comparison.ROUNDS, metavar="N", help=f"at each number of callers {default}")
    add("--budget", type=float, default=BUDGET, metavar="X", help=f"seconds; rounds beyond it are left out {default}")
    add("--plan", action="store_true", help="only say who takes part, and how long that takes")
    add("--packages", type=pathlib.Path, metavar="DIR", help="a folder with the packages of all Python peers")
    add("--triton", type=pathlib.Path, metavar="DIR", help="a folder with Triton; else both are installed")
    command_line.add_cache(parser)
    command_line.add_results(parser, "out/gpu/peers.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
