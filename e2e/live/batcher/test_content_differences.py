"""Carpool does not touch content that KServe's batcher changes, drops or fails on, on purpose."""

from __future__ import annotations

import pytest

from e2e.live.batcher import sides, tables, targets

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SENT = {"Authorization": "Bearer one", "traceparent": TRACE, "X-Request-ID": "request-1"}
NUMBERS = "9007199254740993, 12345678901234567890, 1.0, -0.0"
TEXTS = '"<b>", {"z": 1, "a": "&"}, 3, 4'


def instances_as_sent(call: targets.Call) -> str:
    return call.body.partition("[")[2].rpartition("]")[0]


async def test_numbers_on_their_way_to_the_predictor(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """instances are moved as bytes; KServe's agent converts them to 64-bit floats, which changes large ids"""
    await small_batches.predict_raw(model, b'{"instances": [%s]}' % NUMBERS.encode())
    (call,) = await small_batches.recorded(model)
    rounded = "9007199254740992,12345678901234567000,1,-0"
    assert observed(instances_as_sent(call)) == side.expects(kserve=rounded, carpool=NUMBERS)


async def test_texts_and_objects_on_their_way_to_the_predictor(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """instances are moved as bytes; KServe's agent writes them again, sorted and escaped"""
    await small_batches.predict_raw(model, b'{"instances": [%s]}' % TEXTS.encode())
    (call,) = await small_batches.recorded(model)
    anew = r'"\u003cb\u003e",{"a":"\u0026","z":1},3,4'
    assert observed(instances_as_sent(call)) == side.expects(kserve=anew, carpool=TEXTS)


async def test_half_a_character(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """instances are moved as bytes; U+FFFD replaces nothing"""
    await small_batches.predict_raw(model, rb'{"instances": ["\ud800", 2, 3, 4]}')
    (call,) = await small_batches.recorded(model)
    expected = side.expects(kserve=r"'\ufffd'", carpool=r"'\ud800'")
    assert observed(ascii(call.instances[0])) == expected


async def test_headers_that_reach_the_predictor(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """credentials, media type, request id and trace context go along"""
    await small_batches.predict(model, [1, 2, 3, 4], SENT)
    (call,) = await small_batches.recorded(model)
    kept = [name for name in (*SENT, "Content-Type") if name.lower() in call.headers]
    every = "Authorization, traceparent, X-Request-ID, Content-Type"
    assert observed(", ".join(kept) or "none") == side.expects(kserve="none", carpool=every)


async def test_the_host_that_the_predictor_sees(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """where it is called; KServe's is a constant of Go's test package, and its X-Forwarded-For is too"""
    await small_batches.predict(model, [1, 2, 3, 4])
    (call,) = await small_batches.recorded(model)
    seen = f"{call.headers['host']}, X-Forwarded-For: {call.headers.get('x-forwarded-for', 'none')}"
    assert observed(seen) == side.expects(
        kserve="example.com, X-Forwarded-For: 192.0.2.1", carpool="127.0.0.1:8080, X-Forwarded-For: none"
    )


async def test_a_list_named_inputs(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """the v1 protocol's other word for the list is batched as well"""
    answer = await small_batches.predict_raw(model, b'{"inputs": [1, 2, 3, 4]}')
    assert observed(targets.told(answer)) == side.expects(
        kserve="400 text/plain: no instances in the request",
        carpool='200 application/json: {"message":"","batchId":"UUID","predictions":[1,2,3,4]}',
    )


@pytest.mark.parametrize(
    "body", [b'{"Instances": [1, 2, 3, 4]}', b'{"instances": [1], "instances": [1, 2, 3, 4]}'], ids=["case", "twice"]
)
async def test_a_list_that_is_spelt_otherwise_or_comes_twice(
    body: bytes, small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """a predictor may read a different list than Carpool, so both lists at once are an error"""
    answer = await small_batches.predict_raw(model, body)
    forwarded = len(await small_batches.recorded(model))
    seen = f"{answer.status}, {forwarded} forwarded"
    assert observed(seen) == side.expects(kserve="200, 1 forwarded", carpool="400, 0 forwarded")


async def test_a_put_to_a_predict_path(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """only POST is a predict request; other methods are the predictor's to answer"""
    await small_batches.send("PUT", targets.predict_path(model), b'{"instances": [1, 2, 3, 4]}')
    (call,) = await small_batches.recorded(model)
    assert observed(f"{call.method} at the predictor") == side.expects(
        kserve="POST at the predictor", carpool="PUT at the predictor"
    )


async def test_a_path_with_an_encoded_slash(
    small_batches: targets.Target, side: sides.Side, model: str, observed: tables.Observe
) -> None:
    """paths are passed on unchanged"""
    await small_batches.predict(f"org%2F{model}", [1, 2, 3, 4])
    (call,) = await small_batches.recorded(model)
    assert observed(call.target.replace(model, "m")) == side.expects(
        kserve="/v1/models/org/m:predict", carpool="/v1/models/org%2Fm:predict"
    )
