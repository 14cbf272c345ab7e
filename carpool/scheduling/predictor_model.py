"""A picture of the predictor: how long it works, how much of a round trip overlaps with that, when it runs dry.

Times are those at which a batch must be *sent* to arrive just then: the way there and back (`overhead`) is taken off.
"""

from __future__ import annotations

import bisect
import math

from carpool.scheduling import tuning
from carpool.scheduling.limits import Limits
from carpool.scheduling.messages import Batch


class LatencyModel:
    """Seconds as an affine function of the batch size, by recursive least squares with forgetting.

    While only one size has been seen, all of its time counts as fixed: the optimistic guess, under which a larger
    batch is worth trying. `spread` is the relative standard deviation of what the model did not explain, and
    `mean_size` the weighted mean of the sizes seen, where the model knows most.
    """

    # State: exponentially weighted sums over (size, seconds), the two coefficients, the residual's variance, and how
    # many samples in a row were far off.
    def __init__(self) -> None:
        self.samples = 0
        self.is_known = False  # whether at least one batch was observed
        self.is_trusted = False  # whether enough were to decide by
        self.fixed = 0.0
        self.slope = 0.0
        self.mean_size = 0.0
        self.spread = 0.0
        self.is_varied = False  # whether several sizes were seen, so that the slope means something
        self.changes = 0  # how often the predictor turned out to be another
        self.quickest = 1.0  # the quickest of the last batches took this share of what was expected
        self._largest = 0
        self._variance = 0.0
        self._surprises = 0  # how many in a row were far off, negative when far below
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def __call__(self, size: float) -> float:
        """Expected seconds for a batch of `size` instances."""
        return self.fixed + self.slope * size

    def pessimistic(self, size: float) -> float:
        """Seconds that a batch of `size` will rarely exceed."""
        margin = tuning.Z * self.spread
        most = tuning.LARGEST_MARGIN
        return (self.fixed + self.slope * size) * (1 + (margin if margin < most else most))

    def least(self, size: float) -> float:
        """Seconds that a batch of `size` takes at least, by what was seen; 0 while too little was.

        Batches were that quick lately, and how much longer larger ones take than all of them is not known.
        """
        return self(min(size, self._largest)) * self.quickest if self.is_trusted else 0.0

    def observe(self, size: int, seconds: float) -> None:
        """A batch of `size` took `seconds`."""
        self._judge(size, seconds)
        if size > self._largest:
            self._largest = size
        keep = tuning.FORGETTING
        self._n = n = self._n * keep + 1
        self._x = x = self._x * keep + size
        self._y = y = self._y * keep + seconds
        self._xx = xx = self._xx * keep + size * size
        self._xy = xy = self._xy * keep + size * seconds
        self.samples += 1
        self.is_known, self.is_trusted = True, self.samples >= tuning.ENOUGH
        self.mean_size = mean_x = x / n
        mean_y = y / n
        variance = xx / n - mean_x * mean_x
        self.is_varied = variance > 1e-3 * mean_x * mean_x + 1e-6
        if self.is_varied:
            slope = (xy / n - mean_x * mean_y) / variance
            self.slope = min(max(slope, 0.0), mean_y / mean_x)
        fixed = mean_y - self.slope * mean_x
        self.fixed = fixed if fixed > 0.0 else 0.0

    def decay(self) -> None:
        """Keep little of what was learned: the predictor is not what it was."""
        self._surprises = 0
        keep = tuning.KEPT_AFTER_CHANGE
        self._n *= keep
        self._x *= keep
        self._y *= keep
        self._xx *= keep
        self._xy *= keep

    def _judge(self, size: int, seconds: float) -> None:
        """Learn how far off the model was, and notice when that is a change rather than noise."""
        expected = self.fixed + self.slope * size
        if not self.samples or expected <= 0:
            return
        residual = seconds / expected - 1
        share = residual + 1
        quickest = self.quickest + tuning.QUICKEST_WEIGHT * ((share if share < 1.0 else 1.0) - self.quickest)
        self.quickest = quickest if quickest < share else share
        if -1 < residual < 1:  # more than that is not noise but change
            self._variance += tuning.SPREAD_WEIGHT * (residual * residual - self._variance)
            self.spread = math.sqrt(self._variance)
        if 1 / (1 + tuning.SURPRISE) - 1 <= residual <= tuning.SURPRISE:
            self._surprises = 0
            return
        same_side = (residual > 0) == (self._surprises > 0)
        step = 1 if residual > 0 else -1
        self._surprises = self._surprises + step if same_side else step
        if abs(self._surprises) >= tuning.SURPRISES:
            self.changes += 1
            self.decay()


