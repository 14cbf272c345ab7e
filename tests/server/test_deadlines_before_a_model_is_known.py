"""A caller's deadline holds as well while the predictor is asked about the caller's model."""

from __future__ import annotations

import asyncio

import pytest
from multidict import CIMultiDict

from carpool_sidecar import errors
from carpool_sidecar.batching import calls, routes
from carpool_sidecar.protocols import models
from carpool_sidecar.server import predict
from tests.server.connection_bench import Bench, post, settle
from tests.server.test_connections_v2 import BODY, INFER, Predictor, answer, infer

pytestmark = pytest.mark.looptime
ASKED = routes.Match(models.ModelName("m", ""), "v2")


@pytest.fixture
async def predictor() -> Predictor:
    return Predictor(models.ModelInfo(max_batch_size=4))


def rules_of(bench: Bench) -> predict.PredictRules:
    return bench.rules


def within(milliseconds: int) -> CIMultiDict[str]:
    return CIMultiDict({"carpool-timeout-ms": str(milliseconds)})


async def test_a_caller_is_told_when_its_deadline_passes_before_the_predictor_tells_of_the_model(
    predictor: Predictor, looptime: float
) -> None:
    with pytest.raises(errors.DeadlineExceeded):
        await rules_of(predictor.bench()).route(within(300), ASKED)
    assert looptime == pytest.approx(0.3, abs=0.01)
    await predictor.registry.close()


async def test_the_others_that_wait_for_the_same_model_are_not_disturbed(predictor: Predictor) -> None:
    rules = rules_of(predictor.bench())
    patient = asyncio.ensure_future(rules.route(CIMultiDict(), ASKED))
    with pytest.raises(errors.DeadlineExceeded):
        await rules.route(within(300), ASKED)
    predictor.may_tell.set()
    assert (await patient).codec.max_batch_size == 4


async def test_what_the_question_took_is_taken_from_the_callers_time(predictor: Predictor) -> None:
    bench = predictor.bench()
    rules = rules_of(bench)
    asyncio.get_running_loop().call_later(0.2, predictor.may_tell.set)
    route = await rules.route(within(300), ASKED)
    assert rules.head("/v2/models/m/infer", within(300), ASKED, route, spent=0.2).timeout == pytest.approx(0.1)


async def test_a_deadline_that_passed_meanwhile_is_told_at_once(predictor: Predictor) -> None:
    predictor.may_tell.set()
    rules = rules_of(predictor.bench())
    route = await rules.route(within(300), ASKED)
    with pytest.raises(errors.DeadlineExceeded):
        rules.head("/v2/models/m/infer", within(300), ASKED, route, spent=0.3)


async def test_who_waits_for_news_of_a_model_is_answered_in_its_own_time(predictor: Predictor) -> None:
    bench = predictor.bench()
    waits, hurries = bench.connect(), bench.connect()
    waits.send(infer())
    hurries.send(post(BODY, b"carpool-timeout-ms: 300", target=INFER))
    await asyncio.sleep(0.4)
    assert (waits.statuses, hurries.statuses) == ([], [504])
    predictor.may_tell.set()
    for _ in range(5):
        await settle()
    assert [call.timeout for call in bench.driver.calls] == [None]
    answer(bench)
    assert waits.received.startswith(b"HTTP/1.1 200 OK\r\n")
    await predictor.registry.close()


async def test_once_the_model_is_known_a_deadline_keeps_nobody_from_being_plain(predictor: Predictor) -> None:
    bench = predictor.bench()
    predictor.may_tell.set()
    await predictor.registry.ask(models.ModelName("m", ""))
    bench.connect().send(post(BODY, b"carpool-timeout-ms: 300", target=INFER))
    found: list[calls.Call] = bench.driver.calls
    assert [call.tag.timeout for call in found] == [0.3]
    await predictor.registry.close()


async def test_a_deadline_that_is_none_is_told_only_of_a_request_that_is_batched(predictor: Predictor) -> None:
    predictor.may_tell.set()
    rules = rules_of(predictor.bench())
    nonsense = CIMultiDict({"carpool-timeout-ms": "soon"})
    with pytest.raises(errors.Unbatchable, match="unknown_model"):
        await rules.route(nonsense, routes.Match(models.ModelName("stranger", ""), "v2"))
    route = await rules.route(nonsense, ASKED)
    with pytest.raises(errors.BadRequest, match="carpool-timeout-ms"):
        rules.head("/v2/models/m/infer", nonsense, ASKED, route)
