"""A model in worker processes, one for each device: `carpool.processes(Model, …).on("cuda:0", "cuda:1")`.

What the others rely on (`carpool.batched`, the predictor):

- A pool is a function: `pool(batch, *args, **kwargs)` returns what the model returns for that, or raises what it
  raises. It blocks, and may be called from any number of threads. Each call has one worker for itself, so
  `len(pool.workers)` calls run at once, and more than these wait for their turn.
- Processes start at the first call or by `start()`, which does not wait for them, and end with `stop()`, or once the
  last function that uses the pool is closed. No thread runs before or after.
- While a worker is down, calls go to the others. While none is up, calls wait for one that starts, also for one that
  starts again after it died (`waits=False`: they fail at once). While the last start of every worker has failed, they
  fail at once with the account of what went wrong; the workers are started again all the same, after growing pauses.
- A worker that dies takes one call with it: `errors.WorkerDied`. Nothing is sent a second time from here; the error's
  `remedy` says whether it may be.
- After a fork the child has a pool that is not started. A worker ends with the process that started it, however that
  ends, also by a kill -9.
"""

from __future__ import annotations

import inspect
import os
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from carpool.workers import child, errors, payload, worker
from carpool.workers.worker import Backoff, State, Worker

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


def processes(
    model: Callable[Concatenate[str, P], Callable[Q, R]], /, *args: P.args, **kwargs: P.kwargs
) -> ModelInProcesses[Q, R]:
    """A model that is to run in processes of its own; `.on(…)` says how many.

    In each of them `model(device, *args, **kwargs)` is called once. It makes an object that is called with batches:
    `made(items, **kwargs) -> list`. The class or function, and its arguments, must be picklable: something that a
    module has by name. A model in the program's main module works if what the program does stands under
    `if __name__ == "__main__":`, because each process imports that module again.

    Raises TypeError for what cannot be a model, and RuntimeError where there are no such processes, as on Windows.
    """
    if not hasattr(os, "fork"):
        raise RuntimeError("worker processes need a system such as Linux or macOS; here, batch a def with the model")
    if not callable(model):
        raise TypeError(f"a model must be a class, or a function that makes one; not {type(model).__name__}")
    if isinstance(model, type):
        _check_that_its_objects_can_be_called(model)
    if getattr(model, "__module__", None) == "__main__" and not child.can_run_main_again():
        raise TypeError(
            f"{model.__qualname__} is defined in a session without a file, which no other process can import;"
            " put it into a module"
        )
    return ModelInProcesses(model, args, kwargs)