class InFlightBatch:
    """One batch at the predictor.

    `beside` is how many others were out when it left, `returns` when batches came back since then, in order and as many
    as can matter, and `end` when its worker should be free for another one. From `overdue_at` on it is not counted on.
    It teaches nothing where it is not `is_clear` what it had to wait for, and nothing of how many are worked on at once
    where it is not known how many were: `has_known_others` is False where some were overdue.
    """

    __slots__ = ("beside", "end", "has_known_others", "is_clear", "overdue_at", "returns", "sent", "size")

    def __init__(self, size: int, sent: float, beside: int, has_known_others: bool) -> None:
        self.size = size
        self.has_known_others = has_known_others
        self.sent = sent
        self.beside = beside
        self.returns: list[float] = []
        self.end = sent
        self.overdue_at = math.inf
        self.is_clear = True

    def begin(self, workers: int) -> float:
        """When it begins, with so many workers: as it leaves, or at the return that makes room.

        Infinity while that has not happened yet.
        """
        ahead = self.beside - workers
        if ahead < 0:
            return self.sent
        return self.returns[ahead] if ahead < len(self.returns) else math.inf


class PredictorModel:
    """Learns from completions. `workers` is how many batches are worked on at once.

    That is what `limits` say from the first batch on, unless it is to be found out, beginning with one. Either way it
    follows what batches show. `round_trip` models batches that had the predictor to themselves, `gap` the working time
    of those that queued.

    A batch that is out for far longer than it should be is *overdue*: it counts neither as one at the predictor nor as
    one that has a worker, until it comes back or fails.
    """

    # State: the two models, workers and the evidence for other numbers, what the limits said of it, and the batches in
    # flight, oldest first, those that are overdue apart. What is asked for often is kept from batch to batch: which
    # model tells of work, and what is too much in it, overhead, work_of_one, fixed_work, out, is_idle, free_at,
    # overdue_at.
    def __init__(self, limits: Limits) -> None:
        self.round_trip = LatencyModel()
        self.gap = LatencyModel()
        self._model_of_work, self._not_work = self.round_trip, 0.0
        self._gaps: dict[int, LatencyModel] = {}  # the same by workers, for the present number and those in _fewer
        self._limits = limits
        self._stated = 0
        self._more = 0.0  # evidence (nats) that a batch beside `workers` others is worked on at once
        self._fewer: dict[int, float] = {}  # that so many are, but one beside so many queues
        self._judged = 0  # comparisons since the number of workers was last changed
        self.may_do_more = True  # than is known, at once: none of them, rough ones included, spoke against it yet
        self._hint: float | None = None
        self._in_flight: dict[Batch, InFlightBatch] = {}
        self._overdue: dict[Batch, InFlightBatch] = {}
        self._overdue_since = -math.inf  # since the latest of them is
        self.completed_at = -math.inf
        self._since_lone = 0
        self._lone_every = tuning.LONE_EVERY
        self.overhead = 0.0  # seconds of a round trip that overlap with other work: network, HTTP, JSON
        self.places = 2  # batches worth having out: one for each worker, and those on their way there or back
        self.work_of_one = 0.0  # seconds a worker is busy with a batch of one
        self.fixed_work = 0.0  # the part of it that does not grow with the batch
        self.out = 0  # batches at the predictor, without those that are overdue
        self.is_idle = True  # whether a worker is free
        self.free_at = -math.inf  # when one will be free for one more batch; in the past if one is free now
        self.evenly_at = -math.inf  # when the next may leave for batches to be spread evenly over several workers
        self.overdue_at = math.inf  # when the next batch that is out will be overdue
        self._stay: tuple[int, float] | None = None  # a size, and how long a batch of it would stay, if known
        self.limits_changed()

    # --- questions ---------------------------------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """Whether any batch came back yet."""
        return self.round_trip.is_known

    @property
    def usual_size(self) -> float:
        """Instances of the batches that queued lately, infinity while too little is known of them."""
        return self.gap.mean_size if self.gap.is_trusted else math.inf

    @property
    def is_varied(self) -> bool:
        """Whether it is known how time grows with the batch."""
        return self.round_trip.is_varied or self.gap.is_varied

    @property
    def knows_overhead(self) -> bool:
        """Whether a second batch can be timed to arrive just as the first is done."""
        return self._hint is not None or (self.gap.is_trusted and self.round_trip.is_trusted)

    @property
    def should_run_dry(self) -> bool:
        """Whether the next batch should wait until no other is out."""
        patience = self._lone_every if self.round_trip.is_trusted else self.workers
        return bool(self._in_flight) and self._since_lone >= patience

    @property
    def is_exploring(self) -> bool:
        """Whether the number of workers is still an open question, so that full batches may go in greater numbers."""
        return self._judged < tuning.JUDGED_ENOUGH

    def watches(self, batch: Batch) -> bool:
        """Whether it was told that this batch left, and not yet that it is back."""
        return batch in self._in_flight or batch in self._overdue

    def follows(self, batch: Batch) -> bool:
        """Whether a batch that comes back now was out already when the last one came back."""
        entry = self._in_flight.get(batch)
        return entry is not None and entry.sent < self.completed_at

    @property
    def overdue(self) -> int:
        """Batches that are out for far longer than they should be."""
        return len(self._overdue)

    @property
    def most_out(self) -> float:
        """How many batches are worth having out, those that are overdue included; the limits may allow fewer.

        One for each worker, another one that is full or arrives just in time, and a few while the number of workers is
        an open question.
        """
        return self.places + (tuning.EXPLORE if self.is_exploring else 0) + len(self._overdue)

    def work(self, size: float) -> float:
        """Seconds a worker is busy with a batch of `size`."""
        model = self._model_of_work
        seconds = model.fixed + model.slope * size - self._not_work
        return seconds if seconds > 0.0 else 0.0

    def least_work(self, size: float) -> float:
        """Seconds a worker is busy with a batch of `size` at least, by what is known."""
        return max(0.0, self._model_of_work.least(size) - self._not_work)

    def finish(self, size: int, now: float) -> float:
        """When a batch of `size` sent now would be answered, on the safe side."""
        if self.is_idle or not self.gap.is_trusted:
            return max(now, self.free_at) + self.round_trip.pessimistic(size)
        margin = self.gap.pessimistic(size) - self.gap(size)
        return max(now, self.free_at) + self.work(size) + margin + self.overhead

    def latest_start(self, size: int, goal: float) -> float:
        """Until when batches of at most `size` may leave to be answered by `goal`, as `finish` tells; -inf if never.

        It may be a little early, so it tells only that nobody has to look closer. That is asked for each decision, so
        what the answer rests on is kept until a batch leaves or comes back.
        """
        if self._stay is None or self._stay[0] != size:
            start = max(0.0, self.free_at)
            self._stay = size, self.finish(size, start) - start
        latest = goal - self._stay[1] - tuning.SHORTEST_WAIT  # which is far above any rounding
        return latest if self.free_at <= latest else -math.inf

    def is_late(self, batch: Batch, now: float) -> bool:
        """Whether a batch that is being answered now took far longer than expected when it left."""
        entry = self._in_flight.get(batch)
        if entry is None or not self.round_trip.is_trusted:  # one that is overdue says little of the others
            return False
        begin = entry.begin(self.workers)
        return begin < now and now - begin > tuning.SLOW_FACTOR * self.round_trip.pessimistic(entry.size)

    def oldest_size(self) -> int:
        """Instances of the batch that has been out for longest, without those that are overdue; 0 if none is."""
        return next((entry.size for entry in self._in_flight.values()), 0)

    # --- events ------------------------------------------------------------------------------------------------

    def hint_overhead(self, seconds: float) -> None:
        """A measured round trip without work, for the time before there is anything to learn from.

        It changes what the policy decides: have the scheduler `reconsider` afterwards.
        """
        self._hint = seconds
        self._models_changed()

    def limits_changed(self) -> None:
        """Another number of batches may have been stated; then what was learned of it is void."""
        limits = self._limits
        stated = 1 if limits.learns_in_flight else int(min(limits.max_in_flight, tuning.MOST_STATED))
        if stated != self._stated:
            self._stated = stated
            self._set_workers(stated)
            self._in_flight_changed()

    def sent(self, batch: Batch, now: float) -> None:
        """A batch left."""
        if self.overdue_at <= now:
            self.passed(now)
        entry = InFlightBatch(batch.weight, now, len(self._in_flight), not self._overdue)
        if not entry.beside:
            if self._since_lone >= self._lone_every:
                self._lone_every = min(tuning.LONE_SELDOM, self._lone_every * 2)
            self._since_lone = -1
        self._since_lone += 1
        work = self.work(batch.weight)
        self._ends(entry, (now if self.is_idle or self.free_at < now else self.free_at) + work)
        self._in_flight[batch] = entry
        self.evenly_at = now + work / self.workers if self.workers > 1 else -math.inf
        self._in_flight_changed()

    def passed(self, now: float) -> None:
        """Time passed `overdue_at`: do not count on what is overdue any more. The other events see to it themselves."""
        while (when := self.overdue_at) <= now:
            self._overdue_since = when
            for batch, entry in list(self._in_flight.items()):
                if entry.overdue_at <= when:
                    self._overdue[batch] = entry
                    self._left(batch, when)
            for entry in self._in_flight.values():
                entry.has_known_others = False
                if entry.beside >= self.workers:
                    entry.is_clear = False

    def completed(self, batch: Batch, now: float) -> None:
        """A batch was answered: learn from how long it took, and set the others' times right."""
        if self.overdue_at <= now:
            self.passed(now)
        entry = self._in_flight.get(batch)
        if entry is None:
            self._overdue_completed(batch, now)
            return
        for other in self._overdue.values():
            other.is_clear = False
        if entry.is_clear:
            if entry.has_known_others:
                self._learn_workers(entry, now)
            for count, gap in self._gaps.items():
                if count != self.workers and entry.beside >= count:
                    begin = entry.begin(count)
                    if entry.sent + self._overhead_with(gap) < begin < now:
                        gap.observe(entry.size, now - begin)
            begin = entry.begin(self.workers)
            if begin - self.overhead > entry.sent:
                if begin < now:
                    self._observe(self.gap, self.round_trip, entry.size, now - begin)
            elif entry.beside == 0 or self.workers == 1:
                self._observe(self.round_trip, self.gap, entry.size, now - entry.sent)
                if entry.beside:
                    self._since_lone = 0
        self.completed_at = now
        self.gone(batch, now)

    def gone(self, batch: Batch, now: float) -> None:
        """A batch is not at the predictor any more, answered or not; the next one that queued there begins."""
        if self.overdue_at <= now:
            self.passed(now)
        if self._overdue.pop(batch, None) is None:
            self._left(batch, now)

    # --- internals ---------------------------------------------------------------------------------------------

    def _left(self, batch: Batch, now: float) -> None:
        """A batch that was counted on is not any more."""
        del self._in_flight[batch]
        ends: list[float] = []
        for entry in self._in_flight.values():
            if len(entry.returns) < entry.beside:
                entry.returns.append(now)
            if entry.beside >= self.workers:
                begin = entry.begin(self.workers)
                free = self._free_after(ends) if math.isinf(begin) else begin - self.overhead
                self._ends(entry, max(entry.sent, free) + self.work(entry.size))
            bisect.insort(ends, entry.end)
        self._in_flight_changed()

    def _overdue_completed(self, batch: Batch, now: float) -> None:
        """A batch came back that was not counted on any more.

        If the predictor answered no other in time meanwhile, it was not this batch that was slow: it teaches what it
        took, and the others that are overdue are counted on again. What the others had to wait for, nobody knows.
        """
        entry = self._overdue.pop(batch)
        if entry.is_clear:
            self._observe(self.round_trip, self.gap, entry.size, now - max(entry.sent, self.completed_at))
            self._in_flight = {**self._overdue, **self._in_flight}
            self._overdue.clear()
            ends: list[float] = []
            for place, other in enumerate(self._in_flight.values()):
                other.beside, other.returns = place, []
                self._ends(other, max(now, self._free_after(ends)) + self.work(other.size))
                bisect.insort(ends, other.end)
        for other in self._in_flight.values():
            other.is_clear = False
        self.completed_at = now
        self._in_flight_changed()

    def _ends(self, entry: InFlightBatch, end: float) -> None:
        entry.end = end
        model, patience, size = self.round_trip, tuning.FIRST_PATIENCE, entry.size
        if model.is_known:
            # While all were of one size, how much longer a far larger one takes is not known.
            is_unknown = not model.is_varied and size > 2 * model.mean_size
            least = tuning.FIRST_PATIENCE if is_unknown else tuning.SHORTEST_PATIENCE
            patience = tuning.PATIENCE * model.pessimistic(size)
            patience = patience if patience > least else least
        if entry.beside:  # perhaps they are worked on one after the other, whatever is believed
            in_turn = entry.sent + entry.beside * (model.fixed + model.slope * size)
            end = in_turn if in_turn > end else end
        entry.overdue_at = end + patience

    def _observe(self, model: LatencyModel, other: LatencyModel, size: int, seconds: float) -> None:
        changes = model.changes
        model.observe(size, seconds)
        if model.changes != changes:
            other.decay()
            self._lone_every = tuning.LONE_EVERY
        self._models_changed()

    def _models_changed(self) -> None:
        gap, alone = self.gap, self.round_trip
        self.overhead = overhead = self._overhead_with(gap)
        work = gap.fixed + gap.slope * gap.mean_size if gap.is_trusted else 0.0
        ahead = math.ceil(min(tuning.MOST_WORKERS, overhead / work - tuning.LEFT_OVER)) if work and overhead else 1
        self.places = self.workers + (ahead if ahead > 1 else 1)
        if gap.is_trusted and (gap.is_varied or not alone.is_varied):
            self._model_of_work, self._not_work = gap, 0.0
        else:  # queued batches are often all of one size; then the others tell how time grows with it
            self._model_of_work, self._not_work = alone, overhead
        model, not_work = self._model_of_work, self._not_work
        one, fixed = model.fixed + model.slope - not_work, model.fixed - not_work
        self.work_of_one = one if one > 0.0 else 0.0
        self.fixed_work = fixed if fixed > 0.0 else 0.0
        self._stay = None

    def _in_flight_changed(self) -> None:
        entries, workers = self._in_flight, self.workers
        self.out = out = len(entries)
        self.is_idle = out < workers
        self._stay = None
        self.free_at = -math.inf
        if not out:
            self.overdue_at = math.inf
            return
        if out == 1:
            (only,) = entries.values()
            self.free_at = -math.inf if self.is_idle else only.end
            self.overdue_at = only.overdue_at
        else:
            if not self.is_idle:
                self.free_at = self._free_after(sorted([entry.end for entry in entries.values()]))
            self.overdue_at = min([entry.overdue_at for entry in entries.values()])
        if self._overdue and self._limits.learns_in_flight and not self.is_known:  # and may be slow, and not parallel
            self.overdue_at = max(self.overdue_at, self._overdue_since + tuning.NEXT_PATIENCE)

    def _overhead_with(self, gap: LatencyModel | None) -> float:
        alone = self.round_trip
        if gap is not None and gap.is_trusted and alone.is_trusted:
            usual = gap.mean_size
            return max(0.0, alone.fixed + alone.slope * usual - (gap.fixed + gap.slope * usual))
        return self._hint or 0.0

    def _free_after(self, ends: list[float]) -> float:
        """When a worker is free, by when batches end, ascending."""
        return ends[-self.workers] if len(ends) >= self.workers else -math.inf

    def _learn_workers(self, entry: InFlightBatch, now: float) -> None:
        """Compare how long a batch took with what one worker more, and fewer, would have made of it.

        A number that was only stated is doubted as soon as anything is known.
        """
        if not self.round_trip.is_known:
            return None
        if entry.beside >= self.workers:
            # What looks like one worker in stages may as well be several that take turns.
            more = max(2, min(tuning.MOST_WORKERS, self.places - 1)) if self.workers == 1 else self.workers + 1
            gain = self._weigh(entry, now, more)
            self.may_do_more = self.may_do_more and gain >= 0
            if self.round_trip.is_trusted:
                self._judged += gain != 0.0
                self._more = max(-tuning.EVIDENCE_FOR_MORE, self._more + gain)
                if self._more >= tuning.EVIDENCE_FOR_MORE and self.workers < tuning.MOST_WORKERS:
                    return self._set_workers(more)
        best = 0
        for count, evidence in self._fewer.items():
            if entry.beside >= count:
                evidence = max(-tuning.EVIDENCE_FOR_FEWER, evidence + self._weigh(entry, now, count))
                self._fewer[count] = evidence
                if evidence >= tuning.EVIDENCE_FOR_FEWER and (not best or evidence > self._fewer[best]):
                    best = count
        return self._set_workers(best) if best else None

    def _weigh(self, entry: InFlightBatch, now: float, workers: int) -> float:
        """How much better so many workers explain the time a batch took (log-likelihood ratio, lognormal noise)."""
        alone = self.round_trip(entry.size)
        rival, current = self._waits(entry, workers) + alone, self._waits(entry, self.workers) + alone
        most = tuning.EVIDENCE_OF_ONE
        if math.isinf(rival) or math.isinf(current):  # it came back before it could have begun
            return (math.isinf(current) - math.isinf(rival)) * most
        least = tuning.LEAST_SPREAD if self.round_trip.is_trusted else tuning.FIRST_SPREAD
        spread = max(least, self.round_trip.spread)
        clear = max(tuning.LEAST_DIFFERENCE, tuning.CLEAR_SPREADS * spread)
        if abs(rival - current) < clear * alone:
            return 0.0  # too close to call, and a bias in the model would decide
        took = now - entry.sent
        if not (took and rival and current):  # a predictor that takes no time by this clock
            return 0.0
        gain = (math.log(took / current) ** 2 - math.log(took / rival) ** 2) / (2 * spread * spread)
        return max(-most, min(most, gain))

    def _waits(self, entry: InFlightBatch, workers: int) -> float:
        """Seconds that a batch waited for one of so many workers."""
        overhead = self._hint or 0.0
        if workers == 1:
            overhead = self.overhead if self.workers == 1 else self._overhead_with(self._gaps.get(1))
        return max(0.0, entry.begin(workers) - entry.sent - overhead)

    def _set_workers(self, count: int) -> None:
        self.workers = count
        self._lone_every = tuning.LONE_EVERY
        self._more, self._judged, self.may_do_more = 0.0, 0, True
        self._fewer = {count - 1: 0.0} if count > 1 else {}
        while count > 1:
            count //= 2
            self._fewer[count] = 0.0
        # What queued batches took was read with each of these numbers in mind.
        self._gaps = {each: self._gaps.get(each) or LatencyModel() for each in (self.workers, *self._fewer)}
        self.gap = self._gaps[self.workers]
        self._models_changed()


