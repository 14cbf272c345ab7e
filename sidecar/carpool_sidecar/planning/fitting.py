"""The predictor that a recording shows: one behind which a replay sees what the sidecar saw.

How long a batch takes is a line through recorded batches that had the predictor to themselves; if those are few or too
much alike, what the sidecar learned; if that learned nothing, what the adaptive policy's model makes of all batches. No
line tells how much of that time the next batch may already have begun, nor how much of it the sidecar's own core took.
So predictors are tried: what was recorded last is replayed before each, until batches take as long as they did, have as
many instances, and requests wait as long. Times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from carpool import measures
from carpool.scheduling import limits, messages, own_time, predictor_model, tuning
from carpool_sidecar.planning import engine, recorded, replay, service_times
from carpool_sidecar.recording import document

_USUAL_NOISE, _MOST_NOISE = 0.05, 0.5
# So many lone batches make a line, if the standard error of its slope matters less than so much.
_ENOUGH, _SURE = 50, 0.05

_SHARES = (1.0, 0.75, 0.6, 0.5, 0.4)
"""Shares of a batch's time that its longest stage takes, in predictors of several."""

# Requests, at most, in a trial: few while shares are compared, more for the one that is chosen.
_FEW, _MANY = 5_000, 20_000
_TRIALS = 5  # of one predictor
_NEAR = 0.05  # a predictor that comes so near to what was recorded is good enough
_CAUTION = 0.6  # the part of a difference that is corrected at once: a queue answers it with a larger one

_Sent = Sequence[tuple[float, int, float]]  # batches: when they left, their rows, seconds until they were back


class Model(NamedTuple):
    """The predictor of a replay, and the batches that it was learned from.

    `largest` is the size that few batches exceeded (1 in 100), `is_varied` whether sizes differed enough to tell what
    an instance takes. `own` is what the sidecar takes itself; no time if that is not known.
    """

    predictor: service_times.Predictor
    batches: int
    largest: int
    is_varied: bool
    own: own_time.OwnTime = own_time.NO_TIME


