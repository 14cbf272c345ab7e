"""One batched function at work: its scheduler, and the sequence in which everything happens to that.

Calls, cancellations and outcomes come from any thread, from signal handlers and from the garbage collector, which may
interrupt the very thread that is at it. So nobody waits for a lock: what is to happen is put on a queue, and whoever
gets the lock does all that is queued; if somebody else has it, that one will see to it. Futures are settled after the
lock was let go, as their callbacks may do anything.

Calls made in one turn of an event loop are put in together at its end: they would share a batch anyway, and the
scheduler is asked once for all of them. So are those of threads that come until an idle function is awake.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import threading
import time
import weakref
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from carpool import errors
from carpool.functions import (
    calls,
    collected,
    futures,
    hosts,
    options,
    running,
    stats,
    streams,
    waiting,
    work,
)
from carpool.functions import errors as failures
from carpool.runtime import driver
from carpool.scheduling import messages, policy, window

log = logging.getLogger("carpool.functions")

T = TypeVar("T")

# Seconds by which a timer of a thread is late, about; event loops count whole milliseconds.
_TICK = 0.0005


MakeHost = Callable[["Batcher"], hosts.Host]
MakeTracing = Callable[["Batcher"], stats.Tracing]


_Operation = tuple[Callable[..., None], tuple[Any, ...]]
"""A function that is to be called with these arguments."""

Plan = tuple[calls.Key, float | None, int]
"""The key, the timeout and the priority of calls that may travel as one."""


# What makes spans of what new batchers do; set by `trace_all`.
_make_tracing: MakeTracing | None = None


def _new_ids() -> Callable[[], str]:
    """Makes ids in the form of uuid.uuid4(): random but for the end, which is a number."""
    begin, numbers = driver.new_batch_id()[:24], itertools.count()
    return lambda: f"{begin}{next(numbers):012x}"


def _nothing_to_tell() -> None:
    """Have those told who wait for the end."""


def _take(queue: deque[T], into: list[T], count: int = 1) -> bool:
    """Move the first ones in one step of the interpreter: they are in one place always. False if there are fewer."""
    try:
        into.extend(map(deque.popleft, itertools.repeat(queue, count)))
    except IndexError:  # another thread took it
        return False
    return True


def _calls_in(args: Sequence[Any]) -> list[calls.Call]:
    """The calls that an operation is given, one or a list of them or of their answers."""
    listed = [each for argument in args if isinstance(argument, list | tuple) for each in argument]
    requests = [each.request if type(each) is messages.Answer else each for each in (*args, *listed)]
    return [each for each in requests if isinstance(each, calls.Call)]


def _as_of_now(look: Callable[[], Sequence[T]]) -> Sequence[T]:
    """What is in a collection that other threads change."""
    while True:
        with contextlib.suppress(RuntimeError):  # it changed meanwhile
            return look()


class Batcher:
    """Batches calls of one function on one host. All methods may be called by any thread, at any moment.

    `compute` is how the host runs the function with a batch; `most` is how many batches may be out where the options do
    not say. `clock` is that of the scheduler.
    """

    # Mutable state: the options; _operations, what is still to happen, and _lock, held by whoever is at it; _outbox,
    # what callers are still to be told; _arrived, calls of this turn of the event loop _flushing, or until that host
    # takes them in, and _late, those that came after the end was asked for; those that _gathering has may be joined,
    # and _joining is held where one ends. Under the lock the driver, the host, and _closing, who waits for the end.
    # _has_begun, whether a batch has since answers were handed out last, and _is_urgent, whether any are not for tasks
    # of a loop. _doing is the operation that is at work, and _telling what each thread hands out: a fork finds them
    # there. _ended are those who are told last.
    def __init__(
        self,
        name: str,
        chosen: options.Options,
        make_host: MakeHost,
        compute: Callable[[work.Work], Any],
        most: int = 1,
        learns_in_flight: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.options = chosen
        self.recorder = stats.Recorder()
        self.under_way = collected.UnderWay()
        self._make_host = make_host
        self.compute = compute
        self.on_loop_end: weakref.WeakMethod[Callable[[], None]] | None = None
        """Called when its event loop is closed."""
        self._most = most
        self._learns_in_flight = learns_in_flight
        self.clock = clock
        self._is_closed = self._is_hurrying = self._has_begun = self._is_urgent = False
        self._operations: deque[_Operation] = deque()
        self._outbox: deque[_Operation] = deque()
        self._arrived: deque[calls.Call] = deque()
        self._late: deque[calls.Call] = deque()
        self._gathering: dict[Plan, calls.Turn] = {}
        self._flushing: AbstractEventLoop | hosts.Host | None = None
        self._closing: list[futures.Future[None]] = []
        self._ended: list[futures.Future[None]] = []
        self._forget_threads()
        self._start()
        live.add(self)
        stats.live.add(self)

    def _forget_threads(self) -> None:
        """No thread is at it: at the begin, and in a child process, where others are not."""
        self._lock = threading.RLock()  # a handler of a signal may come round before its thread is known
        self._at_work = 0  # the identifier of the thread that has it
        self._joining = threading.RLock()
        self._doing: list[_Operation] = []
        self._telling: dict[int, list[_Operation]] = {}

    def _start(self) -> None:
        """Begin with a scheduler that has nothing. What is queued stays: who queues something else misses nothing."""
        self.limits = self.options.limits(self._most, self._learns_in_flight)
        self.core = calls.Turns(self.limits, self._policy(), self.clock, _new_ids())
        self.core.draining = self._is_closed
        self.host = self._make_host(self)
        self.driver = driver.Driver(self.core, self, self.recorder, self.clock, self.host.timer, self._later)
        self.recorder.trace(None if _make_tracing is None else _make_tracing(self))

    def _later(self, operation: Callable[..., None], *args: Any) -> None:
        self._operations.append((operation, args))

    def _policy(self) -> policy.Policy:
        if self.options.max_latency is not None:
            return window.Window(self.limits)
        return calls.Adaptive(self.limits, _TICK, functools.partial(waiting.is_stuck, self))

    # --- what callers do ---------------------------------------------------------------------------------------

    def turn(
        self,
        loop: AbstractEventLoop,
        plan: Plan,
        arguments: calls.Arguments,
        owner: object,
        on_close: Callable[[], object],
    ) -> calls.Turn:
        """What others called in this turn of the running loop by the same plan, or a new one."""
        found = self._gathering.get(plan)
        if found is None or found.loop is not loop or found.is_full:
            key, timeout, priority = plan
            before = 0 if found is None else found.before + found.count
            found = calls.Turn(key, timeout, priority, loop, self.room(before), self._joining, on_close)
            found.arguments, found.owner, found.replier, found.before = arguments, owner, self, before
            self.submit(found, loop)
            self._gathering[plan] = found
        return found

    def room(self, before: int) -> int:
        """How many items may go as one call: as many as make the batches full, as if each had come alone.

        So many came `before` by the same plan in this turn. Those by other plans do not count: they travel elsewhere or
        at another time, and there may be as many plans as calls.
        """
        chosen, size = self.options, self.options.max_batch_size
        if chosen.small_batch_threshold or chosen.allowed_batch_sizes or self.recorder.tracing is not None:
            return 1  # there it matters how many items a call has
        return size - (self.core.backlog.rows + before) % size

    def submit(self, call: calls.Call, loop: AbstractEventLoop | None) -> None:
        """Put a call in, of a thread where this loop runs."""
        if running.inline_depth:
            self._run_inline(call)
            return
        (self._late if self._closing or self._is_closed else self._arrived).append(call)
        if self._flushing is (loop or self.host):
            return
        if loop is not None:
            loop.call_soon(self.take_in)
            self._flushing = loop
            return
        try:
            self._flushing = self.host  # before it is asked: it may be there at once
            is_asked = self.host.call_soon(self.take_in)
        except BaseException:  # an interrupt: others rely on it meanwhile
            self.take_in()
            raise
        if not is_asked:
            self.take_in()

    def _run_inline(self, call: calls.Call) -> None:
        call.close()
        if self._is_closed:
            self._hand_refusal(call, errors.Draining())
            return
        call.arrived = self.clock()
        size = self.options.max_batch_size
        works: list[work.Work] = []
        batches: list[messages.Batch] = []
        for start in range(0, call.rows, size):
            part = messages.Part(call, start, min(start + size, call.rows))
            batch = messages.Batch(driver.new_batch_id(), call.key, [part], messages.Reason.IDLE)
            batch.dispatched = call.arrived
            batches.append(batch)
            works.append(work.Work(batch, self.options, self.recorder))

        def done(outcomes: Sequence[driver.Outcome]) -> None:
            pieces: list[messages.Piece] = []
            for each, outcome in zip(batches, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    error = outcome if isinstance(outcome, errors.CarpoolError) else failures.Raised(outcome)
                    self._hand_refusal(call, error)
                    return
                pieces.append(messages.Piece(0, each.id, outcome[0 : each.rows]))
            self._hand_out([messages.Answer(call, pieces)])

        running.run_inline(self.compute, works, done)

    def flush(self, running: AbstractEventLoop | None = None) -> None:
        """Put in what was called in this turn of an event loop, which may be about to block if it is not this one."""
        if self._flushing is not self.host and (running is None or running is not self._flushing):  # which do it soon
            self.take_in()

    def take_in(self) -> None:
        """Put in what was called by now."""
        self._flushing = None
        for queue in (self._arrived, self._late):
            if queue:
                self.post(self._submit, [], queue)

    def withdraw(self, call: calls.Call) -> None:
        """Somebody does not wait for a call any more; others may."""
        self.take_in()
        self.post(self._cancel, call)

    def come_to_rest(self) -> None:
        """Implements `waiting.Batcher`."""
        with self._lock:
            pass
        self._work()  # what came meanwhile found the lock taken

    def hasten(self) -> None:
        """Implements `waiting.Batcher`."""
        self.take_in()
        self.post(lambda: self.driver.reconsider())  # of its moment: the driver may be another one then

    def configure(self, chosen: options.Options) -> None:
        """Put other options in force."""
        self.post(self._configure, chosen)

    def close(self, timeout: float | None = None) -> futures.Future[None]:
        """Take nothing new; the future is done once everything accepted was answered.

        What is not within `timeout` seconds is refused as `Closed`.
        """
        closed: futures.Future[None] = futures.Future(_Everything(self))
        self._closing.append(closed)
        self.take_in()
        if self.host.is_running():
            self.post(self._close, timeout)
        else:
            self._is_closed = True
            self._begin_anew("its event loop does not run any more")
        return closed

    def lose_loop(self) -> None:
        """Its event loop is ending: nothing more can be computed there. Part of the sequence."""
        self._begin_anew("its event loop is ending")
        prune = None if self.on_loop_end is None else self.on_loop_end()
        if prune is not None:
            prune()

    def retire(self) -> None:
        """Its event loop has ended: refuse what is left."""
        self._begin_anew("its event loop has ended")
        self._tell_all()

    def trace(self, make_tracing: MakeTracing | None) -> None:
        """Make spans from here on, or none."""
        self.post(self._trace, make_tracing)

    def hurry(self) -> None:
        """Wait no longer for batches to fill."""
        self.take_in()
        self.post(self._hurry)

    def mark(self) -> threading.Event:
        """Set once everything that was put in before has had its turn."""
        mark = threading.Event()
        self.post(mark.set)
        return mark

    def open_calls(self) -> Sequence[messages.Request]:
        """What was accepted and is not answered now, as far as another thread can tell."""
        return _as_of_now(self.core.open_requests)

    def give_up(self, words: str) -> None:
        """Refuse all that is open, for good."""
        with self._lock:  # no operation is half done
            self._is_closed = True
        self._begin_anew(words)  # callbacks may wait for other threads, which call meanwhile

    def after_fork(self) -> None:
        """In the child: what the parent accepted is the parent's."""
        self.under_way = collected.UnderWay()
        # Threads that are not here were at these.
        unfinished = [*self._doing, *itertools.chain(*self._telling.values())]
        self._begin_anew("this is a fork of the process that called", unfinished, is_fork=True)
        self.host.after_fork()

    def stats(self) -> stats.Stats:
        """What happened so far, and how things are."""
        return stats.snapshot(self.name, self.recorder, self.core, self.options)

    # --- the sequence ------------------------------------------------------------------------------------------

    def post(self, operation: Callable[..., None], *args: Any) -> None:
        """Have something happen in its turn, now if nobody is at it."""
        self._operations.append((operation, args))
        self._work()

    def _work(self) -> None:
        host = self.host
        if not host.is_here():
            if not host.call_there(self._work):
                self.retire()
            return
        lock = self._lock
        if self._at_work == threading.get_ident():
            return  # this thread was interrupted in the midst of it, and goes on with what is queued
        try:
            self._do_all(lock)
            if not self._tells_later():
                self._tell_all()
        except BaseException:  # an interrupt, perhaps just before or after the lock was let go
            with contextlib.suppress(RuntimeError):  # it was let go
                lock.release()
            self._work()
            raise

    def _do_all(self, lock: threading.RLock) -> None:
        operations = self._operations
        # It is another one in a fork that was made here: what is queued is done under that one.
        while operations and lock is self._lock and lock.acquire(blocking=False):
            doing = self._doing
            try:
                self._at_work = threading.get_ident()
                while operations and lock is self._lock and _take(operations, doing):
                    operation, args = doing[0]
                    operation(*args)
                    doing.clear()
            except Exception as error:
                self.recorder.bug("scheduling failed for a reason that is a bug", error)
                self._begin_anew("scheduling failed for a reason that is a bug", doing)
            except BaseException:  # an interrupt in the midst of it: what the scheduler knows may not hold any more
                self._begin_anew("scheduling was interrupted", doing)
                raise
            finally:
                doing.clear()
                if lock is self._lock:  # else this is a fork that was made here
                    self._at_work = 0
                lock.release()

    def _tells_later(self) -> bool:
        """Whether answers wait until the function has the batch that was just begun.

        Handing out those of 32 callers takes a tenth of a millisecond, in which the function would have nothing to do.
        """
        if not self._has_begun:
            return False
        is_urgent, self._has_begun, self._is_urgent = self._is_urgent, False, False
        return bool(self._outbox) and self.host.call_next(self._work, is_urgent)

    def _tell_all(self) -> None:
        outbox, telling = self._outbox, self._telling
        if not outbox:
            return
        mine: list[_Operation] = []
        telling[id(mine)] = mine
        try:
            while outbox and _take(outbox, mine):
                tell, args = mine[0]
                try:
                    tell(*args)
                except Exception as error:
                    words = "results could not be handed out for a reason that is a bug"
                    self.recorder.bug(words, error)
                    for call in _calls_in(args):
                        futures.settle(call.refusals(failures.Closed(f"{self.name}: {words}")))
                except BaseException:  # an interrupt; telling again does no harm
                    outbox.appendleft((tell, args))
                    raise
                finally:
                    mine.clear()
        finally:
            del telling[id(mine)]
        if self._ended and not telling and not outbox:
            ended, self._ended = self._ended, []
            futures.settle([(future, None, None) for future in ended])

    def _submit(self, arrived: list[calls.Call], queue: deque[calls.Call]) -> None:
        """Put these in, and all of a queue: they are added here, where a fork or an interrupt finds them."""
        _take(queue, arrived, len(queue))
        self._gathering = {}
        self.host.watch()
        # One that was cancelled before it was put in is done.
        waiting = [call for call in arrived if call.close()]
        if waiting:
            self.driver.submit_all(waiting)

    def _cancel(self, call: calls.Call) -> None:
        gone = self.core.leave(call)
        if gone is None:
            self.driver.cancel(call)
        else:
            self.recorder.abandoned += gone

    def poll(self) -> None:
        """A deadline may have passed; part of the sequence."""
        self.driver.poll()

    def _configure(self, chosen: options.Options) -> None:
        adapts, adapted = chosen.max_latency is None, self.options.max_latency is None
        self.options = chosen
        self.core.part_waiting()
        if adapts != adapted:
            self.core.policy = self._policy()
            for batch in self.core.in_flight:
                self.core.policy.sent(batch, batch.dispatched)
        self.driver.change_limits(chosen.limits(self._most, self._learns_in_flight))

    def _trace(self, make_tracing: MakeTracing | None) -> None:
        before = self.recorder.tracing
        self.recorder.trace(None if make_tracing is None else make_tracing(self))
        if before is not None:
            before.forget()

    def _hurry(self) -> None:
        self._is_hurrying = True
        self.driver.change_limits(dataclasses.replace(self.limits, max_latency=0.0))

    def _close(self, timeout: float | None) -> None:
        is_first = not self._is_closed
        self._is_closed = True
        if timeout is not None:
            self.host.call_at(
                self.clock() + timeout, functools.partial(self.post, self._abort, f"{self.name} was closed")
            )
        if is_first:
            self.driver.start_draining(self._end)
        elif self.core.idle:
            self._end()

    def _end(self) -> None:
        """Everything accepted was answered."""
        self.host.end()
        self.compute = hosts.nothing
        closed, self._closing = self._closing, []
        self._ended += closed  # once the last answers were handed out, which another thread may be at
        self._outbox.append((_nothing_to_tell, ()))

    def _abort(self, words: str) -> None:
        """The time for closing is over."""
        if self._closing:
            self.driver.close(failures.Closed(words))
            self._end()

    def _begin_anew(self, words: str, failed: Iterable[_Operation] = (), *, is_fork: bool = False) -> None:
        """Refuse everything open, also what is in the arguments of operations that failed, and begin with nothing."""
        core, host, tracing = self.core, self.host, self.recorder.tracing
        lost = [call for _, args in failed for call in _calls_in(args)]
        if is_fork:
            self._forget_threads()
        self._start()  # before anything is looked at: what comes meanwhile is the new scheduler's, or still queued
        for queue in (self._arrived, self._late):
            _take(queue, lost, len(queue))
        self._gathering = {}
        lost += cast(Sequence[calls.Call], _as_of_now(core.open_requests))
        lost += self._taken_from_queue(self._operations)
        if is_fork:
            lost += self._taken_from_queue(self._outbox)
            # Whoever ends it, or has it look at something, means the parent's; its options are the child's as well.
            options_of = [each for each in self._operations if each[0] in (self._configure, self._trace)]
            self._operations.clear()
            self._operations.extend(options_of)
        lost = list(dict.fromkeys(lost))
        for call in lost:
            call.end() if is_fork else call.close()
        closing: list[futures.Future[None]] = []
        for those in (self._closing, self._ended):
            while those:
                closing.append(those.pop())
        with contextlib.suppress(Exception):  # it may be in the midst of something
            core.abort(failures.Closed(words))
            host.end()
        if tracing is not None and not is_fork:
            tracing.forget()
        refusals = [each for call in lost for each in call.refusals(failures.Closed(f"{self.name}: {words}"))]
        if not is_fork:  # else that happened in the parent
            self.recorder.refused(failures.Closed(), sum([call.callers for call in lost]))
        futures.settle([*refusals, *((future, None, None) for future in closing)])

    def _taken_from_queue(self, queue: deque[tuple[Callable[..., None], tuple[Any, ...]]]) -> list[calls.Call]:
        """The calls that are to be put in, or told something; what else is queued stays there."""
        found: list[calls.Call] = []
        for _ in range(len(queue)):
            with contextlib.suppress(IndexError):  # another thread took it
                operation, args = queue.popleft()
                if those := _calls_in(args):
                    found += those
                else:
                    queue.append((operation, args))
        return found

    # --- the driver's executor and replier ---------------------------------------------------------------------

    def start(self, batch: messages.Batch, done: Callable[[driver.Outcome], None]) -> driver.Execution:
        """Have a batch computed."""
        execution = self.host.begin(work.Work(batch, self.options, self.recorder, self._most_ahead), done)
        self._has_begun = True
        if self._flushing is self.host and (self._arrived or self._late):  # it may be busy now
            self._later(self.take_in)
        return execution

    def _most_ahead(self) -> float:
        if self.core.draining or self._is_hurrying:
            return math.inf
        return streams.MOST_AHEAD if self.core.waiting_rows else streams.AHEAD

    def answer(self, answers: Sequence[messages.Answer], about: Any) -> None:
        """Results; callers get them once the lock is free."""
        self._is_urgent = self._is_urgent or any(type(each.request) is not calls.Turn for each in answers)
        self._outbox.append((self._hand_out, (answers,)))

    def refuse(self, request: Any, error: errors.CarpoolError) -> None:
        """Why there are none."""
        self._is_urgent = self._is_urgent or type(request) is not calls.Turn
        self.recorder.refused(error, request.callers)
        self._outbox.append((self._hand_refusal, (request, error)))

    def _hand_out(self, answers: Sequence[messages.Answer]) -> None:
        call = cast(calls.Call, answers[0].request)
        if len(answers) == 1:
            call.answer(answers[0].pieces)
            self.recorder.request_seconds.observe(self.clock() - call.arrived, call.callers)
            return
        arrived: list[float] = []
        settled: list[Iterable[futures.Settling]] = []
        try:
            for answer in answers:
                call = cast(calls.Call, answer.request)
                arrived += [call.arrived] * call.callers
                settled.append(call.answers(answer.pieces))
        finally:  # together: nobody waits for another's callback, and threads that are woken do not compete with this
            futures.settle(itertools.chain.from_iterable(settled))
        self.recorder.finished(arrived, self.clock())

    def _hand_refusal(self, call: calls.Call, error: errors.CarpoolError) -> None:
        futures.settle(call.refusals(failures.in_words(error, self.name, self.options.max_queue)))


class _Everything(waiting.Source):
    """What a batcher has accepted, as the source of a future that is done once all of it is answered."""

    def __init__(self, by: Batcher) -> None:
        self._by = by

    def needs(self) -> Sequence[waiting.Need]:
        everything: waiting.Need = (self._by, None)
        return (everything,)

    def withdraw(self, future: Any) -> None:
        """It is answered all the same."""


live: weakref.WeakSet[Batcher] = weakref.WeakSet()
"""All of this process."""


def trace_all(make_tracing: MakeTracing | None) -> None:
    """Make spans of all that batchers do from here on, also those that are made later; None: make none."""
    global _make_tracing
    _make_tracing = make_tracing
    for batcher in list(live):
        batcher.trace(make_tracing)
