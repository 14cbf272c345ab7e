"""`carpool-injector` run in this process, and the manifests that runs of it are about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from click import testing

from carpool_injector import cli

Run = Callable[..., testing.Result]

DEPLOYMENT = """\
# The iris model, owned by the flower team.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: iris   # short
  namespace: models
spec:
  selector:
    matchLabels: &labels {app: iris}
  template:
    metadata:
      labels: *labels
    spec:
      containers:
      - name: server
        image: kserve-sklearnserver:0.15   # pinned
        args:
          - --http_port=8080
          - "--model_name=iris"

        ports:
        - containerPort: 8080
      # nothing else
"""
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: iris}\n"
ISVC = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: flowers
spec:
  predictor:
    model:
      modelFormat: {name: sklearn}   # by KServe
      storageUri: gs://bucket/flowers
"""


def run(*args: Any, text: str | None = None, **environment: str) -> testing.Result:
    return testing.CliRunner().invoke(cli.program, [str(arg) for arg in args], input=text, env=environment)
