"""An API server in memory, as far as certificates need one: one Secret, webhook configurations, versions, outages.

Every call gives the turn away before it acts and after, so that a test can put anything between two calls and between a
call and its answer.
"""

from __future__ import annotations

import base64
import copy
import types
from collections.abc import Generator, Mapping

from carpool_injector.api import calls

MUTATING = ("MutatingWebhookConfiguration", "carpool-injector")
VALIDATING = ("ValidatingWebhookConfiguration", "carpool-injector")


@types.coroutine
def turn() -> Generator[None, None, None]:
    """Lets others go first: one turn of the event loop, or of a test that drives coroutines by hand."""
    yield


class FakeKube:
    """Shared by all replicas of a test."""

    def __init__(self, webhooks=(MUTATING, VALIDATING), entries=2):
        self.secret: calls.Secret | None = None
        self.configurations = {webhook: _configuration(webhook, entries) for webhook in webhooks}
        self.is_down = False
        self.forbidden: set[str] = set()  # verbs and resources, "patch secrets"
        self.calls: list[str] = []
        self.writes = 0
        self.version = 100

    async def read_secret(self, namespace, name):
        await self._begin("get secrets")
        found = copy.deepcopy(self.secret)
        await turn()
        return found

    async def write_secret(self, namespace, name, data, resource_version):
        await self._begin("patch secrets" if resource_version else "create secrets")
        if resource_version != (self.secret.resource_version if self.secret else None):
            raise calls.Conflict("the Secret has another version")
        self.writes += 1
        self.secret = calls.Secret(dict(data), self._next_version())
        found = copy.deepcopy(self.secret)
        await turn()
        return found

    async def read_webhooks(self, kind, name):
        await self._begin("get webhooks")
        found = copy.deepcopy(self.configurations.get((kind, name)))
        await turn()
        return found

    async def set_ca_bundle(self, kind, as_read, pem):
        await self._begin("patch webhooks")
        name = as_read["metadata"]["name"]
        configuration = self.configurations.get((kind, name))
        if configuration is None:
            raise calls.NotFound("no such configuration")
        if as_read["metadata"]["resourceVersion"] != configuration["metadata"]["resourceVersion"]:
            raise calls.Conflict("the configuration has another version")
        self.publish((kind, name), pem)
        found = copy.deepcopy(configuration)
        await turn()
        return found

    def publish(self, webhook, pem: bytes) -> None:
        """What a successful patch does."""
        configuration = self.configurations[webhook]
        configuration["metadata"]["resourceVersion"] = self._next_version()
        for entry in configuration["webhooks"]:
            entry["clientConfig"]["caBundle"] = base64.b64encode(pem).decode()

    def bundles(self) -> list[bytes]:
        """Every caBundle that API servers go by."""
        entries = [entry for one in self.configurations.values() for entry in one["webhooks"]]
        return [base64.b64decode(entry["clientConfig"].get("caBundle", "")) for entry in entries]

    def replace_secret(self, data: Mapping[str, bytes] | None) -> None:
        """What a person with kubectl does."""
        self.secret = None if data is None else calls.Secret(dict(data), self._next_version())

    def _next_version(self) -> str:
        self.version += 1
        return str(self.version)

    async def _begin(self, call: str) -> None:
        await turn()
        self.calls.append(call)
        if self.is_down:
            raise calls.Unavailable(f"{call}: no answer from the API server")
        if call in self.forbidden:
            raise calls.Forbidden(f"{call}: forbidden")


def _configuration(webhook, entries: int):
    kind, name = webhook
    service = {"service": {"name": "carpool-injector", "namespace": "carpool-system"}}
    return {
        "kind": kind,
        "metadata": {"name": name, "resourceVersion": "1"},
        "webhooks": [{"name": f"w{i}.carpool.dev", "clientConfig": copy.deepcopy(service)} for i in range(entries)],
    }
