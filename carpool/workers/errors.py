"""How calls to worker processes fail, and what travels in place of exceptions that cannot."""

from __future__ import annotations

from carpool import errors


class WorkerDied(errors.UpstreamError):
    """The worker process ended while it held the batch, or none can start. Whether it was computed is unknown.

    `may_be_resent`: the batch may go to another worker, once.
    """

    reason = "worker_died"
    message = "the worker process died while it held the batch"
    is_overload = True

    def __init__(self, message: str | None = None, *, may_be_resent: bool = False) -> None:
        super().__init__(message)
        if may_be_resent:
            self.remedy = errors.Remedy.RESEND_ONCE


class Unusable(Exception):
    """Raised while a model is made that no restart can repair: its worker is not started again.

    `str(error)` is for whoever runs the program.
    """


class EndWorker(Exception):
    """Raised by a model that can do nothing more in its process, as when its device is lost: another one is started.

    Calls before it are answered first, also those whose answers are still being written. This one and those behind it
    get `WorkerDied`.
    """


class RemoteError(Exception):
    """An exception of a worker process that cannot be pickled; its text says type and text of that."""


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker process, as text: the `__cause__` of that exception here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'