class ModelInProcesses(Generic[Q, R]):
    """What `processes` returns."""

    def __init__(self, model: Callable[..., Callable[Q, R]], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._model = model
        self._parts = (model, tuple(args), dict(kwargs))

    def on(
        self,
        *devices: str,
        resend: bool = False,
        waits: bool = True,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        pauses: Callable[[], Backoff] = Backoff,
    ) -> Processes[Q, R]:
        """One process for each of the devices, which are texts that the model understands: "cpu", "cuda:1", "cpu:a".

        `resend`: a batch whose worker died goes to another one, once, before its callers get `WorkerDied`.
        `waits=False`: while no worker is up, calls fail at once instead of waiting for one that starts. `env` are
        variables for the processes, beside those of this one. `name` is for logs and lists of processes. `pauses` makes
        what decides for one worker how long to wait before it is started again.

        Raises TypeError and ValueError for devices that are none, and TypeError for what cannot be pickled.
        """
        _check_devices(devices)
        try:
            message = payload.dump(self._parts)
        except Exception as error:
            raise TypeError(f"{self._model!r} or its arguments cannot go to another process: {error}") from error
        name = name or _name(self._model)
        names = [name] if len(devices) == 1 else [f"{name} on {device}" for device in devices]
        variables = None if env is None else {**os.environ, **env}
        orders = [
            worker.Order(each, device, message, variables, resend) for each, device in zip(names, devices, strict=True)
        ]
        return Processes(self._model, orders, pauses, waits=waits)


class Processes(Generic[Q, R]):
    """A model in worker processes: a function for batches, to be called from threads. See the top of this module."""

    def __init__(
        self,
        model: Callable[..., Callable[Q, R]],
        orders: Sequence[worker.Order],
        pauses: Callable[[], Backoff],
        *,
        waits: bool,
    ) -> None:
        # Frozen. The names and the parameters are those of the model's objects, for whoever asks for them.
        self.devices = tuple(order.device for order in orders)
        self.__name__: str = _name(model)
        self.__qualname__: str = getattr(model, "__qualname__", self.__name__)
        self.__signature__ = _signature(model)
        self._orders = orders
        self._pauses = pauses
        self._waits = waits
        # Mutable; guarded by `_changed`, as is the state of the workers.
        self._is_stopped = False
        self._users = 0
        self._make_workers()
        _pools.add(self)

    def _make_workers(self) -> None:
        self._is_started = False
        self._changed = threading.Condition()
        self.workers = tuple(Worker(order, self._changed, self._pauses()) for order in self._orders)
        self._let_go = weakref.finalize(self, _request_stop, self.workers)
        self._let_go.atexit = False  # the workers end with this process, but not before it has answered everybody

    @property
    def is_ready(self) -> bool:
        """Whether a worker is up, and calls are taken."""
        if not self._is_stopped:
            for each in self.workers:
                if each.state is State.READY:
                    return True
        return False

    def start(self) -> None:
        """Start all processes unless that was done; returns at once. Raises `errors.WorkerDied` after `stop()`."""
        if self._is_started and not self._is_stopped:
            return
        with self._changed:
            self._check_that_it_is_open()
            self._start()

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Start, and wait until a worker is up: whether one is, after `timeout` seconds at most.

        Raises what a call would raise: `errors.WorkerDied` if none can start, and after `stop()`.
        """
        self.start()
        with self._changed:
            return self._changed.wait_for(self._is_up, timeout)

    def run(self) -> None:
        """Start, and return once a `stop()` has ended the processes. Raises `errors.Unusable` once a worker is so."""
        with self._changed:
            if not self._is_stopped:
                self._start()
            self._changed.wait_for(lambda: self._is_stopped or self._unusable() is not None)
            unusable = self._unusable()
        if unusable is not None:
            raise unusable
        self._join()

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> R:
        """Call the model in one of the processes.

        Raises what the model raises, with the traceback there as its cause, or a `RemoteError` that says what that was
        if it cannot be pickled; `errors.WorkerDied` if the process ends first, none can start, or `stop()` comes.
        """
        self.start()
        chosen = self._take()
        try:
            answer: R = chosen.call(args, kwargs)
        finally:
            with self._changed:
                chosen.is_busy = False
                self._changed.notify_all()
        return answer

    def stop(self, timeout: float | None = None, *, wait: bool = True) -> None:
        """End the processes, once and for all. Calls that wait for their turn get `errors.WorkerDied`.

        Calls under way are waited for, for `timeout` seconds at most; then they get that as well. With `wait=False`
        the processes may end after the return, up to a second later each.
        """
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not any(each.is_busy for each in self.workers), timeout)
        _request_stop(self.workers)
        if wait:
            self._join()

    def acquire(self) -> None:
        """One more function uses the pool."""
        self._users += 1

    def release(self) -> None:
        """One function less; the last one ends the processes. Returns at once."""
        self._users -= 1
        if not self._users:
            self.stop(0.0, wait=False)

    def _join(self) -> None:
        for each in self.workers:
            each.join()

    def __enter__(self) -> Processes[Q, R]:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<carpool.processes({self.__name__}).on({', '.join(map(repr, self.devices))})>"

    # --- with `_changed` held -----------------------------------------------------------------------------------

    def _start(self) -> None:
        child.check_that_workers_may_start()
        for each in self.workers:
            each.start()
        self._is_started = True

    def _take(self) -> Worker:
        with self._changed:
            while True:
                for each in self.workers:
                    if each.state is State.READY and not each.is_busy and not self._is_stopped:
                        each.is_busy = True
                        return each
                if not self._is_up() and not self._waits:
                    raise errors.WorkerDied(f"no worker process of {self.__name__} is up")
                self._changed.wait()

    def _is_up(self) -> bool:
        """Whether a worker is up. Raises `errors.WorkerDied` if there is nothing to wait for."""
        self._check_that_it_is_open()
        failures = [each.failure for each in self.workers]
        if None not in failures:
            account = "".join(traceback.format_exception(failures[-1])).strip()
            raise errors.WorkerDied(f"the worker process {self.workers[-1].name} cannot start:\n{account}")
        return self.is_ready

    def _check_that_it_is_open(self) -> None:
        if self._is_stopped:
            raise errors.WorkerDied(f"the worker processes of {self.__name__} were stopped")

    def _unusable(self) -> BaseException | None:
        return next((each.failure for each in self.workers if each.state is State.UNUSABLE), None)

    # --- after a fork -------------------------------------------------------------------------------------------

    def _forget(self) -> None:
        self._let_go.detach()
        for each in self.workers:
            each.forget()
        self._make_workers()


def _name(model: Callable[..., Any]) -> str:
    return str(getattr(model, "__name__", type(model).__name__))


def _request_stop(workers: Sequence[Worker]) -> None:
    for each in workers:
        each.request_stop()


def _signature(model: Callable[..., Any]) -> inspect.Signature | None:
    """The parameters of a call, if they are known."""
    if not isinstance(model, type):
        return None
    try:
        parameters = inspect.signature(model.__call__).parameters
    except ValueError:  # written in C
        return None
    return inspect.Signature([*parameters.values()][1:])


def _check_that_its_objects_can_be_called(model: type) -> None:
    call = next((vars(each)["__call__"] for each in model.__mro__ if "__call__" in vars(each)), None)
    if call is None:
        raise TypeError(f"{model.__qualname__} has no __call__(self, items); a model is called with batches")
    for is_other in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        if is_other(call):
            raise TypeError(f"{model.__qualname__}.__call__ must be a plain function that returns a list")


def _check_devices(devices: Sequence[object]) -> None:
    if not devices:
        raise ValueError('on() needs a device for each process, for example on("cuda:0", "cuda:1")')
    for device in devices:
        if not isinstance(device, str):
            raise TypeError(f"a device must be a str, not {type(device).__name__}: {device!r}")


# Forks. The child closes its copies of the files, without a word to the workers: else it would keep them alive past the
# end of the process that they belong to.

_pools: weakref.WeakSet[Processes[..., Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    worker.spawning.release()
    for pool in list(_pools):
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=worker.spawning.acquire,
        after_in_parent=worker.spawning.release,
        after_in_child=_after_fork_in_child,
    )
