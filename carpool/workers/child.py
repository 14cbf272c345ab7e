"""A worker process: makes the model once, then calls it with one batch after the other. Started by `worker` only.

Calls of bytes are for models that know of them: from the first one on, a model that has a `serve` is called with the
channel and what answers a message, and may have several under way.

The end of the socket is its order to stop. A busy process would not notice that, so it holds one end of a pipe as well,
its lifeline: when the other end closes, because the process that started it has ended in whatever way, it exits within
a second, busy or not; on Linux the kernel wakes it for that if it was stopped. (Code that computes for long without
letting go of the interpreter's lock delays that.) Signals meant for a whole group of processes, as a terminal or a
service manager sends them, are ignored, so that accepted batches are still answered.

It is a fresh interpreter with a `__main__` of its own. Only when something of its starter's is needed, for a model that
is defined in it, it runs that program's file or module once more under the name `__mp_main__`, as multiprocessing's
spawn does; so what a program does must stand under `if __name__ == "__main__":`. A session without a file (a prompt, a
notebook, `python -c`) cannot be run again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import spawn
from typing import Any, NoReturn

from carpool import errors as carpool_errors
from carpool.workers import errors, messages, payload

GRACE = 1.0
"""Seconds between the end of a worker's process and of its socket, in either order."""

_PR_SET_PDEATHSIG = 1  # prctl(2)
_WHERE = ("init_main_from_name", "init_main_from_path")

_is_running_main = False  # in a worker: while it runs the main module of its starter


def main(descriptor: int, lifeline: int, own_path: Sequence[str] = ()) -> int:
    """Serve one model until the socket ends. Returns the exit status.

    `own_path` is where this interpreter would look for modules by itself; its starter's places go first.
    """
    sys.path += [each for each in own_path if each and each not in sys.path]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):  # no Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    os.set_inheritable(lifeline, False)
    threading.Thread(target=_end_with_the_starter, args=(lifeline,), name="carpool-lifeline", daemon=True).start()
    with socket.socket(fileno=descriptor) as sock:
        sock.set_inheritable(False)
        try:
            return _run(messages.Channel(sock))
        except messages.Ended:
            return 0
        except errors.EndWorker:
            end()


def end() -> NoReturn:
    """End the process now: what a model with a lost device tidies up may never come to an end."""
    logging.shutdown()
    os._exit(1)


def _end_with_the_starter(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    time.sleep(GRACE)  # an idle process ends by itself, and tidies up
    os._exit(1)


def _run(channel: messages.Channel) -> int:
    _, setup = channel.receive()
    told = payload.load(setup)
    prepare_main = functools.partial(_prepare_main, told["main"])
    _, body = channel.receive()
    try:
        model, args, kwargs = payload.load(body, prepare_main)
        del body
        instance = model(told["device"], *args, **kwargs)
    except BaseException as error:
        channel.send(messages.Kind.FAILED, _dumped(error))
        return 1
    channel.send(messages.Kind.READY, payload.dump(None))
    answer = functools.partial(_answer, instance, prepare_main)
    # Other models may mean anything by that name.
    while channel.next_kind() is not messages.Kind.BYTES:
        channel.send(*answer(*channel.receive()))
    if hasattr(instance, "serve"):
        instance.serve(channel, answer)
    while True:
        channel.send(*answer(*channel.receive()))


def _answer(
    instance: Callable[..., Any], prepare_main: Callable[[], None], kind: messages.Kind, body: payload.Payload
) -> tuple[messages.Kind, payload.Payload]:
    try:
        if kind is messages.Kind.BYTES:
            return kind, payload.Payload(instance(body.pieces[0]), [])
        args, kwargs = payload.load(body, prepare_main)
        return messages.Kind.RESULT, payload.dump(instance(*args, **kwargs))
    except errors.EndWorker:
        raise
    except BaseException as error:
        return raised(error)


def raised(error: BaseException) -> tuple[messages.Kind, payload.Payload]:
    """The message that the model raised this; its traceback begins behind whoever called that."""
    return messages.Kind.RAISED, _dumped(error)


def _dumped(error: BaseException) -> payload.Payload:
    trace = carpool_errors.raw(error, "__traceback__")
    carpool_errors.put(error, "__traceback__", trace and trace.tb_next)
    return payload.dump(error)


# --- the main module of the process that starts workers ---------------------------------------------------------


def describe_main() -> dict[str, Any]:
    """What a worker needs to run this process's main module again."""
    found = spawn.get_preparation_data("carpool worker")
    return {key: found[key] for key in (*_WHERE, "sys_argv") if found.get(key) is not None}


def can_run_main_again() -> bool:
    """Whether this process's main module has a file or a name by which a worker can find it."""
    return any(key in describe_main() for key in _WHERE)


def _prepare_main(described: dict[str, Any]) -> None:
    """Have that module as `__main__` from now on. Raises what it raises while it is imported."""
    global _is_running_main
    if described:
        _is_running_main = True
        try:
            spawn.prepare(described.copy())
        finally:
            _is_running_main = False
        described.clear()


def check_that_workers_may_start() -> None:
    """Raises RuntimeError in a worker that would start workers only because it runs the main module again."""
    if _is_running_main:
        raise RuntimeError(
            "a worker process imports the program that started it, and the program calls a model in worker processes"
            ' while it is imported; put what the program does under: if __name__ == "__main__":'
        )
