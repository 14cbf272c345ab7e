"""A worker process: makes the model once, then calls it with one batch after the other. Started by `worker` only.

For calls of bytes, a model that offers `serve(calls)` is given `Calls` instead, and may have several under way.

The end of the socket is its order to stop. A busy process would not notice that, so it holds one end of a pipe as well,
its lifeline: when the other end closes, because the process that started it has ended in whatever way, it exits within
a second, busy or not; on Linux the kernel wakes it for that if it was stopped. (Code that computes for long without
letting go of the interpreter's lock delays that.) Signals meant for a whole group of processes, as a terminal or a
service manager sends them, are ignored, so that accepted batches are still answered.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from carpool import errors as carpool_errors
from carpool.workers import errors, main_module, messages, payload

GRACE = 1.0
"""Seconds between the end of a worker's process and of its socket, in either order."""

_PR_SET_PDEATHSIG = 1  # prctl(2)


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

    def answer(kind: messages.Kind, body: payload.Payload) -> tuple[messages.Kind, payload.Payload]:
        return _answer(instance, kind, body, prepare_main)

    # Calls of bytes are for models that know of `serve`; other models may mean anything by that name.
    while channel.next_kind() is not messages.Kind.BYTES:
        channel.send(*answer(*channel.receive()))
    if hasattr(instance, "serve"):
        instance.serve(Calls(channel, answer))
    while True:
        channel.send(*answer(*channel.receive()))


class Calls:
    """Calls of bytes as they come, for a model that serves them itself, with several under way.

    Calls of other kinds are answered between them. One thread takes calls; any may answer, in the order of the calls,
    one at a time. Nobody has to notice that the socket has ended but who asks for the `next`.
    """

    # Mutable state: a message that was looked at, and is none of theirs.
    def __init__(self, channel: messages.Channel, answer: Callable[..., tuple[messages.Kind, payload.Payload]]) -> None:
        self._channel = channel
        self._answer = answer
        self._held: tuple[messages.Kind, payload.Payload] | None = None

    def next(self) -> payload.Buffer:
        """The next call, once it is here. Raises `messages.Ended`."""
        while True:
            (kind, body), self._held = self._held or self._channel.receive(), None
            if kind is messages.Kind.BYTES:
                return body.pieces[0]
            self._channel.send(*self._answer(kind, body))

    def next_now(self) -> payload.Buffer | None:
        """The next call if it is here, with none of another kind before it."""
        message = self._held or self._channel.receive_now()
        if message is None or message[0] is messages.Kind.BYTES:
            return None if message is None else message[1].pieces[0]
        self._held = message
        return None

    def answer(self, pieces: list[payload.Buffer]) -> None:
        """What the first call has come to that is not answered yet."""
        with contextlib.suppress(messages.Ended):
            self._channel.send(messages.Kind.BYTES, payload.Payload(pieces, []))

    def fail(self, error: BaseException) -> None:
        """Or what it has failed with; `errors.EndWorker` ends the process."""
        if isinstance(error, errors.EndWorker):
            _end()
        with contextlib.suppress(messages.Ended):
            self._channel.send(messages.Kind.RAISED, payload.dump(_without_this_frame(error)))


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
