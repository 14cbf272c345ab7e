"""What the admin decides for all pods: image, resources, defaults. Pods choose within it by annotations.

The file is YAML or JSON with the names in camelCase, as in the Helm chart's values. Everything a security review
asks about is here and cannot be set by an annotation: image, user, ports of the cluster's own components.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Annotated, Literal

import pydantic
from pydantic import alias_generators

import carpool_injector
from carpool_injector.core import values

SidecarMode = Literal["auto", "native", "classic"]
KServeBatcher = Literal["takeover", "leave"]

Port = Annotated[int, pydantic.Field(ge=1, le=65535)]
# What a reference to an image may consist of (distribution/reference), loosely: no blanks, no control characters.
_Image = Annotated[str, pydantic.Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._:/@-]{0,511}$")]
# The name of a Secret: a DNS subdomain.
_Secret = Annotated[
    str, pydantic.Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$", max_length=253)
]
_Channel = Annotated[str, pydantic.Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class _Form(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=alias_generators.to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class Amounts(_Form):
    """CPU and memory, as Kubernetes quantities."""

    cpu: values.Quantity
    memory: values.Memory


class Limits(_Form):
    """The same as limits. CPU may be left out: the sidecar then has what its node can spare."""

    cpu: values.Quantity | None = None
    memory: values.Memory


class Resources(_Form):
    """What a sidecar container requests and is limited to; quotas and HPAs need that said.

    `guaranteed` is both at once in a pod of the class Guaranteed, which would lose its class if they differed, and
    might find no node if it requested what others are limited to. It counts between `requests` and `limits`.
    """

    requests: Amounts = Amounts(cpu="100m", memory="128Mi")
    limits: Limits = Limits(cpu="1", memory="1Gi")
    guaranteed: Amounts = Amounts(cpu="500m", memory="512Mi")

    @pydantic.model_validator(mode="after")
    def _check_order(self) -> Resources:
        for name in ("cpu", "memory"):
            request, limit = getattr(self.requests, name), getattr(self.limits, name)
            if limit is not None and values.amount(request) > values.amount(limit):
                raise ValueError(f"requests.{name} ({request}) must not exceed limits.{name} ({limit})")
        return self

    def in_guaranteed(self) -> dict[str, str]:
        """Request and limit of a sidecar in a pod of the class Guaranteed, of cpu and memory."""
        found = {}
        for name in ("cpu", "memory"):
            request, limit = getattr(self.requests, name), getattr(self.limits, name)
            least = max(getattr(self.guaranteed, name), request, key=values.amount)
            found[name] = least if limit is None else min(least, limit, key=values.amount)
        return found


class Config(_Form):
    """The admin's choices. Read it with `config_file.parse`, which tells what is wrong in words."""

    image: _Image = f"carpool-sidecar:{carpool_injector.__version__}"
    """The sidecar's image, best by digest."""
    channels: dict[_Channel, _Image] = pydantic.Field(default_factory=dict)
    """Other images, by the name that `carpool.dev/image-channel` may give; no annotation carries a reference."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """None leaves it to Kubernetes: Always for the tag latest, else IfNotPresent."""
    image_pull_secrets: Annotated[list[_Secret], pydantic.Field(max_length=16)] = pydantic.Field(default_factory=list)
    """Names of Secrets with which sidecars' images are pulled. Each injected pod gets those that it does not name yet;
    its namespace has to have them."""
    resources: Resources = Resources()
    """What a sidecar requests and is limited to. In a pod of the class Guaranteed both are `guaranteed`. Without
    `limits.cpu` it has no limit of CPU in other pods."""
    max_resources: Amounts = Amounts(cpu="4", memory="8Gi")
    """What annotations may ask for, at most."""
    defaults: dict[str, str] = pydantic.Field(default_factory=dict)
    """Settings for pods that do not say otherwise: annotations without their prefix, e.g. max-batch-size: "16"."""
    kserve_batcher: KServeBatcher = "leave"
    """takeover: a KServe pod with `spec.predictor.batcher` gets Carpool instead of KServe's agent."""
    sidecar_mode: SidecarMode = "auto"
    """native: an init container with restartPolicy Always; classic: a container; auto: native where it works."""
    run_as_user: Annotated[int, pydantic.Field(ge=1, le=2**31 - 1)] | None = None
    """None leaves the user to the image (and to OpenShift, which assigns one)."""
    port: Port = 9081
    """Where sidecars listen that do not take the app's own port over; another one where this is taken."""
    admin_port: Port = 9082
    """Their admin port; likewise."""

    @pydantic.model_validator(mode="after")
    def _check_ports(self) -> Config:
        if self.port == self.admin_port:
            raise ValueError(f"port and adminPort must differ; both are {self.port}")
        return self

    @cached_property
    def hash(self) -> str:
        """Eight hexadecimal digits that differ when anything here does."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:8]
