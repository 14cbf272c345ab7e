"""Carpool reports failures differently from KServe's batcher, on purpose: the test fixes what each side does."""

from __future__ import annotations

import asyncio
import collections
import gzip

import pytest

from e2e.live import traffic
from e2e.live.batcher import sides, tables, targets

TWO_ONE = '{"predictions":[1,2,3,4]}'
MISCOUNT = "size of prediction is not equal to the size of instances"
# A predictor that answers a whole call: 4 instances, so that the batch leaves at once.
FAILURES = {
    "500": {"status": 500, "text": "boom"},
    "404": {"status": 404, "text": "no such model"},
    "201": {"status": 201, "text": TWO_ONE},
    "unreadable": {"text": "boom"},
    "too few": {"one_too_few": True},
    "hangs up": {"hang_up": True},
}
KSERVE_SAYS = {
    "500": '200 text/plain: {"message":"boom","batchId":"","predictions":null}',
    "404": '200 text/plain: {"message":"no such model","batchId":"","predictions":null}',
    "201": '200 text/plain: {"message":"{\\"predictions\\":[1,2,3,4]}","batchId":"","predictions":null}',
    "unreadable": '200 text/plain: {"message":"invalid character \'b\' looking for beginning of value",'
    '"batchId":"UUID","predictions":null}',
    "too few": f'200 text/plain: {{"message":"{MISCOUNT}","batchId":"UUID","predictions":null}}',
    "hangs up": '200 text/plain: {"message":"EOF\\n","batchId":"","predictions":null}',
}
CARPOOL_SAYS = {
    "500": "500 text/x-recorder: boom",
    "404": "404 text/x-recorder: no such model",
    "201": '200 application/json: {"message":"","batchId":"UUID","predictions":[1,2,3,4]}',
    "unreadable": '502 application/json: {"error":"the predictor\'s answer is not a valid predict response: '
    'JSON is malformed: invalid character (byte 0)"}',
    "too few": '502 application/json: {"error":"the predictor gave 3 predictions for 4 instances"}',
    "hangs up": '502 application/json: {"error":"the predictor closed the connection before answering"}',
}
NO_INSTANCES = '{"error":"the body has no instances: send {\\"instances\\": [...]} with at least one element"}'
# A refusal's body, what KServe's agent says, what Carpool says.
REFUSED = {
    "no JSON": (b"{", "can't Unmarshal body", '{"error":"Input data was truncated"}'),
    "no instances": (b'{"instances":[]}', "no instances in the request", NO_INSTANCES),
}
CLEARING = 24
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


@pytest.mark.parametrize("kind", FAILURES)
async def test_how_a_caller_sees_that_the_predictor_failed(
    kind: str, small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """honest status codes, and the predictor's own status, type and body: clients and proxies act on them"""
    answer = await small_batches.predict(model, [FAILURES[kind], 2, 3, 4])
    assert observed(targets.told(answer)) == side.expects(kserve=KSERVE_SAYS[kind], carpool=CARPOOL_SAYS[kind])


@pytest.mark.parametrize("kind", ["rejected", "too few"])
async def test_one_bad_request_among_four_callers(
    kind: str, small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """a batch that fails is retried by halves until the failing instance is alone"""
    # Of one form: those of several share no batch.
    fine, failing = {
        "rejected": ({"status": 0, "text": ""}, {"status": 400, "text": "no such class"}),
        "too few": ({"one_too_few": False}, {"one_too_few": True}),
    }[kind]
    answers = await small_batches.predict_all(model, [[fine], [fine], [fine], [failing]])
    honest = {"rejected": "3 × predictions, 1 × 400", "too few": "3 × predictions, 1 × 502"}[kind]
    assert observed(counted(answers)) == side.expects(kserve="4 × no predictions", carpool=honest)


def counted(answers: list[traffic.Answer]) -> str:
    """How many callers got what."""
    counts = collections.Counter(in_short(answer) for answer in answers)
    return ", ".join(f"{number} × {what}" for what, number in counts.most_common())


def in_short(answer: traffic.Answer) -> str:
    if answer.status != 200:
        return str(answer.status)
    return "no predictions" if answer.json["predictions"] is None else "predictions"


async def test_the_media_type_of_predictions(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """the body is JSON, and the media type says so"""
    answer = await small_batches.predict(model, [1, 2, 3, 4])
    expected = side.expects(kserve="text/plain; charset=utf-8", carpool="application/json")
    assert observed(answer.headers["content-type"]) == expected


@pytest.mark.parametrize("kind", REFUSED)
async def test_what_a_refusal_says(
    kind: str, small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """the v1 protocol's form of errors, and where the mistake is"""
    body, kserve, carpool = REFUSED[kind]
    answer = await small_batches.predict_raw(model, body)
    expected = side.expects(kserve=f"400 text/plain: {kserve}", carpool=f"400 application/json: {carpool}")
    assert observed(targets.told(answer)) == expected


async def test_a_caller_with_a_deadline_of_its_own(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """KServe's batcher has no time limit of any kind; a caller that has given up should not be waited for"""
    slow = [{"wait": 2}, 2, 3, 4]
    answer = await small_batches.predict(model, slow, {"carpool-timeout-ms": "300"})
    seen = f"{in_short(answer)} {'in time' if answer.elapsed < 1.8 else 'late'}"
    assert observed(seen) == side.expects(kserve="predictions late", carpool="504 in time")


@pytest.mark.parametrize("side", sides.BY_ANNOTATION, ids=lambda side: side.key, indirect=True)
async def test_more_callers_than_the_queue_may_hold(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """the queue has a limit, and the answer is immediate with Retry-After; KServe's agent lets all callers wait"""
    # Other tests' requests were rejected, all from one address and over any of the ingress's connections to the pod:
    # enough good ones, several at a time, clear them all. Who comes while there is no room is not asked to.
    for _ in range(CLEARING):
        await asyncio.gather(*(small_batches.predict(model, [{"wait": 0}, 2, 3, 4]) for _ in range(4)))
    assert (await small_batches.predict(model, [1, 2, 3, 4])).status == 200
    slow = [{"wait": 0.5}, 2, 3, 4]
    answers = await asyncio.gather(*(small_batches.predict(model, slow) for _ in range(8)))
    assert observed(counted(list(answers))) == side.expects(
        kserve="8 × predictions", carpool="6 × predictions, 2 × 429"
    ), [answer.text for answer in answers]
    assert all("retry-after" in answer.headers for answer in answers if answer.status == 429)


async def test_a_compressed_body(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """Content-Encoding is honoured"""
    answer = await small_batches.predict_raw(
        model, gzip.compress(b'{"instances":[1,2,3,4]}'), {"Content-Encoding": "gzip"}
    )
    assert observed(in_short(answer)) == side.expects(kserve="400", carpool="predictions")


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
