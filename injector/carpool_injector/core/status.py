"""The annotation `carpool.dev/status`: what was done to a pod, for people, for `check`, and for doing it again.

An annotation is what anybody may have written. So only numbers and names with fixed forms are read back from it, and
only edits that they describe are ever reversed.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import pydantic
from pydantic import alias_generators

from carpool_injector.core import errors, model, pod_annotations, pods

_Port = Annotated[int, pydantic.Field(ge=1, le=65535)]
_ToldBy = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


class Injected(pydantic.BaseModel):
    """How a pod was injected. `told_by` is the flag or variable that tells the app its port, `added` whether it is new.

    `grpc_…` are the same for gRPC. `batcher` is the value of KServe's batcher annotation that was taken over.
    """

    model_config = pydantic.ConfigDict(
        strict=True, frozen=True, extra="ignore", alias_generator=alias_generators.to_camel, populate_by_name=True
    )

    version: str
    config: str
    takeover: model.Takeover
    native: bool
    container: str
    app_port: _Port
    listen_port: _Port
    admin_port: _Port
    told_by: _ToldBy | None = None
    added: bool = False
    grpc_app_port: _Port | None = None
    grpc_listen_port: _Port | None = None
    grpc_told_by: _ToldBy | None = None
    grpc_added: bool | None = None
    batcher: Annotated[str | None, pydantic.Field(max_length=64)] = None

    def text(self) -> str:
        """The annotation's value."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


def read(pod: pods.Pod) -> Injected | None:
    """The status of a pod that was injected; None for other pods, and where the annotation and the pod disagree."""
    text = pod.metadata.annotations.get(pod_annotations.STATUS)
    if text is None or not any(container.name == model.CONTAINER for container in pod.all_containers):
        return None
    try:
        found = Injected.model_validate_json(text)
    except pydantic.ValidationError:
        return None
    is_app = found.container != model.CONTAINER and pod.container(found.container) is not None
    return found if is_app else None


def refused(version: str, refusal: errors.Refusal) -> dict[str, Any]:
    """The status of a pod that asked for the sidecar and cannot have it."""
    return {"version": version, "refused": refusal.code, "message": str(refusal)[:512]}


def text(status: dict[str, Any]) -> str:
    """A status as the annotation's value."""
    return json.dumps(status, separators=(",", ":"))
