"""Members of a batch's answer that the operator named: each caller gets them as they were written, and no others."""

from __future__ import annotations

import json
import re
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from carpool.program import shared_names
from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import interface, steps, v1

NAMES = ("model_name", "modelVersion", "x.y-z")
OWN = ("message", "batchId", "predictions")


def call(names: tuple[str, ...] = NAMES) -> interface.UpstreamRequest:
    """That of a batch whose callers get these members."""
    payload = v1.parse_request(b'{"instances":[1,2]}')
    part = messages.Part(messages.Request("key", 2, payload=payload), 0, 2)
    return v1.Codec(names).merge("the-batch", "/t", [part])


def answers(body: bytes, names: tuple[str, ...] = NAMES) -> list[bytes]:
    """What a caller gets, the answer read as a small one and as a large one."""
    response = interface.UpstreamResponse(body, {})
    found = [call(names).read(response)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interface, "LARGE_ANSWER", 0)
        found.append(call(names).read(response))
    return [v1.render("id", each.list_name, [each.rows], each.members) for each in found]


@pytest.mark.parametrize(
    ("body", "given"),
    [
        (b'{"predictions":[1]}', b""),
        (b'{"predictions":[1],"other":"secret"}', b""),
        (b'{"model_name":"m","predictions":[1]}', b'"model_name":"m",'),
        (b'{ "predictions" : [1] , "model_name" : "m" }', b'"model_name":"m",'),
        (
            b'{"modelVersion":1.50,"predictions":[1],"model_name":"\\u00e9"}',
            b'"model_name":"\\u00e9","modelVersion":1.50,',
        ),
        (b'{"predictions":[1],"x.y-z":{"b" : [1 ,\n2]}}', b'"x.y-z":{"b" : [1 ,\n2]},'),
        (b'{"predictions":[1],"model_name":null}', b'"model_name":null,'),
        (b'{"model_name":"a","predictions":[1],"model_name":"b"}', b'"model_name":"b",'),
        (b'{"model\\u005fname":"a","predictions":[1]}', b'"model_name":"a",'),
        (b'{"Model_Name":"a","predictions":[1]}', b""),
        (
            b'{"predictions":[1],"modelVersion":{"model_name":"inner"},"y":{"model_name":1}}',
            b'"modelVersion":{"model_name":"inner"},',
        ),
    ],
)
def test_members_that_are_named_reach_the_caller_as_they_were_written(body: bytes, given: bytes) -> None:
    assert answers(body) == [b'{"message":"","batchId":"id",%b"predictions":[1]}' % given] * 2


def test_a_list_of_another_name_keeps_it() -> None:
    said = b'{"message":"","batchId":"id","model_name":"m","outputs":[1]}'
    assert answers(b'{"outputs":[1],"model_name":"m"}') == [said] * 2


def test_without_names_nothing_but_the_predictions_gets_through() -> None:
    body = b'{"model_name":"m","predictions":[1]}'
    assert answers(body, ()) == [b'{"message":"","batchId":"id","predictions":[1]}'] * 2


def test_a_member_that_is_too_long_for_every_caller_to_have_is_left_out() -> None:
    fits = b'"%b"' % (b"x" * (v1.LONGEST_MEMBER - 2))
    assert all(fits in said for said in answers(b'{"predictions":[1],"model_name":%b}' % fits))
    body = b'{"predictions":[1],"model_name":"%b","modelVersion":1}' % (b"x" * (v1.LONGEST_MEMBER - 1))
    assert answers(body) == [b'{"message":"","batchId":"id","modelVersion":1,"predictions":[1]}'] * 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        b'{"model_name":"m"}',
        b'{"predictions":[1],"model_name":nan}',
        b'{"predictions":[1],"model_name":"\xff"}',
    ],
)
def test_an_answer_that_is_none_fails_as_it_does_without_names(body: bytes) -> None:
    with pytest.raises(errors.UpstreamBroken) as plain:
        steps.at_once(v1.parse_answer(interface.UpstreamResponse(body, {})))
    with pytest.raises(errors.UpstreamBroken) as named:
        call().read(interface.UpstreamResponse(body, {}))
    assert str(named.value) == str(plain.value)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)
_names = st.sampled_from([*NAMES, *OWN, "outputs", "error", "Model_Name"]) | st.text()


@given(
    others=st.dictionaries(_names, _json, max_size=6), predictions=st.lists(_json), at=st.integers(0, 6), data=st.data()
)
def test_no_caller_ever_gets_a_member_that_is_not_named(
    others: dict[str, Any], predictions: list[Any], at: int, data: st.DataObject
) -> None:
    others.pop("predictions", None)
    members = list(others.items())
    members.insert(min(at, len(members)), ("predictions", predictions))
    body = json.dumps(
        dict(members), ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1]))
    )
    if "\\ud" in body:  # half a character is not for JSON in UTF-8
        body = json.dumps(dict(members))
    names = data.draw(st.sets(st.sampled_from(NAMES)))
    for said in answers(body.encode(errors="replace"), tuple(names)):
        found = json.loads(said)
        assert found.keys() == {*OWN, *(others.keys() & names)}
        assert found == {"message": "", "batchId": "id", "predictions": predictions} | {
            name: value for name, value in others.items() if name in names
        }
        assert len(json.loads(said, object_pairs_hook=list)) == len(found)


@given(st.text() | st.sampled_from([*OWN, "BATCHID", "error"]))
def test_a_name_that_would_be_no_json_or_an_answers_own_is_refused(name: str) -> None:
    own = {*(each.lower() for each in OWN), "outputs", "error"}
    if name.lower() in own or not name.isascii() or not name.replace(".", "_").replace("-", "_").isidentifier():
        with pytest.raises(ValueError, match=re.escape(repr(name))):
            shared_names.read_members((name,))
    elif len(name) <= 64 and name[0] not in ".-":
        assert shared_names.read_members((name,)) == (name,)
        assert json.dumps(name) == f'"{name}"'
