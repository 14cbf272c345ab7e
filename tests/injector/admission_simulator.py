"""A pod's way through an API server's mutating admission, for webhooks that are functions.

After k8s.io/apiserver (pkg/admission/reinvocation.go, pkg/admission/plugin/webhook/mutating/dispatcher.go): the
in-tree plugins, then the webhooks one by one, sorted by the name of their configuration. If a webhook changed the
object, all of that happens once more: in-tree plugins always, a webhook only if its reinvocationPolicy is IfNeeded and
the object changed after its turn. There is no third round, so what needs one never converges in a cluster.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jsonpatch

from tests.injector import api_defaults, istio_model, kserve_model

Object = dict[str, Any]
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclasses.dataclass(frozen=True)
class Webhook:
    """A mutating webhook: the pod in, an RFC 6902 patch out."""

    name: str
    review: Callable[[Object], list[Object]]
    reinvoked: bool = True


@dataclasses.dataclass(frozen=True)
class Admitted:
    """What is stored, and which webhook was called in which round (0 or 1), in order."""

    pod: Object
    calls: tuple[tuple[str, int], ...]


def admit(pod: Object, webhooks: Sequence[Webhook], service_account_token: bool = True) -> Admitted:
    """Send a pod through. Raises what applying a patch raises: a patch that does not fit is a bug of its webhook."""
    chain = _Chain(sorted(webhooks, key=lambda webhook: webhook.name), service_account_token)
    stored = chain.run(api_defaults.defaulted(pod))
    return Admitted(stored, tuple(chain.calls))


def ours(inject: Callable[[Object], Any], name: str = "zz-carpool") -> Webhook:
    """Our webhook, from a function that returns an outcome with a `patch`."""
    return Webhook(name, lambda pod: inject(pod).patch)


def kserve(settings: kserve_model.Settings | None = None) -> Webhook:
    """KServe's webhook under the name it is installed with.

    It has been called again when needed since KServe knows native sidecars.
    """
    known = settings or kserve_model.Settings()

    def review(pod: Object) -> list[Object]:
        return jsonpatch.make_patch(pod, kserve_model.mutate(pod, known)).patch

    return Webhook("inferenceservice.serving.kserve.io", review, reinvoked=known.knows_native_sidecars)


def istio(settings: istio_model.Settings | None = None, reinvoked: bool = False) -> Webhook:
    """Istio's webhook under the name it is installed with; its chart says that it is never called again."""

    def review(pod: Object) -> list[Object]:
        after = istio_model.mutate(pod, settings)
        # Member by member: jsonpatch's differences of lists in another order do not always apply.
        return [{"op": "add", "path": f"/{key}", "value": after[key]} for key in after if after[key] != pod.get(key)]

    return Webhook(istio_model.NAME, review, reinvoked=reinvoked)


class _Chain:
    """Both rounds of one request."""

    def __init__(self, webhooks: Sequence[Webhook], service_account_token: bool) -> None:
        self._webhooks = webhooks
        self._token = service_account_token
        self.calls: list[tuple[str, int]] = []
        # Names of webhooks that may be called again: those that had their turn, and those of them after whose turn
        # the object changed.
        self._had_turn: set[str] = set()
        self._again: set[str] = set()

    def run(self, pod: Object) -> Object:
        first = self._round(self._in_tree(pod), 0)
        if not self._changed:
            return first
        second = self._in_tree(first)
        if second != first:
            self._mark()
        return self._round(second, 1)

    def _in_tree(self, pod: Object) -> Object:
        return mount_token(pod) if self._token else pod

    def _round(self, pod: Object, number: int) -> Object:
        self._changed = False
        for webhook in self._webhooks:
            if number == 1 and webhook.name not in self._again:
                continue
            self.calls.append((webhook.name, number))
            after = api_defaults.defaulted(jsonpatch.apply_patch(pod, webhook.review(copy.deepcopy(pod))))
            if after != pod:
                self._changed = True
                self._mark()
            if webhook.reinvoked:
                self._had_turn.add(webhook.name)
            pod = after
        return pod

    def _mark(self) -> None:
        self._again |= self._had_turn
        self._had_turn = set()


def mount_token(pod: Object) -> Object:
    """The ServiceAccount plugin: every container without a mount at the token's path gets the token."""
    result = copy.deepcopy(pod)
    spec = result["spec"]
    spec.setdefault("serviceAccountName", "default")
    if spec.get("automountServiceAccountToken") is False:
        return result
    volumes = spec.setdefault("volumes", [])
    name = next((v["name"] for v in volumes if v["name"].startswith("kube-api-access-")), None)
    mounted = False
    for container in api_defaults.containers(result):
        mounts = container.setdefault("volumeMounts", [])
        if all(mount["mountPath"] != TOKEN_PATH for mount in mounts):
            mounts.append({"name": name or "kube-api-access-x7k2p", "readOnly": True, "mountPath": TOKEN_PATH})
            mounted = True
    if mounted and name is None:
        volumes.append(_token_volume())
    return result


def _token_volume() -> Object:
    field = {"fieldPath": "metadata.namespace", "apiVersion": "v1"}
    sources: list[Object] = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
    ]
    return {"name": "kube-api-access-x7k2p", "projected": {"defaultMode": 420, "sources": sources}}
