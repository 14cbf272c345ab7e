"""The learning policy: no window to set.

Send when the predictor is idle; while it is busy, let the batch grow and send it just in time; wait a moment for
callers that were just answered if they usually come back; keep batches apart while the sidecar's own core is what
limits; under overload refuse early, and drop the request that is next if a batch of the size that goes next cannot
finish in time, rather than shrink the batch to save it.
"""

from __future__ import annotations

import math
from typing import Final

from carpool import errors
from carpool.compiled import mypyc_attr
from carpool.scheduling import own_time, packing, tuning
from carpool.scheduling.arrivals import ArrivalRate, LevelsInUse, ReturningCallers
from carpool.scheduling.backlog import Backlog, Queue
from carpool.scheduling.full_size import FullSize
from carpool.scheduling.limits import Limits, whole_seconds
from carpool.scheduling.messages import Batch, Reason, Request
from carpool.scheduling.policy import Decision, Drop, Release, Wait
from carpool.scheduling.predictor_model import PredictorModel, UsualWork
from carpool.scheduling.spacing import Spacing

# Until a batch comes back, or time passes for too long without.
_ANSWER: Final = Wait(None, math.inf)


@mypyc_attr(allow_interpreted_subclasses=True)
class Adaptive:
    """Learns the predictor's time per batch, its overhead, its parallelism, and its callers' habits.

    `limits.max_latency` bounds the voluntary wait, `limits.max_in_flight` how many batches may be out.
    `tick` is the grain of the timers that carry out its waits, in seconds: it aims half of that early. `chance` is a
    number from 0 to 1, another one in every pod, so that pods which start together do not look for parallelism at the
    same moment.
    """

    # State: what was learned (predictor, returns, own time), how to treat a troubled predictor, and when to look for
    # parallelism.
    def __init__(self, limits: Limits, tick: float = 0.0, chance: float = 0.5) -> None:
        self.predictor = PredictorModel(limits)
        self.usual_work = UsualWork()
        self.returns = ReturningCallers()
        self.arrivals = ArrivalRate()
        self.full_size = FullSize()
        self.own_time = own_time.OwnTimeModel()
        self.spacing = Spacing()
        self._levels = LevelsInUse()
        self._pace = own_time.Pace(self.own_time)
        self._limits = limits
        self._tick = tick
        self._grain = max(tick / 2, tuning.SHORTEST_WAIT)
        self._pause_until = float("-inf")
        self._pause = 0.0
        self._is_wary = False
        self._slow_in_a_row = 0
        self._since_probe = 0
        self._first_probe = round(tuning.PROBE_EVERY * (1 + tuning.PROBE_JITTER * (2 * chance - 1)))
        self._probe_every = self._first_probe
        self._has_waited = False
        self._last_work = float("-inf")  # when a batch last left or came back

    @property
    def max_in_flight(self) -> float:
        return self.wanted_in_flight()

    def wanted_in_flight(self) -> float:
        """As many as are worth having out; one for every second worker while there is trouble."""
        predictor = self.predictor
        wanted = max(1, (predictor.workers + 1) // 2) + predictor.overdue if self._is_wary else predictor.most_out
        most = self._limits.max_in_flight
        return wanted if wanted < most else most

    # --- events ------------------------------------------------------------------------------------------------

    def arrived(self, rows: int, goal: float, ahead: int, now: float) -> errors.CarpoolError | None:
        """Refuse at once what cannot be answered by its goal, even if all goes well from here."""
        predictor = self.predictor
        if predictor.overdue_at <= now:
            predictor.passed(now)
        if goal < math.inf:
            answered = self.predicted_start(ahead, now) + predictor.work_of_one + predictor.overhead
            if answered > goal and self._earliest_answer(ahead, now) > goal and not self._must_learn(now):
                return errors.WouldBeLate(retry_after=self.drain_seconds(ahead, now))
        self.returns.arrived(rows, now)
        self.arrivals.add(rows, now)
        return None

    def sent(self, batch: Batch, now: float) -> None:
        """A batch left."""
        predictor, most = self.predictor, self._limits.max_batch_size
        out = predictor.out
        # One that had to leave early, because it was full, tells as much as a probe, which would part its callers.
        is_early = out >= predictor.workers and self._would_be_clear(batch.rows, now)
        self._since_probe = 0 if is_early else self._since_probe + 1
        if batch.rows >= tuning.FULL * self.full_size.of(most):
            self.full_size.sent(most, predictor)
        self.spacing.sent(batch, now, predictor.round_trip(batch.weight), out)
        predictor.sent(batch, now)
        self._levels.sent(batch, now)
        self._pace.sent(len(batch.parts), now, self._longest_wait)
        self._has_waited = False
        self._last_work = now

    def completed(self, batch: Batch, now: float) -> None:
        """A batch came back with predictions."""
        predictor, most = self.predictor, self._limits.max_batch_size
        self._last_work = now
        self._watch_for_slowness(batch, now)
        if predictor.follows(batch):
            self.full_size.completed(batch.rows, most, now - predictor.completed_at)
        else:
            self.full_size.interrupted()
        workers = predictor.workers
        predictor.completed(batch, now)
        self.usual_work.observe(predictor, most)
        if predictor.workers != workers:
            self._probe_every = self._first_probe
        self.returns.completed(batch.rows, now, self._longest_hold())
        self.spacing.completed(batch, now, predictor.out)
        self._pause = 0.0
        self._pause_until = float("-inf")

    def batch_failed(self, batch: Batch, error: errors.CarpoolError, now: float) -> None:
        """A batch failed. A predictor that is overloaded or restarting is left alone for a while."""
        self.predictor.gone(batch, now)
        self.spacing.failed()
        if error.is_overload:
            self._is_wary = True
            self._pause = min(tuning.BACKOFF_LONGEST, self._pause * 2 or tuning.BACKOFF_FIRST)
            self._pause_until = now + self._pause

    # --- decisions ---------------------------------------------------------------------------------------------

    def choose(self, backlog: Backlog, now: float) -> Decision:
        """What to do with a free slot."""
        if now < self._pause_until:
            return Wait(self._pause_until, self._pause_until)
        queue = backlog.due(math.inf, 0.0)
        if queue is None:
            return Wait(None)
        goal, safe_until = queue.first.goal, math.inf
        if goal < math.inf:
            safe_until = self.predictor.latest_start(queue.max_batch_size, goal)
        late = None if now < safe_until else self._late_first(queue, now)
        if late is not None:
            return Drop(late, errors.WouldBeLate("it cannot be answered within its deadline any more"))
        decision = self._consider(queue, now)
        if isinstance(decision, Release):
            release = self._sized(decision)
            return self._for_levels(release, backlog, now) if self._levels.is_mixed(now) else release
        full = None if self._levels.is_mixed(now) else backlog.full()
        has_time = full is not None and now - queue.oldest.arrived < self.predictor.work(full.max_batch_size)
        if full is not None and has_time and not self.predictor.should_run_dry:
            return self._sized(Release(full, Reason.FULL))
        overdue_at = self.predictor.overdue_at
        until = overdue_at if decision.until is None else min(decision.until, overdue_at)
        if self.full_size.is_smaller:  # then a new request may make it a full one without filling the queue
            return Wait(until)
        return Wait(until, min(decision.settled_until, safe_until, overdue_at))

    def predicted_start(self, ahead: int, now: float) -> float:
        """When a request that came now behind so many instances would begin to be worked on."""
        size = self._limits.max_batch_size
        predictor = self.predictor
        start = now if predictor.is_idle or predictor.free_at < now else predictor.free_at
        if ahead < size:
            return start
        return start + ahead // size * predictor.work(size) / predictor.workers

    def drain_seconds(self, ahead: int, now: float) -> int:
        """Predicted time until so many instances that wait now are answered, in whole seconds from 1 to 60."""
        return whole_seconds(self.predicted_start(ahead, now) - now)

    def learned(self, backlog: Backlog, now: float) -> dict[str, float]:
        """What was learned, by name, in base units: for people and autoscalers."""
        size = self.full_size.settled(self._limits.max_batch_size)
        seconds = self.usual_work(size)  # asked once: another thread may be learning
        capacity = self.predictor.workers * size / seconds if seconds else math.inf
        return {
            "service_fixed_seconds": max(0.0, self.usual_work.fixed),
            "service_instance_seconds": self.usual_work.per_row,
            "overhead_seconds": self.predictor.overhead,
            "workers": self.predictor.workers,
            "in_flight_limit": self.max_in_flight,
            "capacity": 0.0 if math.isinf(capacity) else capacity,
            "utilisation": self.arrivals.per_second(now) / capacity,
            "predicted_wait_seconds": self.predicted_start(backlog.rows, now) - now,
            "returning_share": max(0.0, self.returns.fraction),
            "spacing_share": self.spacing.share,
        }

    # --- internals ---------------------------------------------------------------------------------------------

    def _must_learn(self, now: float) -> bool:
        """Whether nobody may be turned away, because what the decision would rest on is unknown or stale."""
        return not self.predictor.is_known or (
            not self.predictor.oldest_size() and now - self._last_work > tuning.DROUGHT
        )

    def _earliest_answer(self, ahead: int, now: float) -> float:
        """When a request that came now behind so many instances is answered if all goes as well as it ever did.

        What is not known counts as free, and so do all places while nothing speaks against their being worked on at
        once.
        """
        predictor, size = self.predictor, self._limits.max_batch_size
        most = self._limits.max_in_flight if predictor.may_do_more else predictor.workers
        left = 0.0 if predictor.out < most else max(0.0, predictor.free_at - now)
        left *= predictor.round_trip.quickest
        before = ahead // size * predictor.least_work(size) / most
        return now + left + before + predictor.least_work(1) + predictor.overhead

    def _late_first(self, queue: Queue, now: float) -> Request | None:
        first = queue.first
        # One whose first rows travel has to be whole when its batch is carried out, perhaps in this very step.
        if first.rows_taken or self._must_learn(now):
            return None
        if self.predictor.may_do_more and self._earliest_answer(0, now) <= first.goal:
            return None
        size = self._padded(queue.next_rows)
        return first if self.predictor.finish(size, now) > first.goal else None

    def _consider(self, queue: Queue, now: float) -> Release | Wait:
        predictor = self.predictor
        if predictor.should_run_dry:
            return _ANSWER
        is_full = queue.is_full or queue.rows >= self.full_size.of(self._limits.max_batch_size)
        if is_full and (predictor.is_idle or not self._levels.is_mixed(now)):
            return Release(queue, Reason.FULL)
        if not predictor.is_known:
            return Release(queue, Reason.IDLE) if predictor.is_idle else _ANSWER
        out, places = predictor.out, predictor.places
        if out > places:
            return _ANSWER
        # One more shows whether the predictor has room for it, and costs nobody much if it is of the usual size.
        if out == places and queue.rows < predictor.usual_size:
            return Wait(None)
        beside = self._beside(queue, now) if out else None
        return beside or self._hold(queue, now) or Release(queue, self._reason())

    def _beside(self, queue: Queue, now: float) -> Release | Wait | None:
        """What speaks for or against a batch now, since others are out; None: nothing."""
        # What leaves beside others while levels are mixed is small, and more of it waits.
        wait = None
        if not self._levels.is_mixed(now):
            longest = queue.first.arrived + self._longest_wait
            wait = self._until(min(self.spacing.next_at, longest), queue, now)
        if wait is not None or self.predictor.is_idle:
            return wait
        if self._is_time_to_probe(queue.rows, now):
            return Release(queue, Reason.PROBE)
        if not self.predictor.knows_overhead:
            return _ANSWER
        lead = min(self._grain, max(self.predictor.overhead, tuning.SHORTEST_WAIT))
        free_at = self.predictor.free_at - lead
        if now < free_at:
            return Wait(free_at, free_at)
        # Where the core is the limit, the predictor's next answer is not far, and asks again.
        return self._until(max(self._pace.next_at, self.predictor.evenly_at), queue, now)

    def _until(self, when: float, queue: Queue, now: float) -> Wait | None:
        """A wait until then, no longer than any of the requests has time for; None if that is now."""
        if now >= when - tuning.SHORTEST_WAIT:
            return None
        when = min(when, self._latest(queue, queue.next_rows))
        return Wait(when, when - tuning.SHORTEST_WAIT) if now < when - tuning.SHORTEST_WAIT else None

    def _latest(self, queue: Queue, rows: int) -> float:
        """Until when a batch of so many instances may be held back, for all of the queue to have its answer in time."""
        late = max(self._tick, tuning.SHORTEST_WAIT)  # as timers are
        return queue.soonest_goal - self.predictor.round_trip.pessimistic(rows) - late

    def _padded(self, rows: int) -> int:
        """What a batch of so many instances costs as much as."""
        return packing.padded(rows, self._limits.allowed_sizes)

    def _sized(self, release: Release) -> Release:
        allowed = self._limits.allowed_sizes
        if not allowed:
            most = self.full_size.of(self._limits.max_batch_size)
            return release if release.queue.rows <= most else Release(release.queue, release.reason, int(most))
        return release._replace(rows=packing.best_size(release.queue.next_rows, allowed, self.predictor.work))

    def _for_levels(self, release: Release, backlog: Backlog, now: float) -> Release:
        """Leave lower levels out that would make a batch take long, while higher ones come too."""
        fixed, slope = self.predictor.fixed_work, self.predictor.work_of_one - self.predictor.fixed_work
        short = (fixed * (tuning.SHORT - 1) + slope * tuning.SHORT) / slope if slope > 0 else math.inf
        highest = self._levels.highest
        high = backlog.ahead_of(highest)
        low = next((request.rows_queued for request in release.queue if request.priority < highest), 0)
        rows = max(short, high + low)
        most = release.queue.max_batch_size if release.rows is None else release.rows
        return release if rows >= most else release._replace(rows=max(1, int(rows)))

    def _reason(self) -> Reason:
        if self._has_waited:
            return Reason.HOLD
        return Reason.IDLE if self.predictor.is_idle else Reason.JUST_IN_TIME

    def _hold(self, queue: Queue, now: float) -> Wait | None:
        """Wait for callers that should be back any moment, if that is worth more than it costs those who wait."""
        is_idle = self.predictor.is_idle
        if is_idle and self.returns.expected() <= 0.5:
            return None
        room = queue.max_batch_size - queue.rows
        longest = self._longest_hold()
        if is_idle:
            back = min(self.returns.expected(), room)
            left = self.returns.until_back(now, self._tick, longest)
        else:
            back = min(self.returns.fraction * self.predictor.oldest_size(), room)
            left = max(0.0, self.predictor.free_at + self.predictor.overhead - now)
            left += max(tuning.HOLD_STRETCH * self.returns.offset, self._tick)
        if back <= 0.5:
            return None
        waiting = queue.rows + back / 2
        if is_idle and self._loses_by_turns:
            # A wait pays until it has cost those who wait what a batch of their own would cost those who are missing.
            lost = self.predictor.fixed_work - self.predictor.overhead
            left = min(back * lost * tuning.HOLD_GAIN / waiting, longest) - self.returns.quiet(now)
        elif back * self.predictor.fixed_work * tuning.HOLD_GAIN <= waiting * left:
            return None
        if left <= tuning.SHORTEST_WAIT:
            return None
        size = min(queue.max_batch_size, queue.rows + int(back) + 1)
        until = min(now + left, self._latest(queue, size))
        if until <= now + tuning.SHORTEST_WAIT:
            return None
        self._has_waited = True
        return Wait(until)

    @property
    def _loses_by_turns(self) -> bool:
        """Whether callers in a closed loop get less from a predictor if they take turns in two batches.

        Not where the way there and back of the one takes longer than what the other saves.
        """
        predictor = self.predictor
        is_serial = predictor.workers == 1 and predictor.knows_overhead
        return is_serial and predictor.overhead < predictor.fixed_work and self.returns.are_sure

    @property
    def _longest_wait(self) -> float:
        longest = self._limits.max_latency
        return longest if longest < tuning.HOLD_MAX else tuning.HOLD_MAX

    def _longest_hold(self) -> float:
        longest, half = self._longest_wait, self.predictor.fixed_work / 2
        return half if half < longest else longest

    def _would_be_clear(self, size: int, now: float) -> bool:
        """Whether a batch that left now would show that the predictor works on it beside the others, or does not."""
        model = self.predictor.round_trip
        return model.is_trusted and self.predictor.free_at - now >= model(size) / 2

    def _is_time_to_probe(self, size: int, now: float) -> bool:
        """Now and then a batch goes early, to see whether the predictor works on it beside the others.

        Only where the answer would be clear. Each probe doubles the distance to the next.
        """
        if self._since_probe < self._probe_every or not self._would_be_clear(size, now):
            return False
        if self._limits.max_in_flight <= self.predictor.workers:
            return False
        self._since_probe = 0
        self._probe_every = min(tuning.PROBE_SELDOM, self._probe_every * 2)
        return True

    def _watch_for_slowness(self, batch: Batch, now: float) -> None:
        """Several round trips in a row far above their prediction: be careful until one is not."""
        if self.predictor.is_late(batch, now):
            self._slow_in_a_row += 1
        else:
            self._slow_in_a_row = 0
        self._is_wary = self._slow_in_a_row >= tuning.SLOW_TIMES
