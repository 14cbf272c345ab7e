"""`may_inject`: the plan, or every reason why not, each with its fix."""

from __future__ import annotations

from typing import Any

from carpool_injector.core import injection, model, permission, pods
from carpool_injector.core.config import Config
from carpool_injector.core.refusals import Skip

Object = dict[str, Any]
NAMESPACE = model.Namespace("ml")
SERVER = {"name": "app", "args": ["uvicorn", "--host=0.0.0.0"]}


def asked(*containers: Object, annotations: Object | None = None, **spec: Any) -> Object:
    metadata = {"labels": {"carpool.dev/inject": "true"}, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"containers": list(containers) or [SERVER], **spec}}


def may(pod: Object, capabilities: model.Capabilities | None = None, for_all: bool = False) -> permission.Answer:
    able = capabilities or model.Capabilities()
    return permission.may_inject(pods.read(pod), NAMESPACE, Config(), able, for_all=for_all)


def test_a_pod_that_can_have_the_sidecar_gets_a_plan_and_no_reasons() -> None:
    answer = may(asked())
    assert answer.plan is not None
    assert (answer.reasons, answer.skip, answer.plan.takeover) == ((), None, "port-swap")


def test_all_reasons_are_told_at_once_and_each_has_a_fix() -> None:
    tls = {"name": "app", "args": ["uvicorn", "--host=::", "--ssl-keyfile=/k"]}
    pod = asked(tls, hostNetwork=True, os={"name": "windows"}, volumes=[{"name": "carpool-no-token"}])
    answer = may(pod)
    assert answer.plan is None
    assert [reason.code for reason in answer.reasons] == ["windows", "host-network", "name-taken", "tls"]
    assert all(reason.fix for reason in answer.reasons)
    outcome = injection.inject(pod, Config(), NAMESPACE, model.Capabilities())
    assert outcome.refusal is not None
    assert outcome.refusal.code == "windows"
    assert [warning.startswith("no sidecar: ") for warning in outcome.warnings] == [True] * 4


def test_bad_settings_do_not_hide_what_else_is_wrong() -> None:
    answer = may(asked(annotations={"carpool.dev/port": "x y"}, hostNetwork=True))
    assert [reason.code for reason in answer.reasons] == ["bad-annotation", "host-network"]


def test_a_step_that_needs_another_is_left_out_without_it() -> None:
    answer = may(asked({"name": "app", "image": "acme/own"}))
    assert [reason.code for reason in answer.reasons] == ["no-port"]


def test_a_pod_that_was_not_meant_is_skipped_without_reasons() -> None:
    vllm = asked({"name": "app", "args": ["vllm", "serve", "m"]}, hostNetwork=True)
    assert may(vllm, for_all=True) == permission.Answer(skip=Skip.BATCHES_ITSELF)
    assert may(vllm).skip is None
