"""One peer while it runs: started on its core, put to sleep while others are measured, measured when it is its turn.

All peers of a comparison are up at once, so that rounds can alternate between them without starting them again (Ray
Serve takes twenty seconds). Several of them never rest, not even without a request: LitServe and fast_dynamic_batcher
look at their queues every millisecond, KServe's agent every tenth of one. So whoever is not measured is stopped with
SIGSTOP, with all its processes; but for Triton, whose server takes a stopped backend for a dead one.
"""

from __future__ import annotations

import contextlib
import itertools
import pathlib
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping

import psutil
import uvloop

from benchmarks import bodies, client, load, machine, processes, wrk
from benchmarks.peers import carpool, cells, ground, peer, poisson, registry, samples
from tests import loopback

WAKE_SECONDS = 0.3
SETTLED = 0.15  # rounds of warm-up that differ by less have settled
LONGEST_WARM_UP = 30.0
_MARK, _MARK_SCALE = 4321, 100_000  # bodies.exact ends in its number, as so many hundred-thousandths


class PeerFailed(Exception):
    """A peer does not answer; `str()` says how often and how."""


class AnsweredWrong(PeerFailed):
    """A peer answers something else than it was asked; whatever it is, it is not to be measured."""


def command(launch: peer.Launch) -> list[str]:
    """The launch as a command that sets its own environment."""
    return ["env", *(f"{name}={value}" for name, value in launch.env.items()), *launch.argv]


def _has_mark(answer: bytes) -> bool:
    try:
        return bool(bodies.prediction_of(answer) == _MARK / _MARK_SCALE)
    except ValueError:
        return False


