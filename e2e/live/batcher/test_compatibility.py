"""`kserve-errors: "true"`: for clients that depend on how KServe's batcher answers, Carpool answers so too."""

from __future__ import annotations

import pytest

from e2e.live.batcher import sides, tables, targets

ASKED = {
    "predictions": b'{"instances": [1, 2, 3, 4]}',
    "predictor's 500": b'{"instances": [{"status": 500, "text": "boom"}, 2, 3, 4]}',
    "no JSON": b"{",
    "no instances": b'{"instances": []}',
}
BOTH_SAY = {
    "predictions": '200 text/plain: {"message":"","batchId":"UUID","predictions":[1,2,3,4]}',
    "predictor's 500": '200 text/plain: {"message":"boom","batchId":"","predictions":null}',
    "no JSON": "400 text/plain: can't Unmarshal body",
    "no instances": "400 text/plain: no instances in the request",
}


@pytest.mark.parametrize("side", sides.BY_ANNOTATION, ids=lambda side: side.key, indirect=True)
@pytest.mark.parametrize("kind", ASKED)
async def test_with_the_switch_both_answer_alike(
    kind: str, compatible: targets.Target, model: str, observed: tables.Observe
) -> None:
    answer = await compatible.predict_raw(model, ASKED[kind])
    assert observed(targets.told(answer)) == BOTH_SAY[kind]


@pytest.mark.parametrize("side", sides.BY_ANNOTATION, ids=lambda side: side.key, indirect=True)
async def test_with_the_switch_both_tell_in_a_200_that_the_predictor_hung_up(
    compatible: targets.Target, model: str, observed: tables.Observe
) -> None:
    answer = await compatible.predict(model, [{"hang_up": True}, 2, 3, 4])
    assert answer.json["message"]
    told = {"message": "words", "batchId": "", "predictions": None}
    assert {**answer.json, "message": "words"} == told
    assert observed(f"{answer.status} with a message") == "200 with a message"
