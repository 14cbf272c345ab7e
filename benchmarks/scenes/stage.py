"""Plays a scene: installs the server, starts it, and asks it without and with the sidecar, in turns.

All ways see the same requests from the same number of callers. What each row is answered alone, before anything is
measured, is what it has to be answered in every round, whoever shares its call.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import uvloop

from benchmarks import load, metrics, processes
from benchmarks.peers import environments
from benchmarks.scenes import asking, quiet, scene
from tests import loopback

READY_SECONDS, MAKE_SECONDS = 300.0, 300.0  # the first import of torch, vLLM and MLflow on a cold disk takes minutes

WITHOUT, OWN, MANY, WITH = "without", "own", "many", "with"
ROWS_OF_MANY = 16
BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}  # else each start would compile torch and all else anew


class SceneFailed(Exception):
    """A scene cannot go on: what is wrong, and the next step. `log` is the end of what the server printed."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.advice = advice
        self.log = ""


@dataclass(frozen=True)
class Plan:
    """How to measure: so many callers, rounds of so many seconds.

    Each way is asked for `warm_up` seconds before anything counts. `patience` is how many seconds a round waits at most
    for a quiet machine.
    """

    callers: int
    seconds: float
    rounds: int
    patience: float = 20.0
    warm_up: float = 1.0


@dataclass
class Round:
    """One way, once. Times in seconds, the rate in rows/s; `wrong` counts answers that were not those of their rows.

    `work` is the processor time of server, sidecar and callers for a row, which programs beside them change little.
    `others` is the share of all cores that other programs took meanwhile.
    """

    way: str
    rate: float
    p50: float
    p99: float
    work: float
    requests: int
    wrong: int
    difference: float
    others: float
    errors: dict[str, int] = field(default_factory=dict)
    mean_batch: float | None = None


@dataclass
class Outcome:
    """What came of a scene; `absence` says why it was not played to the end, if so."""

    name: str
    version: str = ""
    absence: str = ""
    rounds: list[Round] = field(default_factory=list)


def cache() -> pathlib.Path:
    """Where the environments of scenes are."""
    return environments.default_cache().with_name("scenes")


def is_installed(each: scene.Scene) -> bool:
    """Whether its environment is there already."""
    return environments.program(cache(), each.key).exists()


def missing(each: scene.Scene) -> str | None:
    """Why it cannot be played here; None if it can."""
    return environments.not_installable(each.key, each.pins) or each.lacks()


@dataclass
class Way:
    """Who is asked, by how many callers, with how many rows a request.

    Straight with one row; with one where the server batches by itself; straight with many rows and as many fewer
    callers, as if these had put theirs together; or with one row through the sidecar.
    """

    name: str
    port: int
    requests: asking.Requests
    callers: int
    rows: int = 1


Say = Callable[[str], None]


def play(each: scene.Scene, plan: Plan, say: Say) -> Outcome:
    """Install, start, check and measure.

    Raises `SceneFailed`, and `processes.ChildFailed` when a program does not start.
    """
    outcome = Outcome(each.name)
    try:
        environments.install(cache(), each.key, each.pins, say)
    except OSError as error:
        advice = "check that the package index answers and that there is room on the disk, then run it again"
        raise SceneFailed(str(error), advice) from None
    outcome.version = version(each)
    sidecar_port, admin_port, port, *spare = loopback.free_ports(5)
    programs = environments.program(cache(), each.key).parent
    with tempfile.TemporaryDirectory(prefix="carpool-scene-") as folder:
        place = scene.Place(pathlib.Path(folder), (port, spare[0], spare[1]), programs)
        env = variables(each, place)
        _make(each, place, env, say)
        say(f"starting {each.server}")
        sidecar = processes.sidecar_command(sidecar_port, port, admin_port, each.sidecar)
        with processes.running(each.name, place.words(each.command), env=env, folder=place.folder) as server:
            server.wait_until_ready(f"http://{processes.HOST}:{port}{each.ready}", READY_SECONDS, pause=0.5)
            with processes.running("sidecar", sidecar) as batcher:
                batcher.wait_until_ready(processes.ready_url(admin_port), READY_SECONDS)
                pids = [os.getpid(), server.pid, batcher.pid]
                try:
                    outcome.rounds = _rounds(each, plan, _Ports(port, sidecar_port, admin_port, pids), say)
                except SceneFailed as error:
                    error.log = server.log_tail()
                    raise
    return outcome


def version(each: scene.Scene) -> str:
    """That of its package, as it is pinned."""
    for file in each.pins:
        for line in file.read_text().splitlines():
            if line.lower().startswith(f"{each.package}=="):
                return line.partition("==")[2].split()[0]
    raise LookupError(f"no file of {each.name} pins {each.package}")


