"""Deployments and InferenceServices built from the parts that differ, and what validating them comes to."""

from __future__ import annotations

from typing import Any

from carpool_injector import config_file
from carpool_injector.core import injection, model
from carpool_injector.objects import inference_services, review, validation
from tests.injector import reviews

Object = dict[str, Any]

CONFIG = config_file.parse(None)
RULES = validation.Rules(lambda pod, namespace: injection.inject(pod, CONFIG, namespace, model.Capabilities()), CONFIG)
ASKS = {"carpool.dev/inject": "true"}
MODE = inference_services.MODE


def deployment(template: Object, **metadata: Any) -> Object:
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", **metadata}, "spec": spec}


def template(labels: Object | None = None, **annotations: str) -> Object:
    container = {"name": "app", "image": "server:1", "args": ["uvicorn", "a:b", "--host=0.0.0.0", "--port=8000"]}
    metadata = {"labels": ASKS if labels is None else labels, "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": [container]}}


def service(predictor: Object | None = None, labels: Object | None = None, **more: Any) -> Object:
    metadata = {"name": "iris", "labels": ASKS if labels is None else labels, **more.pop("metadata", {})}
    spec = {"predictor": predictor or {"model": {"modelFormat": {"name": "sklearn"}}}, **more.pop("spec", {})}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": spec,
        **more,
    }


def verdict(thing: Object, old: Object | None = None, **members: Any) -> review.Verdict:
    return validation.validate(reviews.request(thing, "UPDATE" if old else "CREATE", old=old, **members), RULES)


def warnings(thing: Object, old: Object | None = None) -> str:
    return "\n".join(verdict(thing, old).answer.warnings)
