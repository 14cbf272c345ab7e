"""One worker process as the process that uses it sees it: started, called, and started again when it is gone.

A thread for each worker does that from `start()` to `stop()`: it makes the process, waits until its model is made, and
then sleeps until the process is gone. Calls come from other threads, one at a time.
"""

from __future__ import annotations

import contextlib
import enum
import json
import logging
import math
import os
import select
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import spawn
from typing import Any

from carpool.workers import child, errors, messages, payload
from carpool.workers.child import GRACE

log = logging.getLogger("carpool.workers")

spawning = threading.Lock()
"""Held while a process is started, and by whoever forks: a fork's child must know of all files that it closes."""

# The path for imports comes first: what the program added to it may be where this package lies.
_BOOTSTRAP = (
    "import json, sys; own = sys.path[:]; sys.path[:] = json.loads(sys.argv[4]); "
    "from carpool.workers import child; sys.exit(child.main(int(sys.argv[2]), int(sys.argv[3]), own))"
)


class State(enum.Enum):
    """Where a worker is."""

    STOPPED = "stopped"
    STARTING = "starting"
    """It starts, for the first time or after it died."""
    READY = "ready"
    FAILED = "failed"
    """Its last start failed, and `failure` says why; it is tried again after a pause."""
    UNUSABLE = "unusable"
    """Its last start failed, and it is not tried again."""


class Backoff:
    """Pauses that double from `first` to `most` seconds, and start over after `healthy` seconds of service."""

    def __init__(self, first: float = 0.1, most: float = 10.0, healthy: float = 10.0) -> None:
        self._first = first
        self._most = most
        self._healthy = healthy
        self._next = first

    def after(self, served: float) -> float:
        """The pause after a worker that was ready for `served` seconds."""
        if served >= self._healthy:
            self._next = self._first
        pause, self._next = self._next, min(self._most, self._next * 2)
        return pause


@dataclass(frozen=True, slots=True)
class Order:
    """What one worker is to do: `model` is the pickled `(Model, args, kwargs)`, `env` all its environment variables."""

    name: str
    device: str
    model: payload.Payload
    env: Mapping[str, str] | None
    resend: bool


@dataclass(frozen=True, slots=True)
class _Process:
    """A process, and what it is held by: whoever closes the socket and the lifeline ends it."""

    process: subprocess.Popen[bytes]
    channel: messages.Channel
    lifeline: int

    def close(self) -> None:
        """Let go of the files of the process, which does not touch another process's copies of them."""
        self.channel.sock.close()
        os.close(self.lifeline)