def variables(each: scene.Scene, place: scene.Place) -> dict[str, str]:
    """The environment of its programs: nothing of the user's own but what makes Python run."""
    return {
        **BYTECODE,
        "PATH": f"{place.programs}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "HOME": str(place.folder),
        "HF_HUB_OFFLINE": "1",
        # Threads that wait for work sleep. Else they turn in circles, on cores that sidecar and callers need as well.
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": str(scene.SERVERS),
        **{name: place.fill(value) for name, value in each.env.items()},
    }


def _make(each: scene.Scene, place: scene.Place, env: Mapping[str, str], say: Say) -> None:
    if not each.make:
        return
    say(f"making the model: {each.model}")
    made = subprocess.run(
        place.words(each.make),
        env={**os.environ, **env},
        cwd=place.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=MAKE_SECONDS,
        check=False,
    )
    if made.returncode:
        words = f"the model could not be made:\n{(made.stdout + made.stderr).strip()[-2000:]}"
        raise SceneFailed(words, "read the output above; if a package is broken, remove the scene's environment")


@dataclass(frozen=True)
class _Ports:
    """Where the programs listen, and who they are."""

    server: int
    sidecar: int
    admin: int
    pids: Sequence[int]


def _rounds(each: scene.Scene, plan: Plan, ports: _Ports, say: Say) -> list[Round]:
    rows = asking.items(each.items)
    say(f"asking {len(rows)} {each.items} one by one")
    expected = _alone(ports.server, asking.Requests(each.question, rows))
    one = plan.callers
    ways = [Way(WITHOUT, ports.server, asking.Requests(each.question, rows), one)]
    if each.own is not None:
        ways.append(Way(OWN, ports.server, asking.Requests(each.own, rows), one))
    together = asking.Requests(each.question, rows, ROWS_OF_MANY)
    ways.append(Way(MANY, ports.server, together, max(1, one // ROWS_OF_MANY), ROWS_OF_MANY))
    ways.append(Way(WITH, ports.sidecar, asking.Requests(each.question, rows), one))
    for way in ways:  # kernels, pools of threads and what the sidecar has to learn
        _ask(way, plan.warm_up)
        way.requests.check(expected, each.tolerance)
    found = []
    for number in range(plan.rounds):
        for way in (*ways[number % len(ways) :], *ways[: number % len(ways)]):
            others = quiet.wait(ports.pids, plan.patience)
            busy = f" (others take {others:.0%} of the cores)" if others > quiet.QUIET else ""
            say(f"round {number + 1} of {plan.rounds}: {way.name}{busy}")
            found.append(_measure(each, plan, ports, way, expected))
    return found


def _alone(port: int, requests: asking.Requests) -> list[Any]:
    """What each row is answered when nobody else asks."""
    _finish(load.closed_loop((processes.HOST, port), requests.once(), 1, on_answer=requests.keep), requests)
    try:
        return [row for (row,) in requests.answers()]
    except ValueError as error:
        raise SceneFailed(str(error), "the server does not answer as its scene says: see `catalogue.py`") from None


def _ask(way: Way, seconds: float) -> load.Measurement:
    run = load.closed_loop((processes.HOST, way.port), way.requests, way.callers, seconds, way.requests.keep)
    return _finish(run, way.requests)


def _finish(run: Coroutine[Any, Any, load.Measurement], requests: asking.Requests) -> load.Measurement:
    measured = uvloop.run(run)
    if not measured.requests:
        problems = ", ".join(f"{count} x {what}" for what, count in measured.errors.items())
        words = requests.refusal[:500].decode(errors="replace")
        raise SceneFailed(f"no request was answered: {problems}\n{words}", "see what it says of the request")
    return measured


def _measure(each: scene.Scene, plan: Plan, ports: _Ports, way: Way, expected: Sequence[Any]) -> Round:
    before, cores = metrics.read(ports.admin), quiet.Cores(ports.pids)
    measured = _ask(way, plan.seconds)
    own, others, after = cores.own(), cores.others(), metrics.read(ports.admin)
    wrong, largest = way.requests.check(expected, each.tolerance)
    return Round(
        way=way.name,
        rate=measured.rate * way.rows,
        p50=measured.p50,
        p99=measured.p99,
        work=own / measured.requests / way.rows,
        requests=measured.requests,
        wrong=wrong,
        difference=largest,
        others=others,
        errors=dict(measured.errors),
        mean_batch=metrics.mean_batch_size(before, after) if way.name == WITH else None,
    )