def model(
    recording: document.Recording,
    blocks: Sequence[document.Block],
    workers: int | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Model:
    """The predictor as these blocks show it; one that works on so many batches at once, if it is said how many.

    `tell` hears of each replay before it starts. Raises `replay.Nothing` if no batch came back in them.
    """
    sent = sorted(
        (block.began + at / 1e6, rows, took / 1e6)
        for block in blocks
        for at, rows, took in zip(block.batches.sent, block.batches.rows, block.batches.took, strict=True)
    )
    if not sent:
        raise replay.Nothing("no batch came back from the predictor in this time: how long it takes is not known")
    if not any(took > 0 for *_, took in sent):
        raise replay.Nothing("all batches came back within a microsecond: how long the predictor takes is not known")
    watched, lone = _watch(sent)
    sizes = sorted(rows for _, rows, _ in sent)
    told = {name: value for name, value in recording.head.learned.items() if 0 <= value < math.inf}
    overhead = told.get("overhead_seconds", watched.overhead)
    at_once = workers or min(tuning.MOST_WORKERS, int(told.get("workers", 0))) or watched.workers
    noise = min(_MOST_NOISE, watched.round_trip.spread) if watched.round_trip.is_trusted else _USUAL_NOISE
    line = _line(lone)
    if line is not None:
        fixed, per_row, noise = max(0.0, line[0] - overhead), line[1], min(_MOST_NOISE, line[2])
    elif told.get("service_fixed_seconds", 0.0) + told.get("service_instance_seconds", 0.0) > 0:
        fixed, per_row = told["service_fixed_seconds"], told["service_instance_seconds"]
    else:
        fixed, per_row = watched.fixed_work, watched.work(1) - watched.fixed_work
    guess = service_times.Predictor(service_times.Affine(fixed, max(0.0, per_row)), overhead, at_once, noise)
    own = own_time_of(recording)
    few, many = (
        _Trial(recording.head.settings, recorded.latest(blocks, most), sent, own, tell) for most in (_FEW, _MANY)
    )
    if workers is None and at_once == 1:
        guess = _nearest(guess, few)
    is_varied = line is not None or _is_varied(sizes)
    return Model(many.scaled(guess)[1], len(sent), int(engine.quantile(sizes, 0.99)), is_varied, own)


def own_time_of(recording: document.Recording) -> own_time.OwnTime:
    """What the sidecar took itself, as it had measured it; no time if it had not."""
    told = recording.head.learned
    batch, request = (max(0.0, told.get(f"own_{name}_seconds", 0.0)) for name in ("batch", "request"))
    return own_time.OwnTime(batch, request)


class _Trial:
    """The last part of a recording, to be replayed before predictors that are tried."""

    def __init__(
        self,
        setting: document.Setting,
        latest: Sequence[document.Block],
        sent: _Sent,
        own: own_time.OwnTime,
        tell: Callable[[str], None],
    ) -> None:
        self._setting, self._own, self._tell = setting, own, tell
        self._arrivals = recorded.arrivals(latest)
        lately = [(rows, took) for left, rows, took in sent if left >= latest[0].began]
        self._rows = replay.mean([rows for rows, _ in lately])
        self._took = replay.mean([took for _, took in lately])
        self._whole = document.distribution([block.measured.request for block in latest], measures.SECONDS).mean

    def scaled(self, predictor: service_times.Predictor) -> tuple[float, service_times.Predictor]:
        """The predictor with its times scaled until a replay sees what was recorded, and how far off that still is."""
        best = math.inf, predictor
        for _ in range(_TRIALS):
            self._tell(f"a predictor that takes {predictor.words} ms for a batch of n")
            result = replay.simulated(self._setting, predictor, self._arrivals, 1.0, self._own)
            trips = result.round_trips
            if 2 * sum([each.refused is None for each in result.outcomes]) < len(result.outcomes):
                break  # so few tell nothing
            took = _off(replay.mean([trip.took for trip in trips]), self._took)
            rows = _off(replay.mean([trip.rows for trip in trips]), self._rows)
            whole = _off(replay.mean([each.finished - each.read for each in result.outcomes]), self._whole)
            best = min(best, (max(abs(took), abs(rows), abs(whole)), predictor), key=lambda each: each[0])
            if best[0] < _NEAR:
                break
            predictor = _times(predictor, math.exp(-_CAUTION * (took + whole) / 2))
        return best


def _nearest(guess: service_times.Predictor, trial: _Trial) -> service_times.Predictor:
    """The guess, or else one in stages, scaled: what comes nearest to what was recorded.

    What looks like one worker may be stages that have a batch each. Where several were seen, they were told apart.
    """
    best = trial.scaled(guess)
    whole = service_times.Affine(guess.service.seconds(0, 0.0) + guess.overhead, _per_row(guess.service))
    for share in _SHARES:
        if best[0] < _NEAR:
            break
        best = min(best, trial.scaled(_in_stages(whole, share, guess.variation)), key=lambda each: each[0])
    return best[1]


def _in_stages(whole: service_times.Affine, share: float, variation: float) -> service_times.Predictor:
    """Stages that take such a share of the whole each, and one that takes the rest."""
    count = math.ceil(1 / share)
    parts = [share] * (count - 1) + [1 - share * (count - 1)]
    first, *later = [service_times.Affine(whole.fixed * part, whole.per_row * part) for part in parts]
    return service_times.Predictor(first, 0.0, 1, variation, tuple(later))


def _times(predictor: service_times.Predictor, factor: float) -> service_times.Predictor:
    """One that takes so many times as long, with all that it consists of."""
    stages = [
        service_times.Affine(stage.seconds(0, 0.0) * factor, _per_row(stage) * factor)
        for stage in (predictor.service, *predictor.later)
    ]
    return predictor._replace(service=stages[0], overhead=predictor.overhead * factor, later=tuple(stages[1:]))


def _per_row(service: service_times.Service) -> float:
    return service.seconds(1, 0.0) - service.seconds(0, 0.0)


def _off(seen: float, wanted: float) -> float:
    """How far off, as the logarithm of the ratio; 0 where one of them is not known."""
    return math.log(seen / wanted) if seen > 0 and wanted > 0 else 0.0


def _watch(
    sent: _Sent,
) -> tuple[predictor_model.PredictorModel, list[tuple[int, float]]]:
    """The adaptive policy's model of the predictor, after these batches: when each left, its rows, and what it took.

    And rows and seconds of those batches that had the predictor to themselves when they left.
    """
    watched = predictor_model.PredictorModel(limits.Limits(learns_in_flight=True))
    ends = sorted((left + took, number) for number, (left, _, took) in enumerate(sent))
    out: dict[int, messages.Batch] = {}
    lone: list[tuple[int, float]] = []
    following = 0
    for end, number in ends:
        while following < len(sent) and sent[following][0] <= end:
            left, rows, took = sent[following]
            if not out:
                lone.append((rows, took))
            part = messages.Part(messages.Request("key", rows), 0, rows)
            out[following] = messages.Batch(str(following), "key", [part], messages.Reason.FULL)
            watched.sent(out[following], left)
            following += 1
        watched.completed(out.pop(number), end)
    return watched, lone


def _is_varied(sizes: Sequence[int]) -> bool:
    """Whether one batch in twenty at least is smaller than most by a quarter, or larger."""
    usual = sizes[len(sizes) // 2]
    return sum(abs(size - usual) > usual / 4 for size in sizes) > len(sizes) / 20


def _line(lone: Sequence[tuple[int, float]]) -> tuple[float, float, float] | None:
    """Seconds of a call, of an instance, and the noise (relative), by least squares over all of these batches.

    What the policy has learned tells of the last few only, which may all be of one size. None if these cannot tell
    either, because there are few or their sizes are too much alike.
    """
    count = len(lone)
    if count < _ENOUGH:
        return None
    mean_rows, mean_took = sum(rows for rows, _ in lone) / count, sum(took for _, took in lone) / count
    varied = sum((rows - mean_rows) ** 2 for rows, _ in lone)
    if not varied or not mean_took:
        return None
    per_row = sum((rows - mean_rows) * (took - mean_took) for rows, took in lone) / varied
    per_row = min(max(per_row, 0.0), mean_took / mean_rows)
    fixed = mean_took - per_row * mean_rows
    rest = sum((took - fixed - per_row * rows) ** 2 for rows, took in lone) / (count - 2)
    if math.sqrt(rest / varied) * mean_rows > _SURE * mean_took:
        return None
    return fixed, per_row, math.sqrt(rest) / mean_took
