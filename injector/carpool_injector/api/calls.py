"""Calls to the Kubernetes API, the failures they can end in, and the parts of objects that are read. Pure.

The failures are few because each is a decision somebody makes: wait, read again, ask the admin, give up. `kube` sends
the calls.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, NamedTuple

from carpool_injector.core import model

_METHODS = {"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "patch": "PATCH"}


class Failure(Exception):
    """A call that did not work; the message names it and the next step."""


class Unconfigured(Failure):
    """There is no cluster to talk to: no service account, no usable kubeconfig."""


class Unavailable(Failure):
    """The API server cannot be reached, is overloaded or broken: try again later."""


class Conflict(Failure):
    """Somebody else has changed or created the object meanwhile: read again, then decide again."""


class Forbidden(Failure):
    """The API server does not let this account do that."""


class NotFound(Failure):
    """The object, its namespace or its kind does not exist."""


class Rejected(Failure):
    """The API server, or a webhook it asked, does not accept the object."""


class Expired(Failure):
    """A watch or a list cannot go on from where it was: begin anew."""


class Call(NamedTuple):
    """What is asked, in RBAC's words; `group` is "" (core), "GROUP/VERSION", or "/" for what is outside all groups."""

    verb: str
    resource: str
    namespace: str | None = None
    name: str | None = None
    group: str = ""

    @property
    def method(self) -> str:
        """The HTTP method."""
        return _METHODS[self.verb]

    @property
    def path(self) -> str:
        """The URL's path."""
        place = ["namespaces", self.namespace] if self.namespace is not None else []
        resource, _, part = self.resource.partition("/")  # such as pods/eviction
        parts = [*place, resource, *([self.name] if self.name is not None else []), *([part] if part else [])]
        root = {"": "/api/v1/", "/": "/"}.get(self.group, f"/apis/{self.group}/")
        return root + "/".join(urllib.parse.quote(part, safe="") for part in parts)

    def __str__(self) -> str:
        return " ".join([self.verb, self.resource, *filter(None, ["/".join(filter(None, self[2:4]))])])


def failure(call: Call, status: int, body: bytes) -> Failure:
    """The failure for an answer with an HTTP status that is no success; `body` is mostly the API's Status object."""
    return _failure(call, status, _message(body) or f"HTTP status {status}")


def failure_of(call: Call, status: Mapping[str, Any]) -> Failure:
    """The failure that a Status object tells, as in a watch's event of type ERROR."""
    return _failure(call, int(status.get("code") or 500), str(status.get("message") or status.get("reason") or "?"))


def unreachable(call: Call, error: BaseException) -> Unavailable:
    """The failure for an answer that never came, or cannot be read."""
    reason = str(error) or type(error).__name__
    return Unavailable(f"{call}: no answer from the API server ({reason}); check that it runs and can be reached")


_UNAVAILABLE = (Unavailable, "the API server cannot answer now ({told}); try again later")
_REJECTED = (Rejected, "not accepted ({told}); mend what it names")
_BY_STATUS: Mapping[int, tuple[type[Failure], str]] = {
    401: (Forbidden, "the API server does not accept our credentials ({told}); renew the token or kubeconfig"),
    403: (Forbidden, "forbidden ({told}); {grant}"),
    404: (NotFound, "not found ({told}); check the name, the namespace and that its kind is installed"),
    409: (Conflict, "changed or created by somebody else meanwhile ({told}); read it again"),
    410: (Expired, "too old to go on from ({told}); list again"),
    429: _UNAVAILABLE,
}


def _failure(call: Call, status: int, told: str) -> Failure:
    kind, words = _BY_STATUS.get(status) or (_UNAVAILABLE if status >= 500 else _REJECTED)
    return kind(f"{call}: {words.format(told=told, grant=_grant(call))}")


def _message(body: bytes) -> str:
    try:
        status = json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()[:300]
    return str(status.get("message") or "") if isinstance(status, dict) else ""


def _grant(call: Call) -> str:
    group = call.group.partition("/")[0]
    kind = "Role" if call.namespace is not None else "ClusterRole"
    return (
        f'if that is RBAC, a {kind} of this account needs: apiGroups: ["{group}"], resources: ["{call.resource}"], '
        f'verbs: ["{call.verb}"]'
    )


Object = dict[str, Any]
Change = tuple[str, model.Namespace | None]
"""The name of a namespace, and what it is now; None: it has gone."""

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


def namespace(found: Object) -> model.Namespace:
    """The part of a Namespace that decisions need."""
    metadata = found["metadata"]
    return model.Namespace(metadata["name"], metadata.get("labels") or {}, metadata.get("annotations") or {})


def version(*texts: object) -> model.Version | None:
    """Major and minor of the first that is a version ("v1.33.4-gke.1", "1.29+"); None where there is none."""
    found = (_VERSION.match(text) for text in texts if isinstance(text, str))
    return next(((int(match[1]), int(match[2])) for match in found if match), None)


def encoded(value: bytes) -> str:
    """As values of a Secret and caBundles are written."""
    return base64.b64encode(value).decode()
