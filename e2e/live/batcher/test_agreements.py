"""What clients of KServe's batcher rely on also holds with Carpool in its place, in front of the same predictor."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

from e2e.live.batcher import recorder, sides, tables, targets

# Well below the 5 s that a batch waits until it is full.
AT_ONCE = 2.5
OTHER_REQUESTS = (
    ("GET", "/v1/models/{}?a=1&b=2", b""),
    ("POST", "/v2/models/{}/infer", b'{"inputs": [{"name": "x"}]}'),
    ("POST", "/v1/models/{}:explain", b'{"instances": [1]}'),
    ("POST", "/v1/models/{}:predict/", b'{"instances": [1]}'),
    ("PUT", "/v1/models/{}", b"\x00 no JSON"),
    ("DELETE", "/v1/models/{}", b""),
)
WITHOUT_INSTANCES = (
    b"",
    b"{",
    b"17",
    b"{}",
    b'{"instances": []}',
    b'{"instances": null}',
    b'{"instances": {"a": 1}}',
    b'{"instances": "text"}',
    b'{"instances": [NaN]}',
    b'{"data": [1]}',
)


async def test_what_is_no_predict_request_passes_through_unchanged(
    small_batches: targets.Target, model: str, observed: tables.Observe
) -> None:
    unchanged = 0
    for method, pattern, body in OTHER_REQUESTS:
        target = pattern.format(model)
        answer = await small_batches.send(method, target, body, {"Own": "kept", "Content-Type": "x/y"})
        call = (await small_batches.recorded(model))[-1]
        sent = (method, target, body.decode(), "kept", "x/y")
        got = (call.method, call.target, call.body, call.headers["own"], call.headers["content-type"])
        unchanged += got == sent and answer.status == 202 and answer.headers["recorder"] == "was here"
    assert observed(f"{unchanged} of {len(OTHER_REQUESTS)} unchanged") == "6 of 6 unchanged"


async def test_an_event_stream_arrives_event_by_event(small_batches: targets.Target, observed: tables.Observe) -> None:
    pieces = await small_batches.events("/events")
    assert b"".join(piece for _, piece in pieces) == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    first_to_last = pieces[-1][0]
    is_streamed = first_to_last > recorder.EVENT_SECONDS * (recorder.EVENTS - 1) / 2
    assert observed("as they happen" if is_streamed else "all at the end") == "as they happen"


async def test_callers_within_max_latency_share_one_batch_id_and_one_call(
    short_wait: targets.Target, model: str, observed: tables.Observe
) -> None:
    answers = await short_wait.predict_all(model, [["a"], ["b"], ["c"]])
    batches = {answer.json["batchId"] for answer in answers}
    calls = await short_wait.recorded(model)
    assert observed(f"{len(batches)} batchId, {len(calls)} call") == "1 batchId, 1 call"
    assert sorted(calls[0].instances) == ["a", "b", "c"]


async def test_each_caller_gets_its_own_predictions_in_its_own_order(
    small_batches: targets.Target, model: str, observed: tables.Observe
) -> None:
    right = 0
    for turn in range(5):
        asked = [[f"{turn}-a", f"{turn}-b"], [f"{turn}-c"], [f"{turn}-d"]]
        answers = await small_batches.predict_all(model, asked)
        right += sum(answer.json["predictions"] == own for answer, own in zip(answers, asked, strict=True))
    assert observed(f"{right} of 15 callers") == "15 of 15 callers"
    assert len(await small_batches.recorded(model)) == 5


async def test_a_batch_leaves_at_once_when_max_batch_size_is_reached(
    small_batches: targets.Target, model: str, observed: tables.Observe
) -> None:
    answers = await small_batches.predict_all(model, [[1], [2], [3], [4]])
    is_soon = max(answer.elapsed for answer in answers) < AT_ONCE
    calls = await small_batches.recorded(model)
    assert observed(f"{'at once' if is_soon else 'late'}, {len(calls)} call") == "at once, 1 call"


async def test_a_lone_request_leaves_after_max_latency(
    short_wait: targets.Target, model: str, observed: tables.Observe
) -> None:
    elapsed = (await short_wait.predict(model, [1])).elapsed
    is_due = sides.SHORT_WAIT.window <= elapsed < sides.SHORT_WAIT.window + 2
    assert observed("after maxLatency" if is_due else f"after {elapsed:.2f} s") == "after maxLatency"


async def test_an_answer_has_an_empty_message_a_uuid_and_the_predictions(
    small_batches: targets.Target, model: str, observed: tables.Observe
) -> None:
    answer = await small_batches.predict(model, [1, 2, 3, 4])
    sample = '{"message":"","batchId":"UUID","predictions":[1,2,3,4]}'
    assert observed(targets.told(answer).partition(": ")[2]) == sample
    assert uuid.UUID(answer.json["batchId"]).version == 4


async def test_the_predictor_gets_one_post_to_the_same_path_with_the_merged_instances(
    small_batches: targets.Target, model: str, observed: tables.Observe
) -> None:
    await small_batches.predict_all(model, [["a"], ["b", "c"], ["d"]])
    (call,) = await small_batches.recorded(model)
    assert observed(f"{call.method} {call.target.replace(model, 'm')}") == "POST /v1/models/m:predict"
    assert list(json.loads(call.body)) == ["instances"]
    assert sorted(call.instances) == ["a", "b", "c", "d"]
    assert call.instances.index("c") == call.instances.index("b") + 1


async def test_a_body_without_instances_is_refused_and_never_forwarded(
    small_batches: targets.Target, model: str, observed: tables.Observe
) -> None:
    answers = await asyncio.gather(*(small_batches.predict_raw(model, body) for body in WITHOUT_INSTANCES))
    statuses = {answer.status for answer in answers}
    forwarded = len(await small_batches.recorded(model))
    assert observed(f"{len(answers)} of {len(answers)}: {statuses}, {forwarded} forwarded") == (
        "10 of 10: {400}, 0 forwarded"
    )


async def test_no_member_of_a_batch_hangs_when_the_predictor_fails(
    small_batches: targets.Target, model: str, observed: tables.Observe
) -> None:
    fine, failing = {"status": 0, "text": ""}, {"status": 503, "text": "not now"}
    answers = await small_batches.predict_all(model, [[fine], [fine], [fine], [failing]])
    soon = sum(answer.elapsed < AT_ONCE for answer in answers)
    assert observed(f"{soon} of 4 answered at once") == "4 of 4 answered at once"


async def test_a_predict_request_may_have_its_colon_encoded(
    small_batches: targets.Target, model: str, observed: tables.Observe
) -> None:
    body = b'{"instances": [1, 2, 3, 4]}'
    answer = await small_batches.send(
        "POST", f"/v1/models/{model}%3Apredict", body, {"Content-Type": "application/json"}
    )
    assert observed("batched" if answer.json.get("batchId") else "passed through") == "batched"


async def test_without_numbers_32_instances_make_a_full_batch(
    defaults: targets.Target, model: str, observed: tables.Observe
) -> None:
    answer = await defaults.predict(model, range(32))
    (call,) = await defaults.recorded(model)
    is_soon = answer.elapsed < AT_ONCE
    assert observed(f"{'at once' if is_soon else 'late'}, {len(call.instances)} in a call") == "at once, 32 in a call"


async def test_instances_may_be_any_json(small_batches: targets.Target, model: str, observed: tables.Observe) -> None:
    instances: list[Any] = [None, {"deep": [[[1.5, "é ☃ 😀"]]]}, [], True]
    answer = await small_batches.predict(model, instances)
    is_equal = answer.json["predictions"] == instances == (await small_batches.recorded(model))[0].instances
    assert observed("equal both ways" if is_equal else answer.text) == "equal both ways"
