"""What is remembered of the predictor's models: for how long, for how many, and what failures change."""

from __future__ import annotations

import asyncio
import logging

import pytest

from carpool_sidecar import caches, errors
from carpool_sidecar.batching import model_registry
from carpool_sidecar.protocols import models
from tests.upstream.known_models import BATCHED, NAME, STATEFUL, Make, Teller, turn


@pytest.mark.looptime
class TestFreshness:
    async def test_a_model_in_use_is_asked_again_after_a_minute_in_the_background(
        self, registry: model_registry.ModelRegistry, teller: Teller, looptime: float
    ) -> None:
        model = await registry.ask(NAME)
        await asyncio.sleep(59.9)
        assert registry.get(NAME) is model
        assert len(teller.asked) == 1
        teller.told[NAME], teller.delay = STATEFUL, 3.0
        await asyncio.sleep(0.2)
        before = looptime
        assert await registry.ask(NAME) is model
        assert looptime == before
        assert model.objection is None
        await asyncio.sleep(3.1)
        assert model.objection == "sequence"
        assert model.codec.info is STATEFUL
        assert len(teller.asked) == 2

    async def test_nobody_is_asked_about_a_model_that_is_not_used(
        self, registry: model_registry.ModelRegistry, teller: Teller
    ) -> None:
        await registry.ask(NAME)
        await asyncio.sleep(3600)
        assert len(teller.asked) == 1

    @pytest.mark.parametrize("failure", [errors.UpstreamTimeout(), errors.UpstreamStatus(404, b""), ValueError()])
    async def test_a_question_that_fails_keeps_what_was_known(
        self, registry: model_registry.ModelRegistry, teller: Teller, failure: Exception
    ) -> None:
        model = await registry.ask(NAME)
        teller.told[NAME] = failure
        await asyncio.sleep(61)
        registry.get(NAME)
        await turn()
        assert len(teller.asked) == 2
        assert (model.info, model.is_known, model.objection) == (BATCHED, True, None)
        assert model.failure is not None
        assert registry.get(NAME) is model

    async def test_after_a_failure_the_next_question_comes_after_a_second_not_a_minute(
        self, registry: model_registry.ModelRegistry, teller: Teller
    ) -> None:
        await registry.ask(NAME)
        teller.told[NAME] = errors.UpstreamTimeout()
        await asyncio.sleep(61)
        registry.get(NAME)
        await asyncio.sleep(1.1)
        teller.told[NAME] = STATEFUL
        model = registry.get(NAME)
        await turn()
        assert model is not None
        assert (model.objection, model.failure) == ("sequence", None)


