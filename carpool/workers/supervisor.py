"""Keeps one worker process running: starts it, notices its death, starts it again.

Whoever has calls asks it two things only: is the worker ready, and what does it answer. Calls never wait for a worker
that is down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from asyncio import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from carpool.workers import frames
from carpool.workers.connection import Reply, WorkerConnection, WorkerDown

log = logging.getLogger("carpool.workers")

_GRACE = 1.0  # seconds between the end of a worker's process and of its socket, in either order


class Unusable(Exception):
    """A worker that no restart can repair. `str(error)` is its own account, for the operator."""


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


class Supervisor:
    """One worker. `run()` must be running for it to become ready.

    `command(descriptor)` is the command line of a worker whose end of the socket has that number; `environment` is
    its whole environment.
    """

    def __init__(
        self, name: str, command: Callable[[int], Sequence[str]], environment: Mapping[str, str], pauses: Backoff
    ) -> None:
        self.name = name
        self._command = command
        self._environment = environment
        self._pauses = pauses
        # Changed with each worker process.
        self._connection: WorkerConnection | None = None
        self._ready = asyncio.Event()
        self._started = 0.0  # this and the next in seconds of the loop's clock
        self._ready_since: float | None = None
        self._unusable: str | None = None
        # Changed once, by `stop`.
        self._stopping = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether the worker lives and has said that it is ready."""
        return self._ready.is_set()

    async def wait_until_ready(self) -> None:
        """Return once the worker is ready."""
        await self._ready.wait()

    async def call(self, body: Sequence[frames.Buffer], length: int) -> Reply:
        """The worker's answer to one call, given in pieces of `length` bytes together.

        Raises `WorkerDown` at once if the worker is not ready, `WorkerDied` if it dies before it answers.
        """
        if self._connection is None or not self._ready.is_set():
            raise WorkerDown
        return await self._connection.call(body, length)

    async def run(self) -> None:
        """Keep a worker running until `stop()`. Raises `Unusable` for a worker that can never run."""
        while not self._stopping.is_set():
            try:
                process, connection = await self._start()
            except OSError as error:
                await self._pause(f"cannot start: {error}")
                continue
            try:
                await self._watch(process, connection)
            finally:
                self._ready.clear()
                connection.close()
                await _end(process)
            if self._unusable is not None:
                raise Unusable(self._unusable)
            if not self._stopping.is_set():
                await self._pause(f"exit status {process.returncode}")

    def stop(self) -> None:
        """Make `run()` return: calls still held get `WorkerDied`, the worker is told to exit."""
        self._stopping.set()

    async def _start(self) -> tuple[subprocess.Process, WorkerConnection]:
        self._started, self._ready_since = asyncio.get_running_loop().time(), None
        ours, theirs = socket.socketpair()
        with theirs:
            _, connection = await asyncio.get_running_loop().create_unix_connection(
                lambda: WorkerConnection(self._notice), sock=ours
            )
            self._connection = connection
            try:
                return await self._spawn(theirs.fileno()), connection
            except BaseException:
                connection.close()
                raise

    async def _spawn(self, descriptor: int) -> subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command(descriptor),
            stdin=subprocess.DEVNULL,
            env=self._environment,
            pass_fds=[descriptor],
            start_new_session=True,  # a terminal's Ctrl-C is for the server alone
        )

    def _notice(self, kind: int, body: bytes) -> None:
        if kind == frames.UNUSABLE:
            self._unusable = body.decode()
        else:
            self._ready_since = asyncio.get_running_loop().time()
            self._ready.set()
            seconds = round(self._ready_since - self._started, 3)
            log.info("worker ready", extra={"facts": {"worker": self.name, "seconds": seconds}})

    async def _watch(self, process: subprocess.Process, connection: WorkerConnection) -> None:
        """Return once the worker is gone, or a little after `stop()` told it to go."""
        exited = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            gone: set[asyncio.Future[Any]] = {exited, connection.closed}
            await asyncio.wait({*gone, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self._ready.clear()
            if stopping.done():
                connection.close()
            await asyncio.wait(gone, timeout=_GRACE)
        finally:
            for task in (exited, stopping):
                task.cancel()
            await asyncio.gather(exited, stopping, return_exceptions=True)

    async def _pause(self, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        served = 0.0 if self._ready_since is None else now - self._ready_since
        pause = self._pauses.after(served)
        facts = {"worker": self.name, "reason": reason, "pause_seconds": pause}
        log.error("no worker; another one is started", extra={"facts": facts})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause)


async def _end(process: subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            process.kill()
    await process.wait()