class UsualWork:
    """What people are told of a predictor: means of what its models said lately of one instance and of a full batch."""

    # State: the means, of how many batches, and what else was known of the predictor then.
    def __init__(self) -> None:
        self.fixed = 0.0
        self.per_row = 0.0
        self._one = self._full = 0.0
        self._count = 0
        self._of: tuple[int, ...] = ()

    def observe(self, predictor: PredictorModel, size: int) -> None:
        """A batch came back; a full one has so many instances."""
        self._count += 1
        if self._count > tuning.USUAL_EVERY and self._count % tuning.USUAL_EVERY:
            return
        of = size, predictor.workers, predictor.round_trip.changes, predictor.gap.changes
        if of != self._of:
            self._of, self._count = of, 1
        asked = 1 if self._count <= tuning.USUAL_EVERY else tuning.USUAL_EVERY
        weight = max(tuning.USUAL_WEIGHT, asked / self._count)
        self._one += weight * (predictor.work_of_one - self._one)
        self._full += weight * (predictor.work(size) - self._full)
        self.per_row = max(0.0, self._full - self._one) / (size - 1) if size > 1 else 0.0
        self.fixed = self._one - self.per_row

    def __call__(self, size: float) -> float:
        """Seconds a worker is busy with a batch of `size`."""
        return self.fixed + self.per_row * size
