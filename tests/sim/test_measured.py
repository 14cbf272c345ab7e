"""Before a predictor as it was measured on a GPU, the adaptive policy is as good as the best fixed window."""

from __future__ import annotations

import math

import pytest

from benchmarks.sim import measured
from benchmarks.sim.measured import Kind, Scene
from carpool.scheduling import adaptive

SECONDS, SEEDS = 0.6, 1
# Of one short run: p50 varies by a hundredth or two, and p99 by five. `python -m benchmarks.sim.measured` runs longer.
CHANCE = {"p50": 1.04, "p99": 1.12, "rate": 1.04}
# What is possible before the predictor's best size is known leaves queues that the first half second does not clear.
SCENES = [
    Scene("in stages", Kind.POISSON, 0.5),
    Scene("in stages", Kind.POISSON, 0.8),
    Scene("in stages", Kind.ROWS, 0.5),
    Scene("in stages", Kind.CLOSED, 32),
    Scene("in stages", Kind.CLOSED, 512),
    Scene("in equal stages", Kind.POISSON, 0.5),
    Scene("serial", Kind.POISSON, 0.5),
    Scene("on two workers", Kind.POISSON, 0.5),
    Scene("on two workers", Kind.CLOSED, 128),
]


def name_of(scene: Scene) -> str:
    return f"{scene.predictor}-{scene.kind}-{scene.load:g}"


@pytest.mark.parametrize("scene", SCENES, ids=name_of)
def test_no_window_is_better(scene):
    sweep = {name: measured.figures(scene, make, SECONDS, SEEDS) for name, make in measured.windows(scene).items()}
    found = measured.compare(scene, measured.adaptive_policy(), sweep, SECONDS, SEEDS)
    assert all(ratio <= CHANCE[figure] for figure, ratio in found.ratios.items()), measured.words(found)


@pytest.mark.parametrize("predictor", ["in stages", "serial", "on two workers"])
def test_a_window_that_learns_how_many_are_in_flight_is_no_worse_than_with_two(predictor):
    scene = Scene(predictor, Kind.POISSON, 0.5)
    learning = measured.figures(scene, measured.learning_window(0.0018), 2.0, SEEDS)
    two = measured.figures(scene, measured.windows(scene)["1.8 ms, 2"], 2.0, SEEDS)
    assert learning.p50 <= CHANCE["p50"] * two.p50
    assert learning.p99 <= CHANCE["p99"] * two.p99


class Mistaken(adaptive.Adaptive):
    """Takes a predictor in stages for three workers, as their times suggest."""

    def completed(self, batch, now):
        super().completed(batch, now)
        if self.predictor.workers != 3:
            self.predictor._set_workers(3)


class Unspaced(Mistaken):
    def sent(self, batch, now):
        super().sent(batch, now)
        self.spacing.next_at = -math.inf


@pytest.mark.parametrize("load", [0.2, 0.5])
def test_batches_that_slow_each_other_down_are_kept_apart_though_nobody_knows_why(load):
    scene = Scene("in one interpreter", Kind.POISSON, load)
    spaced, unspaced = (
        measured.figures(scene, measured.adaptive_policy(kind=kind), 0.8, 2) for kind in (Mistaken, Unspaced)
    )
    assert spaced.p50 <= 0.9 * unspaced.p50
    assert spaced.p99 <= 0.95 * unspaced.p99


@pytest.mark.parametrize("predictor", ["in equal stages", "on two workers"])
@pytest.mark.parametrize("load", [0.2, 0.5])
def test_what_is_worked_on_at_once_loses_next_to_nothing_by_trials(predictor, load):
    class NeverSpaced(adaptive.Adaptive):
        def sent(self, batch, now):
            super().sent(batch, now)
            self.spacing.next_at = -math.inf

    scene = Scene(predictor, Kind.POISSON, load)
    spaced, unspaced = (
        measured.figures(scene, measured.adaptive_policy(kind=kind), 1.5, 2)
        for kind in (adaptive.Adaptive, NeverSpaced)
    )
    assert spaced.p50 <= 1.02 * unspaced.p50
    assert spaced.p99 <= 1.05 * unspaced.p99


def learned(scene: Scene, seconds: float) -> list[dict[str, float]]:
    """What the policy had learned, each time that a twentieth of the run was over."""
    make, found, cores = measured.adaptive_policy(), [], []

    def watched(clock):
        cores.append(make(clock))
        policy = cores[0].policy
        assert isinstance(policy, adaptive.Adaptive)
        completed = policy.completed

        def note(batch, now):
            completed(batch, now)
            if now >= (len(found) + 1) * seconds / 20:
                found.append(policy.learned(cores[0].backlog, now))

        policy.completed = note
        return cores[0]

    scene.simulate(watched, seconds, 3)
    return found


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95])
def test_what_was_learned_is_so_and_stays_so(load):
    scene = Scene("in stages", Kind.POISSON, load)
    later = learned(scene, 1.5)[8:]
    assert {each["workers"] for each in later} == {1}
    for each in later:
        assert each["capacity"] == pytest.approx(scene.possible, rel=0.15)


def test_what_is_told_of_a_predictor_that_sees_only_small_batches_does_not_jump():
    """A line through the last few of them points anywhere at the size of a full one."""
    told = [each["capacity"] for each in learned(Scene("in stages", Kind.POISSON, 0.2), 1.5)[8:]]
    assert max(told) <= 1.6 * min(told)


def test_the_size_that_serves_most_is_found():
    scene = Scene("in stages", Kind.CLOSED, 512)
    best = measured.PREDICTORS[scene.predictor].capacity(96)
    found = measured.figures(scene, measured.adaptive_policy(), 2.0, 1)
    assert found.rate >= 0.97 * best
