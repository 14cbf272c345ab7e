"""What the mutating webhook answers, as bytes in and bytes out."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from carpool_injector.core import model, refusals
from carpool_injector.objects import review
from tests.injector import reviews

NAMESPACE = model.Namespace("models")


def answer(asked: dict[str, Any], inject: review.Inject = reviews.inject) -> dict[str, Any]:
    """The response to a review, through bytes both ways."""
    request = review.read(json.dumps(asked).encode())
    verdict = review.mutate(request, model.Namespace(request.namespace), inject)
    return reviews.response(review.write(request.uid, verdict.answer))


def pod(**labels: str) -> dict[str, Any]:
    return {**reviews.POD, "metadata": {"generateName": "iris-", "labels": labels}}


def test_the_answer_carries_the_uid_and_a_patch_that_applies() -> None:
    found = answer(reviews.asking())
    assert found["uid"] == "705ab4f5-6393-11e8-b7cc-42010a800002"
    assert found["allowed"] is True
    assert reviews.patched(reviews.POD, found)["spec"]["initContainers"][0]["name"] == "carpool"
    assert found["warnings"] == ["a word of warning"]


def test_the_namespace_of_the_request_counts_and_not_that_of_the_pod() -> None:
    stray = {**reviews.POD, "metadata": {**reviews.POD["metadata"], "namespace": "elsewhere"}}
    found = answer(reviews.asking(stray))
    assert reviews.patch(found)[0]["value"][0]["image"] == "sidecar-for-models"


def test_a_pod_that_nobody_asked_for_is_answered_without_patch_and_warnings() -> None:
    assert answer(reviews.asking(pod())) == {"uid": reviews.asking()["request"]["uid"], "allowed": True}


def test_a_dry_run_gets_the_same_patch() -> None:
    assert answer(reviews.asking(dryRun=True)) == answer(reviews.asking())
    assert review.read(json.dumps(reviews.asking(dryRun=True)).encode()).dry_run


def test_a_refused_pod_is_admitted_with_its_status_and_a_warning_with_the_fix() -> None:
    found = answer(reviews.asking(pod(fate="refused")))
    assert found["allowed"] is True
    assert reviews.patch(found)[0]["value"] == {"carpool.dev/status": "{}"}
    assert found["warnings"] == [
        "no sidecar: the app's port cannot be moved; set carpool.dev/app-port-arg",
    ]


@pytest.mark.parametrize(
    ("thing", "members"),
    [
        (reviews.POD, {"operation": "UPDATE", "old": reviews.POD}),
        (None, {"operation": "DELETE", "old": reviews.POD}),
        (reviews.POD, {"operation": "CONNECT"}),
        (reviews.POD, {"operation": "UPDATE", "subResource": "ephemeralcontainers"}),
        (reviews.POD, {"operation": "CREATE", "subResource": "binding"}),
        ({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"labels": {"carpool.dev/inject": "true"}}}, {}),
        ({"apiVersion": "acme.example/v1", "kind": "Pod2"}, {}),
    ],
)
def test_anything_but_the_creation_of_a_pod_is_allowed_untouched(thing: Any, members: dict[str, Any]) -> None:
    found = answer(reviews.asking(thing, **members))
    assert found["allowed"] is True
    assert "patch" not in found
    assert "warnings" not in found


def test_a_pod_of_another_group_is_no_pod() -> None:
    asked = reviews.asking()
    asked["request"]["kind"] = {"group": "metrics.k8s.io", "version": "v1beta1", "kind": "Pod"}
    assert "patch" not in answer(asked)


def changed(**members: Any) -> dict[str, Any]:
    return {**reviews.asking(), **members}


def asked_with(**members: Any) -> dict[str, Any]:
    review_ = reviews.asking()
    kept = {key: value for key, value in {**review_["request"], **members}.items() if value is not ...}
    return {**review_, "request": kept}


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        (changed(kind="Pod"), "kind and apiVersion"),
        (changed(apiVersion="admission.k8s.io/v1beta1"), "'admission.k8s.io/v1beta1'"),
        (changed(request=None), "request: expected an object, but got nothing"),
        (changed(request=[]), "request: expected an object, but got an array"),
        (asked_with(uid=...), "request.uid: expected a text, but got nothing"),
        (asked_with(uid=""), "request.uid: expected a text, but got an empty text"),
        (asked_with(uid=5), "request.uid: expected a text, but got a number"),
        (asked_with(operation=...), "request.operation"),
        (asked_with(kind="Pod"), "request.kind: expected an object, but got a text"),
        (asked_with(kind={"group": ""}), "request.kind.kind"),
        (asked_with(namespace={}), "request.namespace: expected a text, but got an object"),
        (asked_with(object=None), "request.object: expected an object"),
        (asked_with(object="pod"), "request.object: expected an object, but got a text"),
        (asked_with(object=[True]), "request.object: expected an object, but got an array"),
        (asked_with(oldObject=True), "request.oldObject: expected an object, but got a boolean"),
    ],
)
def test_what_is_no_review_is_refused_with_where_and_what(asked: dict[str, Any], where: str) -> None:
    with pytest.raises(refusals.Malformed, match=where.replace(".", r"\.")):
        review.read(json.dumps(asked).encode())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "EOF"),
        (b"hello", "line 1 column 1"),
        (b"[]", "the body: expected an object, but got an array"),
        (b'{"kind": NaN}', "line 1 column 10"),
        (b'{"kind": Infinity}', "line 1 column 10"),
        (b'{"kind": "\xff"}', "unicode"),
        (b"{} {}", "trailing"),
        (b"[" * 1_000_000, "recursion"),
        (b'{"a":' * 1_000 + b"1" + b"}" * 1_000, "recursion"),
    ],
)
def test_what_is_no_json_is_refused_however_deep_it_is(body: bytes, why: str) -> None:
    with pytest.raises(refusals.Malformed, match=why):
        review.read(body)


def test_of_members_that_come_twice_the_last_one_counts() -> None:
    body = json.dumps(reviews.asking()).replace('"uid"', '"uid": "first", "uid"').encode()
    assert review.read(body).uid == reviews.asking()["request"]["uid"]


def test_a_denial_is_a_status_with_the_message() -> None:
    found = reviews.response(review.write("1", review.Answer(allowed=False, message="because")))
    assert found == {
        "uid": "1",
        "allowed": False,
        "status": {"status": "Failure", "reason": "Invalid", "code": 422, "message": "because"},
    }


@hypothesis.given(st.binary(max_size=200))
def test_any_bytes_are_a_review_or_malformed(body: bytes) -> None:
    try:
        found: object = review.read(body)
    except refusals.Malformed as error:
        found = error
    assert isinstance(found, refusals.Malformed)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_MEMBERS = st.sampled_from(
    ["uid", "kind", "operation", "object", "oldObject", "namespace", "name", "dryRun", "options"]
)


@hypothesis.given(_MEMBERS, _JSON)
def test_a_review_with_any_member_replaced_is_answered_or_malformed(member: str, value: object) -> None:
    asked = reviews.asking()
    asked["request"][member] = value
    try:
        told = answer(asked)["allowed"]
    except refusals.Malformed as error:
        told = bool(str(error))
    assert told is True


# --- warnings --------------------------------------------------------------------------------------------------------


def test_a_long_warning_goes_on_in_the_next() -> None:
    words = " ".join(f"word-{number}" for number in range(60))
    found = review.fit_warnings([words])
    assert len(found) == 2
    assert " ".join(found) == words


def test_warnings_beyond_what_the_api_server_keeps_are_counted() -> None:
    found = review.fit_warnings(f"{number}: " + "x" * 240 for number in range(40))
    assert sum(map(len, found)) <= 4096
    assert found[-1] == f"{40 - (len(found) - 1)} more warnings do not fit here"


def test_control_characters_and_repetitions_are_taken_out_of_warnings() -> None:
    assert review.fit_warnings(["a\nb\x00c\x7f", "a b c", "", "  "]) == ["a b c"]


@hypothesis.given(st.lists(st.text(max_size=600), max_size=40))
def test_warnings_always_fit(warnings: list[str]) -> None:
    found = review.fit_warnings(warnings)
    assert all(0 < len(text) <= 256 and text.isprintable() for text in found)
    assert sum(map(len, found)) <= 4096
    assert len(set(found)) == len(found)
