"""From `--models` to model objects: the built-in ones by name, everybody else's by import path.

The server only checks the spelling, because importing a model belongs into its worker process.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
import re
from collections.abc import Callable, Iterator

import msgspec

from carpool_predictor import model
from carpool_predictor.models import echo

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

# cgroup v2: "QUOTA PERIOD" in microseconds, or "max PERIOD" without a limit.
# https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
_CPU_MAX = pathlib.Path("/sys/fs/cgroup/cpu.max")

AnyModel = model.Model | model.RawModel


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the built-in models can be told; `carpool_predictor.config` explains each."""

    torch_threads: int = 0
    precision: str = "auto"
    gpu_memory: float | None = None
    vit_size: str = "base"
    echo_fixed_ms: float = 0.0
    echo_per_instance_ms: float = 0.0
    echo_answer: str = "instance"
    echo_poison: str = ""


class Spec(msgspec.Struct, frozen=True):
    """One model to serve: the name in its URL, and a built-in name or `package.module:Class`."""

    name: str
    target: str


def parse(text: str) -> Spec:
    """Read one item of `--models`. Raises ValueError with what is wrong and what is allowed."""
    name, equals, target = text.partition("=")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no model name; allowed: letters, digits, '.', '_' and '-'")
    if not equals and name not in BUILT_IN:
        raise ValueError(f"{name!r} is not built in; allowed: {', '.join(BUILT_IN)} or name=package.module:Class")
    if equals and target not in BUILT_IN and not _TARGET.fullmatch(target):
        raise ValueError(f"{target!r} is no import path; write {name}=package.module:Class")
    return Spec(name, target if equals else name)


def create(spec: Spec, device: str, options: Options) -> AnyModel:
    """Import and build a model for a device. Raises `model.Unusable` if that cannot work with what is installed."""
    if spec.target in BUILT_IN:
        return BUILT_IN[spec.target](device, options)
    factory = _find(spec.target)
    made = factory() if callable(factory) else None
    if not isinstance(made, model.Model | model.RawModel):
        raise model.Unusable(f"model {spec.name}: {spec.target} needs load, warm_up, and predict or predict_rows")
    return made


def available_cpus(cpu_max: pathlib.Path = _CPU_MAX) -> int:
    """How many CPUs this process may use: those of its affinity mask, or its container's limit if that is lower.

    torch starts one thread for each CPU of the node; under a CPU limit most of them would wait for each other.
    """
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_max.read_text().split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(1, min(allowed, -(-int(quota) // int(period))))


def _find(target: str) -> object:
    module_name, _, path = target.partition(":")
    try:
        found: object = importlib.import_module(module_name)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        raise model.Unusable(f"cannot import {target}: {error}") from error
    return found


def _echo(device: str, options: Options) -> AnyModel:
    time = echo.ServiceTime(options.echo_fixed_ms / 1e3, options.echo_per_instance_ms / 1e3)
    kind = echo.Echo if time.is_none else echo.QueuedEcho  # a queue costs a thread's wake-up
    return kind(time, as_length=options.echo_answer == "length", poison=options.echo_poison.encode())


def _minilm(device: str, options: Options) -> AnyModel:
    with _extra_needed("minilm"):
        from carpool_predictor.models import minilm
    threads = options.torch_threads or available_cpus()
    return minilm.MiniLM(device, threads, options.precision, options.gpu_memory)


def _vit(device: str, options: Options) -> AnyModel:
    with _extra_needed("vit-random"):
        from carpool_predictor.models import vit
    threads = options.torch_threads or available_cpus()
    return vit.RandomViT(device, threads, options.vit_size, options.precision, options.gpu_memory)


@contextlib.contextmanager
def _extra_needed(name: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise model.Unusable(f"model {name} needs more: pip install 'carpool-predictor[minilm]' ({error})") from error


BUILT_IN: dict[str, Callable[[str, Options], AnyModel]] = {"echo": _echo, "minilm": _minilm, "vit-random": _vit}
