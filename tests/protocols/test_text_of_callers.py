"""Text that callers choose is compared as it is, and what is remembered of it is bounded in bytes."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, models, steps
from carpool_sidecar.protocols.lists import codec as lists
from carpool_sidecar.protocols.lists import rules
from carpool_sidecar.protocols.v2_grpc import codec as grpc_codec
from carpool_sidecar.protocols.v2_http import codec as v2_codec

NESTED = b"[%b]" % b",".join([b"[%b]" % b",".join([b"1.5"] * 5000)] * 30)  # 600 kB
ACCENTED = "\u00e9".encode() * 30_000
TEXTS = b"[%b]" % b",".join([b'"%b"' % (b"word " * 100)] * 2500)  # 1.2 MB
LONG_TEXT = b'["%b"]' % (b"word " * 250_000)  # as long, and scanned in a moment


def v2() -> v2_codec.Codec:
    return v2_codec.Codec(models.ModelInfo(), lambda: None)


def listed(*names: str) -> lists.Codec:
    return lists.Codec(rules.load(names), lambda: 0.0)


def infer(text: bytes = b"", after: bytes = b"", data: bytes = NESTED, shape: bytes = b"[30,5000]") -> bytes:
    return b'{%b"inputs":[{"name":"x","datatype":"FP32","shape":%b,"data":%b}]%b}' % (text, shape, data, after)


def small(text: bytes = b"", after: bytes = b"") -> bytes:
    return infer(text, after, b"[1]", b"[1,1]")


def embed(model: bytes, texts: bytes = TEXTS) -> bytes:
    return b'{"model":"%b","input":%b}' % (model, texts)


def rpc(ident: str = "", parameter: str = "", rows: int = 1) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="m", id=ident)
    request.inputs.add(name="x", datatype="INT8", shape=[rows, 1])
    request.parameters["p"].string_param = parameter
    request.raw_input_contents.append(bytes(rows))
    text: bytes = request.SerializeToString()
    return text


def parsed(by: Any, body: bytes) -> Any:
    """As the servers do it: a large body in steps."""
    if len(body) < by.large:
        return by.parse(body, 4000)
    return steps.at_once(by.parse_in_steps(body, 4000))


def read(by: Any, payload: Any, answer: bytes, parts: int = 2) -> Any:
    """An answer to a batch of such requests, in steps."""
    whole = messages.Request(payload.key, payload.row_count, payload=payload)
    call = by.merge("b", "/x", [messages.Part(whole, 0, payload.row_count)] * parts)
    return steps.at_once(call.read_in_steps(interface.UpstreamResponse(answer, {})))


class Memory:
    """Bytes beyond those at the beginning: the `most` there were at once, and what is `held` at the end."""

    def __init__(self) -> None:
        self.most = self.held = 0

    def __enter__(self) -> Memory:
        gc.collect()
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        gc.collect()
        self.held, self.most = tracemalloc.get_traced_memory()
        tracemalloc.stop()


def held(by: Any, bodies: Iterable[bytes]) -> int:
    """Bytes that are kept once all of these were parsed."""
    with Memory() as memory:
        for body in bodies:
            with contextlib.suppress(errors.Unbatchable):
                parsed(by, body)
        del body
    return memory.held


# --- nothing grows with the text around rows ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "write"),
    [
        (v2, lambda text: infer(b'"id":"%b",' % text)),
        (v2, lambda text: infer(b'"parameters":{"p":"%b"},' % text)),
        (v2, lambda text: infer(after=b',"id":"%b"' % text)),
        (lambda: listed("openai-embeddings"), embed),
        (lambda: listed("tei-embed"), lambda text: b'{"%b":0,"inputs":%b}' % (text, TEXTS)),
    ],
    ids=["id", "parameter", "last id", "model", "member"],
)
@pytest.mark.parametrize("size", [1000, 60_000, 2_000_000])
def test_a_large_body_takes_as_much_memory_whatever_is_around_its_rows(
    made: Callable[[], Any], write: Callable[[bytes], bytes], size: int
) -> None:
    by, body = made(), write(b"y" * size)
    for _ in range(2):
        parsed(by, write(b"first"))
    for _ in range(2):  # the text is new, and known
        with Memory() as memory:
            try:
                parsed(by, body)
            except errors.Unbatchable:
                assert size > 1000
        assert memory.most < 2 * len(body) + 4_000_000


@pytest.mark.parametrize(
    ("made", "write", "count", "most"),
    [
        (v2, lambda text: infer(b'"id":"%b",' % text), 50, 100_000),
        (v2, lambda text: infer(b'"id":"%b",' % text[:1000]), 50, 100_000),
        (v2, lambda text: infer(b'"parameters":{"p":"%b"},' % text), 100, 14_000_000),
        (v2, lambda text: small(b'"parameters":{"p":"%b"},' % (text[:6] + ACCENTED)), 100, 14_000_000),
        (lambda: listed("openai-embeddings"), lambda text: embed(text, LONG_TEXT), 50, 2_000_000),
        (lambda: listed("mlflow"), lambda text: b'{"instances":[{"%b":1}]}' % text, 50, 100_000),
    ],
    ids=["id", "short id", "parameter", "parameter in UTF-8", "model", "names in rows"],
)
def test_what_is_remembered_is_bounded_in_bytes_however_many_texts_come(
    made: Callable[[], Any], write: Callable[[bytes], bytes], count: int, most: int
) -> None:
    by = made()
    parsed(by, write(b"first"))
    parsed(by, write(b"first"))
    assert held(by, (write(b"%06d" % number + b"x" * 60_000) for _ in range(2) for number in range(count))) < most


@pytest.mark.parametrize("rule", ["openai-embeddings", "mlflow"])
def test_keys_that_are_not_batched_for_a_while_are_remembered_without_their_text(rule: str) -> None:
    by = listed(rule)
    body = {
        "openai-embeddings": b'{"model":"%06d%b","input":["a"]}',
        "mlflow": b'{"dataframe_records":[{"%06d%b":1}]}',
    }[rule]
    with Memory() as memory:
        for number in range(100):
            payload = parsed(by, body % (number, b"x" * 60_000))
            with pytest.raises(errors.Uneven):
                read(by, payload, b'{"data":[],"predictions":[]}')
        with pytest.raises(errors.Unbatchable):
            parsed(by, body % (99, b"x" * 60_000))
        del payload
    assert memory.held < 2_000_000


def test_the_heads_of_calls_over_grpc_are_remembered_within_a_few_megabytes() -> None:
    by = grpc_codec.Codec(models.ModelInfo(max_batch_size=64), lambda: None)
    with Memory() as memory:
        for number in range(100):
            payload = by.parse(rpc(parameter=f"{number:06}{'p' * 3900}"), 64)
            for rows in range(2, 64):
                payload.message.template.signature.head(rows)
        del payload
    assert memory.held < 12_000_000


# --- answers that repeat what a caller wrote ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [60_000, 2_000_000])
def test_an_answer_that_repeats_a_long_text_is_shared_out_and_not_remembered(size: int) -> None:
    by = listed("openai-embeddings")
    payload = parsed(by, b'{"model":"m","input":["a"]}')
    row = b'{"object":"embedding","index":%d,"embedding":[' + b"0.25," * 50_000 + b"1]}"
    with Memory() as memory:
        for number in range(20):
            answer = b'{"object":"list","model":"%06d%b","data":[%b,%b]}' % (number, b"y" * size, row % 0, row % 1)
            assert len(read(by, payload, answer).rows) == 2
        del answer
    assert memory.held < 1_000_000


@pytest.mark.parametrize("size", [60_000, 2_000_000])
def test_an_answer_of_v2_that_repeats_a_long_text_takes_no_more_memory_for_it(size: int) -> None:
    by = v2()
    payload = parsed(by, small())
    output = b'{"name":"y","datatype":"FP32","shape":[2,75000],"data":[%b]}' % b",".join(
        [b"[%b]" % b",".join([b"0.5"] * 75_000)] * 2
    )
    body = b'{"model_name":"m","parameters":{"p":"%b"},"outputs":[%b]}' % (b"y" * size, output)
    for _ in range(2):
        with Memory() as memory:
            try:
                read(by, payload, body)
            except errors.UpstreamBroken:
                assert size > 60_000
        assert memory.most < 3 * len(body) + 2_000_000


# --- ids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda ident: small(b'"id":"%b",' % ident),
        lambda ident: small(b'"id": "%b",' % ident),
        lambda ident: b' { "id" : "%b" , %b' % (ident, small()[1:]),
        lambda ident: small(b'"parameters":{},"id":"%b",' % ident),
        lambda ident: small(after=b',"id":"%b"' % ident),
        lambda ident: small(b'"id":"\\u0061%b",' % ident[6:]),
    ],
    ids=["first", "spaced", "spaced out", "second", "last", "escaped"],
)
def test_an_id_in_json_may_have_a_kibibyte_and_a_longer_one_travels_alone(write: Callable[[bytes], bytes]) -> None:
    by = v2()
    assert by.parse(write(b"y" * 1022), 10).row_count == 1  # and two quotes
    for size in (1023, 60_000, 2_000_000):
        with pytest.raises(errors.Unbatchable) as alone:
            by.parse(write(b"y" * size), 10)
        assert alone.value.args[0] == errors.NotBatched.MEMBERS


@pytest.mark.parametrize("how", ["parse", "parse_in_steps"])
def test_an_id_over_grpc_may_have_a_kibibyte_and_a_longer_one_travels_alone(how: str) -> None:
    by = grpc_codec.Codec(models.ModelInfo(max_batch_size=8), lambda: None)

    def parse(body: bytes) -> grpc_codec.Payload:
        return by.parse(body, 10) if how == "parse" else steps.at_once(by.parse_in_steps(body, 10))

    assert parse(rpc("y" * 1024)).row_count == 1
    for size in (1025, 2_000_000):
        with pytest.raises(errors.Unbatchable) as alone:
            parse(rpc("y" * size))
        assert alone.value.args[0] == errors.NotBatched.MEMBERS
