"""AdmissionReview (admission.k8s.io/v1) as bytes in and bytes out, and what the mutating webhook answers.

Nothing here denies: a pod that cannot get the sidecar is admitted unchanged, with a warning. `validation` has what
people are told before that, when they apply a workload.

JSON is read by pydantic's parser: strict about NaN, encodings and trailing text, at most 200 levels deep. Where a
member comes twice the last one counts, as in the API server's own reading.
"""

from __future__ import annotations

import base64
import itertools
import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic_core

from carpool_injector.core import model, refusals

API_VERSION = "admission.k8s.io/v1"

# What the API server keeps of warnings: 256 characters of each once all are over 4096, nothing beyond those
# (k8s.io/apiserver, endpoints/filters/warning.go). Control characters would make it drop the warning.
_WARNING_LENGTH = 256
_ALL_WARNINGS_LENGTH = 4096
_INVALID = 422

Inject = Callable[[model.Object, model.Namespace], model.Outcome]


@dataclass(frozen=True, slots=True)
class Request:
    """What the API server asks. `kind` is "Pod" or, with its group, "Deployment.apps".

    `name` is empty where the API server is to make one (generateName).
    `object` is None where the operation has none (DELETE), and `old_object` where it is no UPDATE or DELETE.
    """

    uid: str
    operation: str
    kind: str
    version: str = "v1"
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    dry_run: bool = False
    object: model.Object | None = None
    old_object: model.Object | None = None

    @property
    def is_new_pod(self) -> bool:
        """Whether this is about the creation of a pod, the one thing that the mutating webhook changes."""
        return self.kind == "Pod" and self.operation == "CREATE" and not self.subresource


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered: a patch or none, warnings, and with `allowed` False a `message` for the person who applied."""

    allowed: bool = True
    patch: Sequence[model.Object] = ()
    warnings: Sequence[str] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer and what it came of. `result` and `reason` are from closed sets; `outcome` is of a pod's injection."""

    answer: Answer
    result: str
    reason: str = ""
    outcome: model.Outcome | None = None


class Unanswerable(Exception):
    """A review that cannot be answered now, through no fault of its object; the text says what was missing."""


def read(body: bytes | bytearray) -> Request:
    """The request in an AdmissionReview; raises refusals.Malformed, which says what is missing and where."""
    review = _object(_json(body), "the body")
    if review.get("kind") != "AdmissionReview" or review.get("apiVersion") != API_VERSION:
        found = f"{review.get('kind')!r} of {review.get('apiVersion')!r}"
        raise refusals.Malformed(
            f"kind and apiVersion: expected 'AdmissionReview' of {API_VERSION!r}, but got {found:.200}"
        )
    asked = _object(review.get("request"), "request")
    kind = _object(asked.get("kind"), "request.kind")
    request = Request(
        uid=_text(asked, "uid", required=True),
        operation=_text(asked, "operation", required=True),
        kind=".".join(
            filter(None, (_text(kind, "kind", "request.kind", required=True), _text(kind, "group", "request.kind")))
        ),
        version=_text(kind, "version", "request.kind"),
        namespace=_text(asked, "namespace"),
        name=_text(asked, "name"),
        subresource=_text(asked, "subResource"),
        dry_run=asked.get("dryRun") is True,
        object=_optional_object(asked, "object"),
        old_object=_optional_object(asked, "oldObject"),
    )
    if request.operation in ("CREATE", "UPDATE") and request.object is None:
        raise refusals.Malformed(
            f"request.object: expected an object, as the operation is {request.operation}, but got null"
        )
    return request


def write(uid: str, answer: Answer) -> bytes:
    """The AdmissionReview that carries an answer."""
    response: dict[str, Any] = {"uid": uid, "allowed": answer.allowed}
    if answer.patch:
        patch = json.dumps(answer.patch, separators=(",", ":"), allow_nan=False).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    if not answer.allowed:
        response["status"] = {
            "status": "Failure", "reason": "Invalid", "code": _INVALID, "message": answer.message,
        }  # fmt: skip
    if warnings := fit_warnings(answer.warnings):
        response["warnings"] = warnings
    return json.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}).encode()


def mutate(request: Request, namespace: model.Namespace, inject: Inject) -> Verdict:
    """What the mutating webhook answers to a request; `inject` is called for new pods only.

    Raises refusals.Malformed when the object is no pod.
    """
    if not request.is_new_pod or request.object is None:
        return Verdict(Answer(), "ignored", refusals.Skip.NOT_A_NEW_POD)
    outcome = inject(request.object, namespace)
    reason = outcome.refusal.code if outcome.refusal else outcome.decision.reason
    if outcome.plan:
        reason = ""
    answer = Answer(patch=outcome.patch, warnings=outcome.warnings)
    return Verdict(answer, outcome.result, reason, outcome)


def fit_warnings(warnings: Iterable[str]) -> list[str]:
    """Warnings as the API server passes them on whole: no control characters, none twice, within its lengths.

    A long one goes on in the next. What does not fit is counted in a last warning.
    """
    pieces = (textwrap.wrap(_clean(warning), _WARNING_LENGTH, break_on_hyphens=False) for warning in warnings)
    texts = list(dict.fromkeys(itertools.chain.from_iterable(pieces)))
    kept: list[str] = []
    room = _ALL_WARNINGS_LENGTH - _WARNING_LENGTH  # leaves some for the last, and for other webhooks
    for text in texts:
        room -= len(text)
        if room < 0:
            return [*kept, f"{len(texts) - len(kept)} more warnings do not fit here"]
        kept.append(text)
    return kept


def _clean(text: str) -> str:
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def _json(body: bytes | bytearray) -> Any:
    try:
        return pydantic_core.from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise refusals.Malformed(f"the body: expected an AdmissionReview in JSON, but {error}") from None


def _object(value: Any, where: str) -> model.Object:
    if isinstance(value, dict):
        return value
    raise refusals.Malformed(f"{where}: expected an object, but got {_name(value)}")


def _optional_object(parent: model.Object, key: str) -> model.Object | None:
    value = parent.get(key)
    return None if value is None else _object(value, f"request.{key}")


def _text(parent: model.Object, key: str, where: str = "request", *, required: bool = False) -> str:
    value = parent.get(key)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not value):
        raise refusals.Malformed(f"{where}.{key}: expected a text, but got {_name(value)}")
    return value


def _name(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a text", bool: "a boolean", type(None): "nothing"}
    return "an empty text" if value == "" else names.get(type(value), "a number")