class Worker:
    """One worker. `changed` guards its state, and is notified of each change of that."""

    def __init__(self, order: Order, changed: threading.Condition, pauses: Backoff) -> None:
        self.order = order
        self.name = order.name
        self._changed = changed
        self._pauses = pauses
        # Guarded by `changed`.
        self.state = State.STOPPED
        self.failure: BaseException | None = None
        self.is_busy = False
        # Of the supervising thread, and of each process.
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._current: _Process | None = None
        self._calling = threading.Lock()

    def start(self) -> None:
        """Start the process unless that was done; returns at once. To be called with `changed` held, and once.

        Raises RuntimeError if no thread can be started, as when the interpreter exits.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"carpool-{self.name}", daemon=True)
            thread.start()
            self._thread, self.state = thread, State.STARTING
            _started.add(self)

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the model in the process returns, or raises.

        Raises `errors.WorkerDied` if the process ends first, and what pickling raises for arguments that cannot travel.
        """
        message = payload.dump((args, kwargs))
        with self._calling:
            current = self._current
            if current is None:
                raise self.died(is_sent=False)
            try:
                current.channel.send(messages.Kind.CALL, message)
                del message
                kind, body = current.channel.receive()
            except messages.Ended:
                self._become(State.STARTING)  # before anybody tries again; the supervising thread may be a bit late
                raise self.died(is_sent=True) from None
            except BaseException:  # broken off half-way, so what comes next on this socket is nobody's answer
                self._become(State.STARTING)
                _hang_up(current)
                raise
        answer = payload.load(body)
        if kind is messages.Kind.RAISED:
            raise answer
        return answer

    def duplicate_socket(self) -> socket.socket:
        """The socket of its process, for who calls by other means. Raises `errors.WorkerDied` if it is gone."""
        current = self._current
        try:
            if current is not None:
                return current.channel.sock.dup()
        except OSError:
            pass
        raise self.died(is_sent=False)

    def request_stop(self) -> None:
        """Have the process end, and killed if it does not in time; returns at once. A call under way fails."""
        self._stopping.set()
        current = self._current
        if current is not None:
            _hang_up(current)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process and its thread have ended, for so many seconds at most."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def forget(self) -> None:
        """After a fork, in the child: the process belongs to the parent. Close this process's copies of its files."""
        _started.discard(self)
        current, self._current = self._current, None
        if current is not None:
            current.process.returncode = 0  # so that nobody here waits for it
            current.close()

    # --- the supervising thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            served, failure, reason = self._serve()
            if self._stopping.is_set():
                break
            if isinstance(failure, errors.Unusable):
                self._become(State.UNUSABLE, failure)
                log.error("no worker, and none is started again", extra=self._facts(reason=reason))
                self._stopping.wait()
                break
            if failure is not None:
                self._become(State.FAILED, failure)
            pause = self._pauses.after(served)
            log.error("no worker; another one is started", extra=self._facts(reason=reason, pause_seconds=pause))
            self._stopping.wait(pause)
        self._become(State.STOPPED)
        _started.discard(self)

    def _serve(self) -> tuple[float, BaseException | None, str]:
        """One process, from start to end: for how long it was ready, or why it never was; and why it is gone."""
        started = time.monotonic()
        try:
            current = self._spawn()
        except (OSError, RuntimeError) as error:  # the latter as the interpreter exits
            return 0.0, error, f"cannot start: {error}"
        failure: BaseException | None = None
        ready = math.inf
        try:
            failure = self._hand_over(current.channel)
            if failure is None:
                ready = time.monotonic()
                self._become(State.READY)
                log.info("worker ready", extra=self._facts(seconds=round(ready - started, 3)))
                _wait_for_the_end(current.channel.sock)
                self._become(State.STARTING)
        except messages.Ended:
            pass
        except Exception as error:  # a bug; callers must not wait for ever because of it
            failure = error
        finally:
            status = self._end(current)
        if failure is not None:
            return 0.0, failure, _last_line(failure)
        if ready == math.inf:
            ended = errors.WorkerDied(f"the process ended while it made the model, with exit status {status}")
            return 0.0, ended, f"exit status {status}"
        return time.monotonic() - ready, None, f"exit status {status}"

    def _spawn(self) -> _Process:
        """Start a process. Raises OSError and RuntimeError."""
        with spawning:
            ours, theirs = socket.socketpair()
            end_there, lifeline = os.pipe()
            try:
                process = subprocess.Popen(  # noqa: S603
                    _command(theirs.fileno(), end_there, self.name),
                    stdin=subprocess.DEVNULL,
                    env=self.order.env,
                    pass_fds=(theirs.fileno(), end_there),
                    start_new_session=True,  # a terminal's Ctrl-C is for the process that starts it alone
                )
            except BaseException:
                ours.close()
                os.close(lifeline)
                raise
            finally:
                theirs.close()
                os.close(end_there)
            self._current = _Process(process, messages.Channel(ours), lifeline)
        if self._stopping.is_set():  # since before there was something to stop
            _hang_up(self._current)
        return self._current

    def _hand_over(self, channel: messages.Channel) -> BaseException | None:
        """Have the model made: None, or why it could not be. Raises `messages.Ended`."""
        setup = {"main": child.describe_main(), "device": self.order.device}
        channel.send(messages.Kind.SETUP, payload.dump(setup))
        channel.send(messages.Kind.MODEL, self.order.model)
        kind, body = channel.receive()
        if kind is messages.Kind.READY:
            return None
        failure: BaseException = payload.load(body)
        return failure

    def _end(self, current: _Process) -> int:
        """The exit status of a process that has ended, or is to."""
        process = current.process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        process.kill()
        status = process.wait()
        with self._calling:  # whoever waits for an answer has found the end of the stream by now
            self._current = None
            current.close()
        return status

    def _become(self, state: State, failure: BaseException | None = None) -> None:
        with self._changed:
            self.state, self.failure = state, failure
            self._changed.notify_all()

    def died(self, *, is_sent: bool) -> errors.WorkerDied:
        """What callers are told whose call was sent to it, or was to be, when it ended."""
        return errors.WorkerDied(
            f"the worker process {self.name} died while it held the batch",
            may_be_resent=self.order.resend or not is_sent,
        )

    def _facts(self, **values: Any) -> dict[str, Any]:
        return {"facts": {"worker": self.name, **values}}


_started: set[Worker] = set()  # those whose processes may be there


def end_all() -> None:
    """End all processes, as the interpreter exits: one that is stuck would not notice, and stay."""
    ending = list(_started)
    for each in ending:
        each.request_stop()
    give_up = time.monotonic() + 2 * GRACE
    for each in ending:
        each.join(max(0.0, give_up - time.monotonic()))


def _command(descriptor: int, lifeline: int, name: str) -> list[str]:
    """`name` is for people who list processes."""
    executable = spawn.get_executable()  # as told to multiprocessing: sys.executable may be no interpreter
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    paths = json.dumps([str(path) for path in sys.path])
    return [os.fsdecode(executable), *flags, "-c", _BOOTSTRAP, name, str(descriptor), str(lifeline), paths]


def _wait_for_the_end(sock: socket.socket) -> None:
    """Return once the other end is closed, or this one shut down."""
    poll = select.poll()
    poll.register(sock, 0)  # the end is told without asking for it
    poll.poll()


def _hang_up(current: _Process) -> None:
    """Let both sides find the end of the stream."""
    with contextlib.suppress(OSError):
        current.channel.sock.shutdown(socket.SHUT_RDWR)


def _last_line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()