class Contender:
    """A peer, running. Use as a context manager; it is asleep after it is entered.

    `behind`: a predictor that runs already; without it, one is started if the peer needs one.
    """

    def __init__(
        self,
        entrant: peer.Peer,
        cache: pathlib.Path,
        model: peer.Model,
        cores: ground.Cores,
        behind: ground.Behind | None = None,
    ) -> None:
        self.entrant = entrant
        self._cache = cache
        self._model = model
        self._cores = cores
        self._behind = behind
        port, component_port = loopback.free_ports(2)
        self._component_port = behind.port if behind else component_port
        self._launch = entrant.launch(cache, model, port, self._component_port)
        self._body, self._is_right = self._launch.body, self._launch.check
        if behind and behind.is_stub:  # it answers with a mark, not with the row that the peer expects
            self._body, self._is_right = bodies.exact(bodies.SMALLEST, _MARK), _has_mark
        self._stack = contextlib.ExitStack()
        # What runs: the peer and, if it is only half a server, its predictor.
        self._children: list[processes.Child] = []

    def __enter__(self) -> Contender:
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, stack: contextlib.ExitStack) -> None:
        if self._launch.needs_predictor and self._behind is None:
            self._start_predictor(stack)
        self._run(stack, registry.slug(self.entrant.name), command(self._launch), self._launch.ready_url)
        stack.callback(self.wake)  # a stopped process would not hear that it is to end
        self.sleep()

    def _start_predictor(self, stack: contextlib.ExitStack) -> None:
        """The one behind a peer that is half a server: Carpool's own."""
        predict, env = carpool.server_predictor(self._model, self._component_port)
        self._run(stack, "predictor", predict, processes.ready_url(self._component_port), env)

    def _run(
        self,
        stack: contextlib.ExitStack,
        name: str,
        arguments: list[str],
        ready_url: str,
        env: Mapping[str, str] | None = None,
    ) -> None:
        child = stack.enter_context(processes.running(name, arguments, self._cores.peer, env))
        self._children.append(child)
        child.wait_until_ready(ready_url, ground.READY_SECONDS)

    def sleep(self) -> None:
        """Stop all its processes where they are, if they can take that."""
        if self._launch.stays_awake:
            return
        for _ in range(2):  # the second time for those that were being started during the first
            self._signal_all(psutil.Process.suspend)

    def wake(self) -> None:
        """Let them go on."""
        self._signal_all(psutil.Process.resume)

    def cpu_seconds(self) -> float:
        """CPU time of all its processes so far."""
        return sum(machine.cpu_seconds(child.pid) for child in self._children if child.is_running())

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Awake for the length of a `with` block, and asleep again after it."""
        self.wake()
        try:
            yield
        finally:
            self.sleep()

    def _signal_all(self, send: Callable[[psutil.Process], None]) -> None:
        for child in self._children:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(child.pid)
                for each in (process, *process.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):  # ended by itself meanwhile
                        send(each)

    # Load. Everything below expects the contender to be awake.

    def warm_up(self) -> str:
        """Ask until two rounds in a row are about as fast: some are not done starting when they say they are ready.

        Gives what went wrong meanwhile, in words; empty if nothing did. Raises `AnsweredWrong` at a wrong answer, and
        `PeerFailed` when no round went well in the time there is.
        """
        deadline, before, trouble = time.monotonic() + LONGEST_WARM_UP, 0.0, ""
        while True:
            try:
                rate = self.ask(2 * WAKE_SECONDS)
            except AnsweredWrong:
                raise
            except (PeerFailed, OSError) as error:  # Ray Serve's proxy begins again after it said it was ready
                trouble = str(error)
                if time.monotonic() > deadline:
                    raise
            else:
                if abs(rate - before) <= SETTLED * rate or time.monotonic() > deadline:
                    return trouble
                before = rate

    def ask(self, seconds: float = WAKE_SECONDS) -> float:
        """A closed loop for a moment, each answer checked; gives requests/s.

        Raises `PeerFailed` when an answer is missing, `AnsweredWrong` when one is wrong.
        """
        wrong = 0

        def look_at(number: int, status: int, answer: bytes) -> None:
            nonlocal wrong
            wrong += 200 <= status < 300 and not self._is_right(answer)

        address, path = self._target()
        requests = itertools.repeat(client.post(address[0], path, self._body))
        with machine.pinned(self._cores.load):
            measured = uvloop.run(load.closed_loop(address, requests, cells.CONNECTIONS, seconds, look_at))
        if wrong:
            raise AnsweredWrong(f"{wrong} wrong answers")
        if measured.errors or not measured.requests:
            raise PeerFailed(", ".join(f"{count} x {what}" for what, count in measured.errors.items()) or "no answers")
        return measured.rate

    def check_marks(self, size: int, count: int) -> None:
        """Send `count` different bodies of a size at once to the stub behind it: each caller must get its own mark.

        Raises `AnsweredWrong` otherwise.
        """
        right: set[int] = set()

        def look_at(number: int, status: int, answer: bytes) -> None:
            with contextlib.suppress(ValueError):
                if status == 200 and bodies.prediction_of(answer) == number / _MARK_SCALE:
                    right.add(number)

        address, path = self._target()
        requests = (client.post(address[0], path, bodies.exact(size, number)) for number in range(count))
        with machine.pinned(self._cores.load):
            uvloop.run(load.closed_loop(address, requests, min(count, cells.CONNECTIONS), on_answer=look_at))
        if len(right) < count:
            raise AnsweredWrong(f"{count - len(right)} of {count} answers of {size} bytes were missing or wrong")

    def measure(self, cell: cells.Cell, seconds: float, seed: int) -> samples.Sample:
        """One round of one cell. Raises `wrk.WrkFailed`, and `OSError` when it does not listen any more."""
        before, start = self.cpu_seconds(), time.monotonic()
        found = self._open_loop(cell, seconds, seed) if cell.load is not None else self._closed_loop(cell, seconds)
        used, elapsed = self.cpu_seconds() - before, time.monotonic() - start
        found.cpu_per_request = used / found.requests if found.requests else None
        found.busy = used / elapsed
        return found

    def _closed_loop(self, cell: cells.Cell, seconds: float) -> samples.Sample:
        body = self._body if cell.size is None else bodies.exact(cell.size)
        measured = wrk.measure(self._launch.predict_url, body, cell.connections, seconds, self._cores.load)
        return samples.Sample(measured.requests, measured.rate, measured.p50, measured.p99, dict(measured.errors))

    def _open_loop(self, cell: cells.Cell, seconds: float, seed: int) -> samples.Sample:
        address, path = self._target()
        request = client.post(address[0], path, self._body)
        times = poisson.draw(cell.offered, seconds, seed)
        with machine.pinned(self._cores.load):
            seen = poisson.run(address, request, times, cells.MOST_OUTSTANDING, self._is_right)
        rate = seen.requests / seconds
        sample = samples.Sample(seen.requests, rate, seen.p50, seen.p99, seen.errors)
        sample.lag_p99, sample.lag_max, sample.is_saturated = seen.lag_p99, seen.lag_max, seen.is_saturated
        return sample

    def _target(self) -> tuple[load.Address, str]:
        parts = urllib.parse.urlsplit(self._launch.predict_url)
        return (parts.hostname or processes.HOST, parts.port or 80), parts.path
