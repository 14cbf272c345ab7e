"""Pods to take over, and what comes of it: the outcome, the plan or the refusal."""

from __future__ import annotations

import copy
from typing import Any

from carpool_injector.core import injection, model, refusals
from carpool_injector.core.config import Config
from tests.injector import pods as sample_pods

Object = dict[str, Any]

UVICORN = {"name": "app", "args": ["uvicorn", "a:b", "--host=0.0.0.0", "--port=8000"]}
UNKNOWN = {"name": "app", "image": "acme/scorer:1"}


def plain(*containers: Object, annotations: Object | None = None, **settings: str) -> Object:
    chosen = {f"carpool.dev/{key.replace('_', '-')}": value for key, value in settings.items()}
    metadata = {"labels": {"carpool.dev/inject": "true"}, "annotations": {**chosen, **(annotations or {})}}
    return {"metadata": metadata, "spec": {"containers": copy.deepcopy(list(containers))}}


def outcome(
    given: Object, config: Config | None = None, capabilities: model.Capabilities | None = None
) -> model.Outcome:
    cluster = capabilities or model.Capabilities()
    return injection.inject(given, config or Config(), model.Namespace("ml"), cluster)


def plan(given: Object, config: Config | None = None, capabilities: model.Capabilities | None = None) -> model.Plan:
    found = outcome(given, config, capabilities)
    assert found.plan is not None, found.refusal
    return found.plan


def refusal(given: Object) -> refusals.Refusal:
    found = outcome(given)
    assert found.refusal is not None, found.plan
    return found.refusal


def variables(pod: Object, name: str) -> Object:
    return {item["name"]: item.get("value") for item in sample_pods.container(pod, name).get("env") or ()}
