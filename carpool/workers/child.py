"""A worker process: makes the model once, then calls it with one batch after the other. Started by `worker` only.

For calls of bytes, a model that offers `stages` is called in these instead, with several under way (see `stages`). One
that offers three `steps` (read, predict, write) is called in them: where it waits for long, as for a device, that gets
the next batch, if there is one, before the last one's answer is written.

The end of the socket is its order to stop. A busy process would not notice that, so it holds one end of a pipe as well,
its lifeline: when the other end closes, because the process that started it has ended in whatever way, it exits within
a second, busy or not; on Linux the kernel wakes it for that if it was stopped. (Code that computes for long without
letting go of the interpreter's lock delays that.) Signals meant for a whole group of processes, as a terminal or a
service manager sends them, are ignored, so that accepted batches are still answered.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from carpool import errors as carpool_errors
from carpool.workers import errors, main_module, messages, payload, stages

GRACE = 1.0
"""Seconds between the end of a worker's process and of its socket, in either order."""

_PR_SET_PDEATHSIG = 1  # prctl(2)

_SWITCH_INTERVAL = 0.0002  # seconds; Python's own is 0.005

# A call that waited for so many seconds without computing leaves time for another thread to write its answer.
_WORTH_A_THREAD = 0.001


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
            _end()


def _end() -> NoReturn:
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
    prepare_main = main_module.MainModule(told["main"]).prepare
    _, body = channel.receive()
    try:
        model, args, kwargs = payload.load(body, prepare_main)
        del body
        instance = model(told["device"], *args, **kwargs)
    except BaseException as error:
        channel.send(messages.Kind.FAILED, payload.dump(_without_this_frame(error)))
        return 1
    channel.send(messages.Kind.READY, payload.dump(None))
    # Calls of bytes are for models that know of `stages` and `steps`; other models may mean anything by these names.
    while channel.next_kind() is not messages.Kind.BYTES:
        channel.send(*_answer(instance, *channel.receive(), prepare_main))
    if getattr(instance, "stages", ()):
        _serve_in_stages(channel, instance, prepare_main)
    if getattr(instance, "steps", ()):
        _serve_in_steps(channel, instance, prepare_main)
    while True:
        channel.send(*_answer(instance, *channel.receive(), prepare_main))


def _serve_in_stages(channel: messages.Channel, instance: Any, prepare_main: Callable[[], None]) -> None:
    """Serve until the socket ends. Raises `messages.Ended`."""
    # A thread that has something for the device waits for the interpreter no longer than a small batch takes there.
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with stages.Stages(instance.stages, functools.partial(_send, channel)) as under_way:
        while True:
            kind, body = channel.receive()
            if kind is messages.Kind.BYTES:
                under_way.call(body.pieces[0])
            else:  # who calls so waits for each answer, so nothing else is under way
                channel.send(*_answer(instance, kind, body, prepare_main))


def _serve_in_steps(channel: messages.Channel, instance: Any, prepare_main: Callable[[], None]) -> None:
    """Serve until the socket ends. Raises `messages.Ended`."""
    sys.setswitchinterval(_SWITCH_INTERVAL)
    read, predict, write = instance.steps
    took = waited = 0.0  # of the last call; only where it took long it is worth asking how much of that was waiting
    with stages.Behind(write, functools.partial(_send, channel)) as behind:
        predicted: stages.Outcome | None = None
        while True:
            message = None if waited < _WORTH_A_THREAD else channel.receive_now()
            if predicted is not None and (message is None or message[0] is not messages.Kind.BYTES):
                behind.now(predicted)
                predicted = None  # a batch takes much memory, and the next one may be long in coming
            kind, body = message or channel.receive()
            if kind is not messages.Kind.BYTES:
                channel.send(*_answer(instance, kind, body, prepare_main))
                continue
            outcome = stages.after(read, stages.Outcome(body.pieces[0], None))
            del message, body
            if predicted is not None:
                # Nothing that wakes another process comes before the device has the next batch: on a busy core that
                # would get its turn first. To wake a thread does no harm, as it needs this interpreter.
                behind.later(predicted)
            began, used = time.perf_counter(), time.thread_time() if took >= _WORTH_A_THREAD else math.inf
            predicted = stages.after(predict, outcome)
            del outcome
            if predicted.error is not None:
                behind.now(predicted)  # there is nothing to write, and it may be the last of this process
                predicted = None
            took = time.perf_counter() - began
            waited = took - (time.thread_time() - used) if used < math.inf else 0.0


def _send(channel: messages.Channel, outcome: stages.Outcome) -> None:
    with contextlib.suppress(messages.Ended):  # which `receive` finds as well
        if outcome.error is None:
            channel.send(messages.Kind.BYTES, payload.Payload(outcome.value, []))
        elif isinstance(outcome.error, errors.EndWorker):
            _end()
        else:
            channel.send(messages.Kind.RAISED, payload.dump(_without_this_frame(outcome.error)))


def _answer(
    instance: Callable[..., Any], kind: messages.Kind, body: payload.Payload, prepare_main: Callable[[], None]
) -> tuple[messages.Kind, payload.Payload]:
    try:
        if kind is messages.Kind.BYTES:
            return kind, payload.Payload(instance(body.pieces[0]), [])
        args, kwargs = payload.load(body, prepare_main)
        return messages.Kind.RESULT, payload.dump(instance(*args, **kwargs))
    except errors.EndWorker:
        raise
    except BaseException as error:
        return messages.Kind.RAISED, payload.dump(_without_this_frame(error))


def _without_this_frame(error: BaseException) -> BaseException:
    trace = carpool_errors.raw(error, "__traceback__")
    carpool_errors.put(error, "__traceback__", trace and trace.tb_next)
    return error