@pytest.mark.looptime
class TestAModelThatIsNotTold:
    @pytest.mark.parametrize(
        "failure", [errors.UpstreamUnreachable(), errors.UpstreamBroken(), errors.BadRequest(), OSError("no")]
    )
    async def test_is_treated_with_caution(
        self,
        registry: model_registry.ModelRegistry,
        teller: Teller,
        failure: Exception,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        teller.told[NAME] = failure
        model = await registry.ask(NAME)
        assert (model.is_known, model.objection, model.info) == (False, "unknown_model", models.ModelInfo())
        assert model.failure is failure or isinstance(failure, OSError)
        assert model.failure is not None
        assert model.failure.__traceback__ is None
        bugs = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert bool(bugs) is isinstance(failure, OSError)

    @pytest.mark.parametrize("failure", [errors.UpstreamUnreachable(), ZeroDivisionError("bug")])
    async def test_tells_only_of_failures_that_are_bugs(
        self, make_registry: Make, teller: Teller, failure: Exception
    ) -> None:
        bugs: list[None] = []
        teller.told[NAME] = failure
        await make_registry(on_bug=lambda: bugs.append(None)).ask(NAME)
        assert len(bugs) == isinstance(failure, ZeroDivisionError)

    async def test_is_asked_again_after_pauses_that_double_up_to_half_a_minute(
        self, registry: model_registry.ModelRegistry, teller: Teller, looptime: float
    ) -> None:
        teller.told.clear()
        await registry.ask(NAME)
        times, asked = [], len(teller.asked)
        while looptime < 200:
            await asyncio.sleep(0.1)
            assert registry.get(NAME) is not None
            await turn()
            if len(teller.asked) > asked:
                asked = len(teller.asked)
                times.append(float(looptime))
        pauses = [later - sooner for sooner, later in zip([0.0, *times], times, strict=False)]
        assert pauses[:7] == pytest.approx([1, 2, 4, 8, 16, 30, 30], abs=0.3)

    async def test_can_be_asked_about_more_often(self, make_registry: Make, teller: Teller, looptime: float) -> None:
        registry = make_registry(longest_pause=1.0)
        teller.told.clear()
        for _ in range(600):
            await registry.ask(NAME)
            await asyncio.sleep(0.1)
        assert 50 <= len(teller.asked) <= 60

    async def test_makes_nobody_wait_again(
        self, registry: model_registry.ModelRegistry, teller: Teller, looptime: float
    ) -> None:
        teller.told.clear()
        await registry.ask(NAME)
        teller.delay = 5.0
        await asyncio.sleep(2)
        before = looptime
        assert (await registry.ask(NAME)).objection == "unknown_model"
        assert looptime == before

    async def test_becomes_known_in_place_once_the_predictor_tells(
        self, registry: model_registry.ModelRegistry, teller: Teller
    ) -> None:
        teller.told.clear()
        model = await registry.ask(NAME)
        teller.told[NAME] = BATCHED
        await asyncio.sleep(1.1)
        await registry.ask(NAME)
        await turn()
        assert registry.get(NAME) is model
        assert (model.is_known, model.objection, model.failure) == (True, None, None)

    async def test_of_no_batch_dimension_may_be_batched_or_not(self, make_registry: Make, teller: Teller) -> None:
        teller.told[NAME] = models.ModelInfo()
        assert (await make_registry(batches_unknown=True).ask(NAME)).objection is None
        assert (await make_registry(batches_unknown=False).ask(NAME)).objection == "unknown_model"


@pytest.mark.looptime
async def test_a_model_whose_batch_was_rejected_is_asked_about_again_once_a_second_at_most(
    registry: model_registry.ModelRegistry, teller: Teller
) -> None:
    model = await registry.ask(NAME)
    for _ in range(5):
        model.reconsider()
        registry.objection(model)
        await turn()
    assert len(teller.asked) == 1
    await asyncio.sleep(1.1)
    teller.told[NAME] = models.ModelInfo(max_batch_size=2)
    registry.objection(model)
    await turn()
    assert len(teller.asked) == 2
    assert model.codec.info.max_batch_size == 2


@pytest.mark.looptime
async def test_a_model_in_use_is_not_looked_at_again_for_a_moment(
    registry: model_registry.ModelRegistry, teller: Teller
) -> None:
    model = await registry.ask(NAME)
    assert registry.objection(model) is None
    model.avoid()
    assert registry.objection(model) == "outputs"


@pytest.mark.looptime
class TestAvoiding:
    async def test_lasts_a_minute(self, registry: model_registry.ModelRegistry) -> None:
        model = await registry.ask(NAME)
        model.avoid()
        assert model.objection == "outputs"
        await asyncio.sleep(59.9)
        assert model.objection == "outputs"
        await asyncio.sleep(0.2)
        assert model.objection is None

    async def test_has_the_model_asked_about_again(
        self, registry: model_registry.ModelRegistry, teller: Teller
    ) -> None:
        model = await registry.ask(NAME)
        teller.told[NAME] = STATEFUL
        model.avoid()
        registry.get(NAME)
        await turn()
        assert len(teller.asked) == 2
        await asyncio.sleep(60.1)
        assert model.objection == "sequence"


class TestBounds:
    async def test_the_least_recently_used_models_are_forgotten(
        self, registry: model_registry.ModelRegistry, teller: Teller
    ) -> None:
        names = [models.ModelName(f"m{number}") for number in range(model_registry.MOST_NAMES + 1)]
        teller.told.update(dict.fromkeys(names, BATCHED))
        for name in names[:-1]:
            await registry.ask(name)
        registry.get(names[0])
        await registry.ask(names[-1])
        assert registry.get(names[0]) is not None
        assert registry.get(names[1]) is None
        assert sum(registry.get(name) is not None for name in names) == model_registry.MOST_NAMES

    async def test_names_that_nobody_knows_push_out_no_models(self, registry: model_registry.ModelRegistry) -> None:
        model = await registry.ask(NAME)
        names = [models.ModelName(f"x{number}") for number in range(5000)]
        for name in names:
            await registry.ask(name)
        assert registry.get(NAME) is model
        assert 0 < sum(registry.get(name) is not None for name in names) <= 512 * 1024 // caches.ENTRY
        long = models.ModelName("x" * 2000)
        await registry.ask(long)
        assert registry.get(long) is None

    async def test_no_more_models_than_that_are_asked_about_at_once(
        self, registry: model_registry.ModelRegistry, teller: Teller
    ) -> None:
        teller.delay = 1000.0
        told: list[model_registry.Model] = []
        for number in range(model_registry.MOST_NAMES + 1):
            registry.when_known(models.ModelName(f"x{number}"), told.append)
        await turn()
        assert len(teller.asked) <= model_registry.MOST_NAMES
        assert {type(model.failure) for model in told} == {errors.TooManyModels}


@pytest.mark.looptime
async def test_closing_tells_all_who_wait_that_nothing_is_known(
    registry: model_registry.ModelRegistry, teller: Teller, looptime: float
) -> None:
    teller.delay = 100.0
    told: list[model_registry.Model] = []
    registry.when_known(NAME, told.append)
    waiting = asyncio.create_task(registry.ask(NAME))
    await asyncio.sleep(1)
    await registry.close()
    assert (await waiting).objection == "unknown_model"
    assert [model.objection for model in told] == ["unknown_model"]
    assert looptime < 2
