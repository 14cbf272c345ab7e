"""Kubernetes objects as raw JSON: the parts the injector reads, and those it writes. Pure; `kube` sends them."""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from carpool_injector.core import model

Object = dict[str, Any]
Version = tuple[int, int]
Change = tuple[str, str, Mapping[str, str], Mapping[str, str]]

_VERSION = re.compile(r"v?(\d+)\.(\d+)")


class Secret(NamedTuple):
    """A Secret's decoded data, and the version to name when writing it back."""

    data: dict[str, bytes]
    resource_version: str

    def __repr__(self) -> str:
        """Without the values: what has a repr ends up in a log some day."""
        return f"Secret({', '.join(sorted(self.data))} at version {self.resource_version})"


def secret(found: Object) -> Secret:
    """The part of a Secret that matters here. Raises ValueError when its data is not base64."""
    data = {key: base64.b64decode(value or "") for key, value in (found.get("data") or {}).items()}
    return Secret(data, found["metadata"]["resourceVersion"])


def secret_body(
    name: str, data: Mapping[str, bytes], resource_version: str | None, labels: Mapping[str, str]
) -> Object:
    """A new Secret, or with a `resource_version` the merge patch (RFC 7396) that sets these keys and labels."""
    metadata = {"name": name, "labels": dict(labels)}
    body: Object = {"data": {key: _encoded(value) for key, value in data.items()}, "metadata": metadata}
    if resource_version is None:
        return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", **body}
    metadata["resourceVersion"] = resource_version
    return body


def ca_bundle_body(configuration: Object, pem: bytes) -> Object:
    """The strategic merge patch that gives every entry of a webhook configuration this caBundle."""
    client = {"caBundle": _encoded(pem)}
    entries = [{"name": entry["name"], "clientConfig": client} for entry in configuration.get("webhooks") or ()]
    return {"metadata": {"resourceVersion": configuration["metadata"]["resourceVersion"]}, "webhooks": entries}


def event_body(
    namespace: str, owner: Mapping[str, Any], reason: str, message: str, component: str, now: datetime.datetime
) -> Object:
    """A Warning (core/v1 Event) about `owner` (apiVersion, kind, name, uid)."""
    moment = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{owner['name']}.", "namespace": namespace},
        "involvedObject": {**owner, "namespace": namespace},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": component},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


def namespace(found: Object) -> model.Namespace:
    """The part of a Namespace that decisions need."""
    metadata = found["metadata"]
    return model.Namespace(metadata["name"], metadata.get("labels") or {}, metadata.get("annotations") or {})


def change(kind: str, found: Object) -> Change:
    """A namespace's change of this kind."""
    seen = namespace(found)
    return kind, seen.name, seen.labels, seen.annotations


def changes_from_anew(known: set[str], namespaces: Iterable[Object]) -> Iterator[Change]:
    """What a new list tells one who knew these: DELETED for who has gone, ADDED for who is there, SYNCED.

    Brings `known` up to date.
    """
    found = [change("ADDED", one) for one in namespaces]
    names = {name for _, name, _, _ in found}
    yield from (("DELETED", name, {}, {}) for name in sorted(known - names))
    known.clear()
    known.update(names)
    yield from found
    yield "SYNCED", "", {}, {}


def version(text: str) -> Version:
    """Major and minor of "v1.33.4-gke.1", "1.29+". Raises ValueError."""
    match = _VERSION.match(text)
    if match is None:
        raise ValueError(f"not a version: {text!r}")
    return int(match[1]), int(match[2])


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
