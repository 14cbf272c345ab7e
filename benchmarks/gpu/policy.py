"""The policy on a real device: adaptive beside fixed windows, what it learned beside what is so, and plan's forecast.

All of it is one section, since each part needs the one before: the service times S(n) of the predictor, asked directly;
the capacity behind a sidecar with many callers; Poisson arrivals at shares of that, for the adaptive policy with its
defaults and for a sweep of windows around S(n); batches in flight; and `carpool-sidecar plan`, given what the sidecar
recorded, beside what callers then got.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import client, metrics, processes
from benchmarks.gpu import measuring, systems
from carpool_sidecar.recording import document

LOADS = (0.5, 0.8, 0.95)
SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128)
WINDOWS = (0.125, 0.25, 0.5)
"""Windows of the sweep, in times that a full batch takes."""

SHARES = (0.25, 1.0)
"""Largest batches of the sweep, in shares of the model's."""

TURNS = 2
"""Runs of each system at each load. All take turns, since machines become quicker and slower by a third in minutes."""

IN_FLIGHT = (1, 2)
CROWD = 4  # callers for each instance of a full batch, who show the capacity
MOST_CALLERS = 512
QUICK_BATCH = 16
FORECAST_SLO = 10.0  # objective of a forecast, in times that a full batch takes: nearly nobody is refused
LUCK = 1.05  # the adaptive policy is as good as the best window up to so many times its figure
WITHIN = 0.10  # target: figures of a forecast are so near
ADAPTIVE = "adaptive"
_SIZE_SECONDS = 0.4
_PLAN_SECONDS = 120.0


def seconds(bench: measuring.Bench) -> float:
    """About how long `measure` takes, for a model that is ready in 20 seconds."""
    one = bench.seconds + bench.warm_up + 0.5
    contenders = 1 + len(list(_windows(bench.quick, 128, 0.01)))
    loads = len(_loads(bench))
    sweep = contenders * (TURNS * loads * one + 1)
    others = (1 + len(IN_FLIGHT) + loads) * (one + 1)
    return 20 + len(SIZES) * _SIZE_SECONDS + sweep + others + 20


def measure(bench: measuring.Bench, model: systems.Model, precision: str) -> dict[str, Any]:
    """Everything the module says, as lists of rows."""
    setup = bench.setup(model, precision, QUICK_BATCH if bench.quick else None)
    with systems.Alone().running(setup) as predictor:
        service = service_times(bench, predictor, setup)
        full = service[-1]["median"]
        capacity, in_flight = _capacity(bench, predictor, setup)
        found = {
            "model": model.name,
            "precision": precision,
            "max_batch": setup.max_batch,
            "service": service,
            "capacity": capacity,
            "in_flight": in_flight,
        }
        sweep, learned = _sweep(bench, predictor, setup, capacity, full)
        forecasts = _forecasts(bench, predictor, setup, capacity, full)
    return found | {"rows": sweep, "learned": learned, "forecasts": forecasts}


