"""The driver: takes requests, has batches carried out, and hands outcomes over.

It keeps one execution for each batch that is out, and one timer. It decides nothing: when a batch leaves, who is in it
and who gets which answer is the scheduler's business; what carrying out a batch means is the executor's. It is called
by one thread at a time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from carpool import errors
from carpool.compiled import mypyc_attr
from carpool.runtime import deadline_timer
from carpool.scheduling import limits, messages, scheduler

log = logging.getLogger("carpool.runtime")


def new_batch_id() -> str:
    """The id of a batch, as uuid.uuid4() makes it, without a system call for each: unique is enough."""
    # RFC 9562, 5.4: version 4, variant 10.
    digits = f"{random.getrandbits(128) & _ID_BITS | _ID_MARKS:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


# The processor clock is read once in so many batches, as that is a system call. If they took so many seconds or more,
# they tell nothing: an idle sidecar uses a thousandth of a core, which is soon more than so few batches need.
_SAMPLE: Final = 32
_LONGEST_SAMPLE: Final = 1.0

_ID_BITS = ~(0xF << 76 | 0x3 << 62)
_ID_MARKS = 0x4 << 76 | 0x2 << 62


class Execution(Protocol):
    """A batch that is being carried out."""

    def cancel(self) -> bool | None:
        """Nobody waits for it any more: break it off, without an outcome.

        False if it goes on until its end, as a computing thread does. Then it keeps its slot until it is `done`.
        """
        ...


class Timer(Protocol):
    """Calls the driver's `poll` at a deadline. One that is early does no harm."""

    @property
    def due_at(self) -> float:
        """When it calls next; infinity if it is not set."""
        ...

    def look_by(self, when: float) -> None:
        """Call at `when`, or before."""
        ...

    def stop(self) -> None:
        """Forget the deadline."""
        ...


Outcome = messages.Rows | Exception
"""One result for each of a batch's rows, or why there are none. A failure that is no `CarpoolError` is a bug."""


class Executor(Protocol):
    """Carries out batches: calls a predictor, or a function."""

    def start(self, batch: messages.Batch, done: Callable[[Outcome], None]) -> Execution:
        """Begin with a batch; `done` is called with the outcome, once, after this has returned.

        It is called by the thread that may call the driver then: from the event loop, where there is one. What those
        who answer callers must know of the batch goes into `batch.about`. Raises `CarpoolError` for a batch that cannot
        be carried out; its remedy says what may still be done.
        """
        ...


