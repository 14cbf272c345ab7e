"""What is asked of the Kubernetes API, and what its refusals mean. Pure; `kube` does the asking.

The failures are few because each is a decision somebody makes: wait, read again, ask the admin, give up.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from typing import Any, NamedTuple

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
        parts = [*place, self.resource, *([self.name] if self.name is not None else [])]
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


def _failure(call: Call, status: int, told: str) -> Failure:
    if status == 401:
        return Forbidden(
            f"{call}: the API server does not accept our credentials ({told}); renew the token or kubeconfig"
        )
    if status == 403:
        return Forbidden(f"{call}: forbidden ({told}); {_grant(call)}")
    if status == 404:
        return NotFound(f"{call}: not found ({told}); check the name, the namespace and that its kind is installed")
    if status == 409:
        return Conflict(f"{call}: changed or created by somebody else meanwhile ({told}); read it again")
    if status == 410:
        return Expired(f"{call}: too old to go on from ({told}); list again")
    if status == 429 or status >= 500:
        return Unavailable(f"{call}: the API server cannot answer now ({told}); try again later")
    return Rejected(f"{call}: not accepted ({told}); mend what it names")


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