def service_times(bench: measuring.Bench, predictor: systems.Running, setup: systems.Setup) -> list[measuring.Row]:
    """S(n): the predictor asked directly with n instances, one call after another."""
    rows = []
    with measuring.Asker(predictor) as asker:
        for size in (each for each in SIZES if each <= setup.max_batch):
            asker.times(systems.batch(setup.model, size), 0.0, least=3)
            took = asker.times(systems.batch(setup.model, size), 0.1 if bench.quick else _SIZE_SECONDS)
            rows.append({"size": size, "calls": len(took), "median": took[len(took) // 2], "least": took[0]})
            bench.say(f"  S({size}) = {rows[-1]['median'] * 1e3:.2f} ms ({len(took)} calls)")
    return rows


def _capacity(
    bench: measuring.Bench, predictor: systems.Running, setup: systems.Setup
) -> tuple[float, list[measuring.Row]]:
    """Requests/s with as many callers as keep full batches coming, by the batches in flight; the learned one counts."""
    callers = min(MOST_CALLERS, (2 if bench.quick else CROWD) * setup.max_batch)
    rows = []
    for count in (None, *IN_FLIGHT):
        flags = () if count is None else ("--max-in-flight", str(count))
        name = "learned" if count is None else str(count)
        with systems.Sidecar(flags=flags).before(predictor, setup) as running:
            row = bench.closed(f"{name} in flight", running, callers)
            rows.append(row | {"in_flight": name, "limit": learned_of(running).get("in_flight_limit")})
    if not rows[0]["rate"]:
        raise ValueError(f"{callers} callers got no answers in {bench.seconds:g} s: this model is too slow here")
    return rows[0]["rate"], rows


def _loads(bench: measuring.Bench) -> Sequence[float]:
    return LOADS[1:2] if bench.quick else LOADS


def _windows(quick: bool, max_batch: int, full: float) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names and flags of the sidecars in the sweep."""
    for share in SHARES[1:] if quick else SHARES:
        size = max(1, round(max_batch * share))
        for part in WINDOWS[1:2] if quick else WINDOWS:
            wait = round(part * full * 1e3, 1)
            flags = ("--policy", "window", "--max-latency", f"{wait:g}", "--max-batch-size", str(size))
            # Two in flight hide the network and JSON of a serial predictor, as the sidecar's help says.
            yield f"window {wait:g} ms, {size}", (*flags, "--max-in-flight", "2")


def _sweep(
    bench: measuring.Bench, predictor: systems.Running, setup: systems.Setup, capacity: float, full: float
) -> tuple[list[measuring.Row], list[measuring.Row]]:
    """Every system at every load, in turns; and what the adaptive policy had learned at each."""
    rows, learned = [], []
    with contextlib.ExitStack() as stack:
        up = [
            (name, stack.enter_context(systems.Sidecar(flags=flags).before(predictor, setup)))
            for name, flags in [(ADAPTIVE, ()), *_windows(bench.quick, setup.max_batch, full)]
        ]
        for load, turn in itertools.product(_loads(bench), range(TURNS)):
            for name, running in up:
                row = bench.poisson(name, running, load * capacity, seed=round(load * 100) + 2 * turn)
                rows.append(row | {"load": load, "turn": turn})
                if name == ADAPTIVE:
                    learned.append({"load": load, "turn": turn, **learned_of(running)})
    return rows, learned


def learned_of(running: systems.Running) -> dict[str, float]:
    """What the sidecar says that it learned, by the names of its metrics without their prefix."""
    assert running.admin_port is not None
    found = metrics.read(running.admin_port)
    names = ("service_fixed_seconds", "service_instance_seconds", "overhead_seconds", "workers", "in_flight_limit")
    return {name: found[f"carpool_{name}"] for name in (*names, "capacity") if f"carpool_{name}" in found}


def predicted(learned: dict[str, float], size: int) -> float:
    """Seconds of a call with so many instances, alone at the predictor, by what was learned."""
    work = learned["service_fixed_seconds"] + learned["service_instance_seconds"] * size
    return work + learned.get("overhead_seconds", 0.0)


# --- plan -------------------------------------------------------------------------------------------------------------


def _forecasts(
    bench: measuring.Bench, predictor: systems.Running, setup: systems.Setup, capacity: float, full: float
) -> list[measuring.Row]:
    """What callers got with an objective, and what `plan` says of one pod with these arrivals."""
    slo = round(FORECAST_SLO * full * 1e3, 1)
    rows = []
    with tempfile.TemporaryDirectory(prefix="carpool-gpu-") as folder:
        recorded = []
        for load in _loads(bench):
            with systems.Sidecar(flags=("--slo", f"{slo:g}")).before(predictor, setup) as running:
                row = bench.poisson(f"{ADAPTIVE}, slo", running, load * capacity, seed=round(load * 100) + 1)
                file = pathlib.Path(folder, f"{load}.jsonl")
                recording = client.get(f"http://{processes.HOST}:{running.admin_port}/arrivals", 30)
                file.write_bytes(lately(recording, bench.seconds))
            rows.append(row | {"load": load, "slo_ms": slo})
            recorded.append((file, slo))
        # All at once, and only now: a simulation would take a core from what is measured.
        for row, plan in zip(rows, [_begin_plan(*each) for each in recorded], strict=True):
            row["plan"] = _end_plan(plan)
            bench.say(f"  plan at {row['load']:.0%}: {_forecast_words(row)}")
    return rows


def lately(recording: bytes, seconds: float) -> bytes:
    """Those blocks of a recording that began in its last seconds: what came as a run was warming up is no part of it.

    The last block stays in any case.
    """
    found = document.decode(recording)
    blocks = [block for _, block in found.blocks]
    kept = [block for block in blocks if block.began >= blocks[-1].ended - seconds] or blocks[-1:]
    return document.encode([found.head, *kept])


def plan_command(file: pathlib.Path, slo: float) -> list[str]:
    """As one would type it, after `carpool-sidecar`."""
    return ["plan", "--from", str(file), "--slo", f"{slo:g}", "--json"]


def _begin_plan(file: pathlib.Path, slo: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "carpool_sidecar", *plan_command(file, slo)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _end_plan(plan: subprocess.Popen[str]) -> dict[str, Any]:
    """What `plan` says of one pod; `failed` with the reason if it says nothing."""
    try:
        answer, trouble = plan.communicate(timeout=_PLAN_SECONDS)
    except subprocess.TimeoutExpired:
        plan.kill()
        plan.communicate()
        return {"failed": f"not done after {_PLAN_SECONDS:.0f} s"}
    if plan.returncode:
        return {"failed": trouble.strip() or f"exit status {plan.returncode}"}
    return of_one_pod(json.loads(answer))


def of_one_pod(answer: dict[str, Any]) -> dict[str, Any]:
    """The figures for one pod in what `plan --json` printed: the chosen number, or the one that is too few."""
    of_one = next((each for each in (answer["chosen"], answer["fewer"]) if each and each["pods"] == 1), None)
    if of_one is None:
        return {"failed": f"it asks for {answer['pods']} pods and does not tell of one"}
    return {
        "service": answer["service"],
        "pods": answer["pods"],
        "p50": of_one["p50_ms"] / 1e3,
        "p99": of_one["p99_ms"] / 1e3,
        "mean_batch": of_one["mean_batch"],
        "in_time": of_one["in_time"],
    }


def _forecast_words(row: measuring.Row) -> str:
    plan = row["plan"]
    if "failed" in plan:
        return str(plan["failed"])
    pairs = ((name, plan[name] * 1e3, row[name] * 1e3) for name in ("p50", "p99"))
    return ", ".join(f"{name} {said:.1f} ms, measured {was:.1f}" for name, said, was in pairs)
