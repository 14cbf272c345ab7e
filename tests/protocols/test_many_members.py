"""What has very many parts is told by the first one too many, and no step of work looks at each of them."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, json_members, models, steps, tensors_from_v1, v1
from carpool_sidecar.protocols.lists import codec as lists
from carpool_sidecar.protocols.lists import rules
from carpool_sidecar.protocols.pairs import codec as pairs
from carpool_sidecar.protocols.pairs import destinations
from carpool_sidecar.protocols.v2_grpc import codec as grpc_codec
from carpool_sidecar.protocols.v2_http import codec as v2_codec
from carpool_sidecar.protocols.v2_http import tensors as v2_tensors

MANY = 100_000
OWN = "{own: {path: /x, list: in.a.*, answers: [out.*, out], shared: usage}}"


def listed(*names: str) -> lists.Codec:
    return lists.Codec(rules.load(names), lambda: 0.0)


def members(count: int, value: bytes = b"[1,2]") -> bytes:
    return b"{%b}" % b",".join([b'"c%d":%b' % (number, value) for number in range(count)])


def tensors(count: int) -> bytes:
    one = b'{"name":"t%d","datatype":"FP32","shape":[1,1],"data":[1]}'
    return b'{"inputs":[%b]}' % b",".join([one % number for number in range(count)])


def rpc(count: int) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="m")
    for number in range(count):
        request.inputs.add(name=f"t{number}", datatype="INT8", shape=[1, 1])
        request.raw_input_contents.append(b"1")
    text: bytes = request.SerializeToString()
    return text


def as_pairs() -> Any:
    destination = destinations.Destination.parse("tei-predict")
    return pairs.Codec(rules.load(["rerank", "nim-ranking"]), destination)


def as_tensors() -> tensors_from_v1.Codec:
    specs = tuple(models.TensorSpec(name, "FP32", (-1, 1)) for name in ("x", "y"))
    return tensors_from_v1.Codec(models.ModelName("m"), models.ModelInfo(specs, specs, 100), v2_tensors)


class Effort:
    """What parsing a body takes, as the servers do it: `calls` of functions in the longest step, and the `steps`.

    Calls are counted in Python alone; the compiled modules tell of none.
    """

    def __init__(self, by: Any, body: bytes) -> None:
        self.calls = self.steps = 0
        self.error: Exception | None = None
        self.payload: Any = None
        self._now = 0
        work = by.parse_in_steps(body, 4000) if len(body) >= by.large else None
        before = sys.getprofile()
        tracemalloc.start()
        sys.setprofile(self._count)
        try:
            while work is not None:
                next(work)
                self.steps += 1
                self.calls, self._now = max(self.calls, self._now), 0
            self.payload = by.parse(body, 4000)
        except StopIteration as end:
            self.payload = end.value
        except (errors.CarpoolError, errors.Unbatchable) as error:
            self.error = error.with_traceback(None)
        finally:
            sys.setprofile(before)
            self.memory = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        self.calls = max(self.calls, self._now)

    def _count(self, _: object, event: str, __: object) -> None:
        self._now += event in ("call", "c_call")


@pytest.mark.parametrize(
    ("made", "body"),
    [
        (lambda: listed("tfserving-columns"), b'{"inputs":%b}' % members(MANY)),
        (lambda: listed("tfserving-columns"), b'{"inputs":{"a":[1]},%b' % members(MANY)[1:]),
        (lambda: listed("openai-embeddings"), b'{"input":["a"],%b' % members(MANY, b"1")[1:]),
        (lambda: listed(OWN), b'{"in":{"a":%b}}' % members(MANY)),
        (lambda: lists.V1First(listed("tfserving-columns")), b'{"inputs":%b}' % members(MANY)),
        (lambda: v2_codec.Codec(models.ModelInfo(), lambda: None), tensors(20_000)),
        (lambda: grpc_codec.Codec(models.ModelInfo(), lambda: None), rpc(2000)),
        (as_tensors, b'{"inputs":%b}' % members(MANY)),
        (as_tensors, b'{"inputs":{"x":[1]},%b' % members(MANY)[1:]),
        (as_pairs, b'{"query":"q","documents":["a"],%b' % members(MANY)[1:]),
        (as_pairs, b'{"query":%b,"passages":[{"text":"a"}]}' % members(MANY)),
    ],
    ids=[
        "columns",
        "beside columns",
        "beside a list",
        "own rule",
        "beside v1",
        "v2",
        "gRPC",
        "v1 as v2",
        "beside v1 as v2",
        "beside pairs",
        "in a query of pairs",
    ],
)
def test_very_many_members_are_not_looked_at_one_by_one(made: Callable[[], Any], body: bytes) -> None:
    effort = Effort(made(), body)
    assert isinstance(effort.error, errors.Unbatchable | errors.BadRequest)
    assert effort.calls < 12_000
    assert effort.memory < 2_000_000 + 2 * len(body)


@pytest.mark.parametrize("value", [b"[1,2]", b"[%b]" % b",".join([b"1"] * 1000)], ids=["at once", "in steps"])
def test_a_thousand_columns_are_batched_and_one_more_is_passed_on(value: bytes) -> None:
    by = listed("tfserving-columns")
    effort = Effort(by, b'{"inputs":%b}' % members(1000, value))
    assert len(effort.payload.columns) == 1000
    assert effort.calls < 45_000
    effort = Effort(by, b'{"inputs":%b}' % members(1001, value))
    assert isinstance(effort.error, errors.Unbatchable)
    assert effort.error.args[0] == errors.NotBatched.MEMBERS


def test_columns_of_a_large_body_are_found_and_read_in_steps() -> None:
    body = b'{"inputs":%b}' % members(1000, b"[%b]" % b",".join([b"0.25"] * 800))  # 4 MB
    effort = Effort(listed("tfserving-columns"), body)
    assert effort.payload.row_count == 800
    assert effort.steps >= len(body) // (256 * 1024)
    assert effort.calls < 8000


def test_columns_of_which_each_is_large_are_scanned_in_steps() -> None:
    column = b"[%b]" % b",".join([b"0.25"] * 1_000_000)
    body = b'{"inputs":{"a":%b,"b":%b}}' % (column, column)
    by = listed("tfserving-columns")
    effort = 0
    for _ in by.parse_in_steps(body, 1_000_000):
        effort += 1
    assert effort >= len(body) // (256 * 1024)


@pytest.mark.parametrize("text", [b":" * 200_000, b'\\":{' * 50_000], ids=["colons", "quotes"])
def test_columns_are_counted_and_not_what_looks_like_them(text: bytes) -> None:
    effort = Effort(listed("tfserving-columns"), b'{"inputs":{"a":["%b"],"b":[{"b64":"%b"}]}}' % (text, text))
    assert effort.payload.row_count == 1


@pytest.mark.parametrize("count", [1001, 5000])
def test_an_answer_with_too_many_columns_sends_its_requests_on_alone(count: int) -> None:
    by = listed("tfserving-columns")
    payload = by.parse(b'{"inputs":{"a":[1]}}', 10)
    parts = [messages.Part(messages.Request(payload.key, 1, payload=payload), 0, 1)] * 2
    with pytest.raises(errors.Uneven, match="more than 1000 members"):
        by.merge("b", "/x", parts).read(interface.UpstreamResponse(b'{"outputs":%b}' % members(count), {}))
    with pytest.raises(errors.Unbatchable):
        by.parse(b'{"inputs":{"a":[1]}}', 10)


def test_a_v1_request_with_too_many_members_beside_its_instances_is_passed_on() -> None:
    body = b'{"instances":[1],%b' % members(1001, b"1")[1:]
    with pytest.raises(errors.Unbatchable):
        v1.parse_request(body)


def test_a_request_over_v2_may_have_a_thousand_tensors() -> None:
    for by, write in (
        (v2_codec.Codec(models.ModelInfo(), lambda: None), tensors),
        (grpc_codec.Codec(models.ModelInfo(), lambda: None), rpc),
    ):
        assert by.parse(write(1000), 10).row_count == 1  # type: ignore[attr-defined]
        with pytest.raises(errors.Unbatchable):
            by.parse(write(1001), 10)  # type: ignore[attr-defined]


# --- the members of an object -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{}", []),
        (b" { } ", []),
        (b'{"a":1}', [b"1"]),
        (b' { "a" : -1.5e3 , "b":"x","c": true ,"d":null } ', [b"-1.5e3", b'"x"', b"true", b"null"]),
        (b'{"a":[1, {"b":2}] ,"b":{"a":"\\"}"}\n}', [b'[1, {"b":2}]', b'{"a":"\\"}"}']),
        (b'{"a":"\\u0031","\\"b":"\xc3\xa9"}', [b'"\\u0031"', b'"\xc3\xa9"']),
    ],
)
def test_members_are_where_they_were_written(text: bytes, expected: Iterable[bytes]) -> None:
    for before, after in ((b"", b""), (b"[0,", b"]")):
        found = steps.at_once(json_members.find(before + text + after, len(before), len(before) + len(text)))
        assert [(before + text + after)[at.value : at.stop] for at in found.values()] == expected


@pytest.mark.parametrize(
    "text",
    [b"", b"1", b"[]", b"{", b'{"a"}', b'{"a":}', b'{"a":1', b'{"a":1,', b'{"a":1,}', b'{,"a":1}', b'{"a":1{"b":2}',
     b'{"a":1 "b":2}', b'{"a":1}}', b'{"a":1}1', b'{"a":1.}', b'{"a":01}', b'{"a":1e}', b'{"a":tru}', b'{"a":"\n"}',
     b'{"a":[1,]}', b'{"a":NaN}', b'{"a\n":1}', b'{"\\x":1}', b'{a:1}', b'{"a":1,"a":2}', b'{"a":1,"\\u0061":2}'],
)  # fmt: skip
def test_what_is_no_object_or_has_twins_is_refused(text: bytes) -> None:
    with pytest.raises(errors.BadRequest):
        steps.at_once(json_members.find(text))
