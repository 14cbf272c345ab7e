"""Keeps one model's worker process running: starts it, notices its death, starts it again.

The server asks it two things only: is the model ready, and what does it answer to this body. Requests never wait
for a worker that is down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from asyncio import subprocess
from collections.abc import Sequence
from typing import Any

import msgspec

from carpool.program import logs
from carpool.workers import backoff, frames
from carpool_predictor import errors, waiting_limit, worker, worker_connection

log = logging.getLogger("carpool_predictor.supervisor")

# OpenMP threads (torch's) spin while they wait for each other. With a half-busy neighbour on two cores, as a sidecar
# is, MiniLM made 5 sentences/s one by one and 47 in batches, and 50 and 135 when they yield instead; alone, yielding
# takes it from 135 to 103 and from 372 to 341. Must be set before the process starts; an operator's choice wins.
_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}

_PATIENCE = 1.0  # seconds between the end of a worker's process and of its socket, in either order


class Supervisor:
    """One served model. `run()` must be running for it to become ready."""

    def __init__(self, setup: worker.Setup, space: waiting_limit.Room, pauses: backoff.Backoff) -> None:
        self.name = setup.spec.name
        self.room = space
        self._setup = setup
        self._pauses = pauses
        # Changed with each worker process.
        self._link: worker_connection.Link | None = None
        self._ready = asyncio.Event()
        self._started = 0.0  # this and the next in seconds of the loop's clock
        self._ready_since: float | None = None
        self._unusable: str | None = None
        # Changed once, by `stop`.
        self._stopping = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded, warm and has a live worker."""
        return self._ready.is_set()

    async def wait_until_ready(self) -> None:
        """Return once the model is ready."""
        await self._ready.wait()

    async def predict(self, body: Sequence[frames.Buffer], length: int) -> worker_connection.Reply:
        """The worker's answer to one request body, given in pieces of `length` bytes together.

        Raises `errors.NotReady` at once if the worker is down, `errors.WorkerDied` if it dies before answering.
        """
        if self._link is None or not self._ready.is_set():
            raise errors.NotReady(f"model {self.name} is not ready; try again later")
        return await self._link.call(body, length)

    async def run(self) -> None:
        """Keep a worker running until `stop()`. Raises `errors.Unusable` for a model that can never run."""
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
                raise errors.Unusable(self._unusable)
            if not self._stopping.is_set():
                await self._pause(f"exit status {process.returncode}")

    def stop(self) -> None:
        """Make `run()` return: calls still held get `errors.WorkerDied`, the worker is told to exit."""
        self._stopping.set()

    async def _start(self) -> tuple[subprocess.Process, worker_connection.Link]:
        self._started, self._ready_since = asyncio.get_running_loop().time(), None
        ours, theirs = socket.socketpair()
        with theirs:
            _, connection = await asyncio.get_running_loop().create_unix_connection(
                lambda: worker_connection.Link(self._notice), sock=ours
            )
            self._link = connection
            try:
                return await self._spawn(theirs.fileno()), connection
            except BaseException:
                connection.close()
                raise

    async def _spawn(self, descriptor: int) -> subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "carpool_predictor.worker", str(descriptor)),
            msgspec.json.encode(self._setup).decode(),
            stdin=subprocess.DEVNULL,
            env={**_ENVIRONMENT, **os.environ},
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
            log.info("model ready", extra=logs.facts(model=self.name, seconds=seconds))

    async def _watch(self, process: subprocess.Process, connection: worker_connection.Link) -> None:
        """Return once the worker is gone, or a little after `stop()` told it to go."""
        exited = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            gone: set[asyncio.Future[Any]] = {exited, connection.closed}
            await asyncio.wait({*gone, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self._ready.clear()
            if stopping.done():
                connection.close()
            await asyncio.wait(gone, timeout=_PATIENCE)
        finally:
            for task in (exited, stopping):
                task.cancel()
            await asyncio.gather(exited, stopping, return_exceptions=True)

    async def _pause(self, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        served = 0.0 if self._ready_since is None else now - self._ready_since
        pause = self._pauses.after(served)
        facts = logs.facts(model=self.name, reason=reason, pause_seconds=pause)
        log.error("no worker; another one is started", extra=facts)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause)


async def _end(process: subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            process.kill()
    await process.wait()
