"""Asking about the predictor's models: once for all who want to know, and without disturbing anybody."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from carpool_sidecar import errors
from carpool_sidecar.batching import model_registry
from carpool_sidecar.protocols import models
from tests.upstream.known_models import BATCHED, NAME, STATEFUL, Teller, turn


async def test_nothing_is_known_before_somebody_asks(registry: model_registry.ModelRegistry, teller: Teller) -> None:
    assert registry.get(NAME) is None
    assert teller.asked == []


async def test_a_model_is_asked_about_once_and_then_known(
    registry: model_registry.ModelRegistry, teller: Teller
) -> None:
    model = await registry.ask(NAME)
    assert (model.name, model.info, model.is_known, model.failure, model.objection) == (NAME, BATCHED, True, None, None)
    assert model.codec.info is model.info
    assert registry.get(NAME) is model
    assert await registry.ask(NAME) is model
    assert teller.asked == [NAME]


async def test_versions_of_a_model_are_models_of_their_own(
    registry: model_registry.ModelRegistry, teller: Teller
) -> None:
    other = models.ModelName("m", "2")
    teller.told[other] = STATEFUL
    assert (await registry.ask(NAME)).objection is None
    assert (await registry.ask(other)).objection == "sequence"


@pytest.mark.looptime
async def test_all_who_ask_at_once_share_one_question(
    registry: model_registry.ModelRegistry, teller: Teller, looptime: float
) -> None:
    teller.delay = 1.0
    told: list[model_registry.Model] = []
    registry.when_known(NAME, told.append)
    models_asked = await asyncio.gather(*(registry.ask(NAME) for _ in range(20)))
    await turn()
    assert {id(model) for model in models_asked + told} == {id(registry.get(NAME))}
    assert teller.asked == [NAME]
    assert 1 <= looptime < 1.1


@pytest.mark.looptime
async def test_a_caller_that_leaves_does_not_disturb_the_others(
    registry: model_registry.ModelRegistry, teller: Teller
) -> None:
    teller.delay = 1.0
    leaver, stayer = asyncio.create_task(registry.ask(NAME)), asyncio.create_task(registry.ask(NAME))
    await asyncio.sleep(0.5)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert (await stayer).is_known


class TestCallbacks:
    async def test_are_called_from_the_loop_even_if_the_answer_is_there(
        self, registry: model_registry.ModelRegistry
    ) -> None:
        model = await registry.ask(NAME)
        told: list[model_registry.Model] = []
        registry.when_known(NAME, told.append)
        assert told == []
        await turn()
        assert told == [model]

    async def test_are_called_with_caution_when_nothing_was_answered(
        self, registry: model_registry.ModelRegistry, teller: Teller
    ) -> None:
        teller.told[NAME] = errors.UpstreamUnreachable()
        told: list[model_registry.Model] = []
        registry.when_known(NAME, told.append)
        await turn()
        assert [model.objection for model in told] == ["unknown_model"]

    @pytest.mark.parametrize("known", [True, False])
    async def test_are_not_called_once_taken_back(self, registry: model_registry.ModelRegistry, known: bool) -> None:
        if known:
            await registry.ask(NAME)
        told: list[model_registry.Model] = []
        registry.when_known(NAME, told.append).cancel()
        await turn()
        assert told == []
        assert registry.get(NAME) is not None

    async def test_are_let_go_once_taken_back(self, registry: model_registry.ModelRegistry, teller: Teller) -> None:
        teller.delay = 1000.0

        class Caller:
            def told(self, model: model_registry.Model) -> None: ...

        caller = Caller()
        gone = weakref.ref(caller)
        waiting = registry.when_known(NAME, caller.told)
        waiting.cancel()
        del caller
        gc.collect()
        assert gone() is None