class Replier(Protocol):
    """Hands outcomes over to callers: what is submitted has one, which takes its outcome once, unless it is cancelled.

    It is called from the event loop. One caller's trouble must not become the others'.
    """

    def answer(self, answers: Sequence[messages.Answer], about: Any) -> None:
        """Results, each in the order of the request's own rows; the requests of one batch come together.

        `about` is what the executor told of the batch that completed them.
        """
        ...

    def refuse(self, request: Any, error: errors.CarpoolError) -> None:
        """Why there are no results."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
class Observer:
    """Is told what happens, for metrics and logs. This one only logs bugs.

    `before` is called with each batch that is about to leave, which waits for that; None: there is nothing to be done.
    """

    before: Callable[[messages.Batch], None] | None = None

    def sent(self, batch: messages.Batch) -> None:
        """A batch has left."""

    def answered(self, batch: messages.Batch, seconds: float) -> None:
        """It came back with results after so many seconds, and its callers have them."""

    def failed(self, batch: messages.Batch, error: errors.CarpoolError) -> None:
        """It came back without; an `Abandoned` one had nobody who waited for it."""

    def turned_away(self, call: messages.Request, error: errors.CarpoolError) -> None:
        """A call is refused, at once or later."""

    def left(self, call: messages.Request) -> None:
        """A caller left before its answer."""

    def learned(self, lesson: messages.Learned) -> None:
        """From now on other requests share calls, or more or fewer of them do."""

    def bug(self, words: str, error: BaseException, batch: messages.Batch | None = None) -> None:
        """Something failed that cannot fail, perhaps with a batch."""
        log.error(words, exc_info=error, extra={"facts": {} if batch is None else {"batch": batch.id}})


@mypyc_attr(allow_interpreted_subclasses=True)
class Driver:
    """Takes calls, answers each exactly once. `clock` is the scheduler's.

    Without a `timer` it has one of the running event loop. `call_soon` calls a function with arguments once the present
    call of the driver is over; that, too, is the running loop's.

    With a `cpu_clock`, seconds of processor time of the one thread that calls it, it finds out what each batch and each
    request takes of that, all the thread's work for them counted.

    What is put in during one turn of the event loop goes to the scheduler together, at the end of the turn or before
    anything else happens: each by itself would find an idle predictor and leave alone, and would cost more.
    """

    # Mutable state: the scheduler's; _arrived, what it has not got yet; _executions, one for each batch out; the timer;
    # _on_idle; what was done since _counted_at, by both clocks.
    def __init__(
        self,
        core: scheduler.Scheduler,
        executor: Executor,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
        timer: Timer | None = None,
        call_soon: Callable[..., object] | None = None,
        cpu_clock: Callable[[], float] | None = None,
    ) -> None:
        self.core = core
        self._executor = executor
        self._observer = observer or Observer()
        self._clock = clock
        self._executions: dict[messages.Batch, Execution] = {}
        self._timer = timer or deadline_timer.DeadlineTimer(self._look, clock)
        self._call_soon = call_soon
        self._arrived: list[messages.Request] = []
        self._on_idle: list[Callable[[], None]] = []  # once draining: called when nothing is left
        self._cpu_clock = cpu_clock
        self._counted_at, self._counted_cpu = -math.inf, 0.0
        self._batches = self._requests = 0

    def submit(self, call: messages.Request) -> None:
        """Put a call in; it is answered or refused once, after this has returned."""
        arrived = self._arrived
        if not arrived:
            (self._call_soon or asyncio.get_running_loop().call_soon)(self.flush)
        arrived.append(call)

    def flush(self) -> None:
        """Let the scheduler have what was put in during this turn of the event loop."""
        arrived = self._arrived
        if not arrived:
            return
        self._arrived = []
        try:
            effects = self.core.submit_turn(arrived)
        except Exception as error:
            self._observer.bug("calls could not be taken for a reason that is a bug", error)
            effects = self.core.give_up(arrived)
        self._carry_out(effects)

    def submit_all(self, calls: Sequence[messages.Request]) -> None:
        """Put calls in that came at the same moment, at once."""
        self.flush()
        self._carry_out(self.core.submit_all(calls))

    def cancel(self, call: messages.Request) -> None:
        """The caller left; it will not be answered."""
        self.flush()
        if call.open:
            self._observer.left(call)
        self._carry_out(self.core.cancel(call))

    def change_limits(self, changed: limits.Limits) -> None:
        """Have the scheduler obey other limits."""
        self.flush()
        self._carry_out(self.core.change_limits(changed))

    def reconsider(self) -> None:
        """The scheduler's policy was told something."""
        self.flush()
        self._carry_out(self.core.reconsider())

    def poll(self) -> None:
        """A deadline may have passed."""
        self.flush()
        self._carry_out(self.core.poll())

    async def drain(self) -> None:
        """Take nothing new; return once everything accepted has been answered."""
        idle = asyncio.Event()
        self.start_draining(idle.set)
        await idle.wait()

    def start_draining(self, on_idle: Callable[[], None]) -> None:
        """Take nothing new; `on_idle` is called once everything accepted has been answered, perhaps at once."""
        self.flush()
        self._on_idle.append(on_idle)
        self._carry_out(self.core.drain())

    def close(self, error: errors.CarpoolError | None = None) -> None:
        """Refuse everybody who still waits, as `Draining` by default, and break off what is out.

        For the end of a grace period.
        """
        self.flush()
        self._carry_out(self.core.abort(error or errors.Draining()))
        for batch in list(self._executions):
            self._break_off(batch)
        self._timer.stop()

    # --- effects -----------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[messages.Effect], about: Any = None) -> None:
        """Do what the scheduler wants done, in its order, but answers always last: batches leave before."""
        answers: list[messages.Answer] = []
        for effect in effects:
            if type(effect) is messages.Answer:
                answers.append(effect)
            elif type(effect) is messages.Dispatch:
                batch = effect.batch
                try:
                    if self._observer.before is not None:
                        self._observer.before(batch)
                    self._executions[batch] = self._executor.start(batch, functools.partial(self._done, batch))
                except Exception as error:
                    # Later: the effects now being carried out come first.
                    told = self._told(batch, error, "a batch could not be sent")
                    (self._call_soon or asyncio.get_running_loop().call_soon)(self._fail, batch, told)
                try:
                    self._observer.sent(batch)  # behind it: an idle predictor waits for nothing that is counted
                except Exception as error:
                    self._observer.bug("a batch could not be counted", error, batch)
            elif type(effect) is messages.Refuse:
                self._refuse(effect)
            elif type(effect) is messages.Abandon:
                self._break_off(effect.batch)
            elif type(effect) is messages.Learned:
                self._observer.learned(effect)
        while answers:  # there are few repliers, and mostly one of them has all
            replier: Replier = answers[0].request.replier
            mine, others = answers, answers[1:]
            if others:
                others = [answer for answer in answers if answer.request.replier is not replier]
            if others:
                mine = [answer for answer in answers if answer.request.replier is replier]
            try:
                replier.answer(mine, about)
            except Exception as error:
                self._observer.bug("answers could not be handed over", error)
            answers = others
        if self.core.bug is not None:
            bug, self.core.bug = self.core.bug, None
            self._observer.bug("the scheduler failed for a reason that is a bug", bug)
        deadline = self.core.next_deadline()
        if deadline is not None and deadline < self._timer.due_at:
            self._timer.look_by(deadline)  # an early poll is in vain, and does no harm
        if self._on_idle and self.core.idle:
            waiting, self._on_idle = self._on_idle, []
            for on_idle in waiting:
                on_idle()

    def _refuse(self, effect: messages.Refuse) -> None:
        self._observer.turned_away(effect.request, effect.error)
        replier: Replier = effect.request.replier
        try:
            replier.refuse(effect.request, effect.error)
        except Exception as error:
            self._observer.bug("an error could not be handed over", error)

    def _done(self, batch: messages.Batch, outcome: Outcome) -> None:
        """A batch came back, with results or without."""
        if self._executions.pop(batch, None) is None:
            return  # it was broken off, although it said that it goes on
        self.flush()  # who came before an answer may leave with what it makes room for
        if isinstance(outcome, Exception):
            self._fail(batch, self._told(batch, outcome, "a batch failed for a reason that is a bug"))
        else:
            seconds = self._clock() - batch.dispatched
            self._carry_out(self.core.done(batch, outcome), batch.about)
            # Callers come first: they may send again while this is done.
            if batch.error is None:
                self._observer.answered(batch, seconds)
            else:
                self._report(batch, batch.error)
        self._batches += 1
        self._requests += len(batch.parts)
        if self._batches >= _SAMPLE and self._cpu_clock is not None:
            self._measure(self._cpu_clock())

    def _measure(self, cpu: float) -> None:
        """Learn what each of the last batches took, unless they came slowly: much of the time went elsewhere then."""
        now = self._clock()
        if now - self._counted_at <= _LONGEST_SAMPLE:
            self.core.own_time.observe(cpu - self._counted_cpu, self._batches, self._requests)
        self._counted_at, self._counted_cpu = now, cpu
        self._batches = self._requests = 0

    def _told(self, batch: messages.Batch, error: Exception, words: str) -> errors.CarpoolError:
        """What the members of a batch that failed are told; a bug is reported in these words."""
        if isinstance(error, errors.CarpoolError):
            return errors.bare(error)
        self._observer.bug(words, error, batch)
        return errors.CarpoolError()

    def _break_off(self, batch: messages.Batch) -> None:
        execution = self._executions.get(batch)
        if execution is not None and execution.cancel() is not False:
            del self._executions[batch]
            self._fail(batch, errors.Abandoned())

    def _fail(self, batch: messages.Batch, error: errors.CarpoolError) -> None:
        effects = self.core.failed(batch, error)
        self._report(batch, batch.error or error)
        self._carry_out(effects)

    def _report(self, batch: messages.Batch, error: errors.CarpoolError) -> None:
        if error.__cause__ is not None:
            self._observer.bug("a batch failed for a reason that is a bug", error.__cause__, batch)
        self._observer.failed(batch, error)

    def _look(self, _: float) -> float:
        self.poll()
        return math.inf  # `_carry_out` has set the timer
