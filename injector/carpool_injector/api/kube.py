"""The Kubernetes API: connects to a cluster and sends the calls of `kube_api`. Only here is the client library known.

Used of it are the ways to a cluster (service account, kubeconfig) and the transport. Foreign exceptions end here: every
call can raise a `Failure`, which names the verb, the resource and the next step.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp  # the client library's transport: its exceptions and timeouts are aiohttp's

from carpool_injector.api import kube_api, kube_calls, kube_objects, slim_import

with slim_import.without_package_code("kubernetes", "kubernetes.aio"):
    from kubernetes.aio.client.api_client import ApiClient
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.config import config_exception, incluster_config, kube_config

# For callers, who need to know one module only:
Object: TypeAlias = kube_objects.Object
Version: TypeAlias = kube_objects.Version
Change: TypeAlias = kube_objects.Change
Secret = kube_objects.Secret
Failure = kube_calls.Failure
Unconfigured = kube_calls.Unconfigured
Unavailable = kube_calls.Unavailable
Conflict = kube_calls.Conflict
Forbidden = kube_calls.Forbidden
NotFound = kube_calls.NotFound
Rejected = kube_calls.Rejected
Expired = kube_calls.Expired

# The library leaves these without types.
_load_kube_config: Any = kube_config.load_kube_config
_InClusterConfigLoader: Any = incluster_config.InClusterConfigLoader

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_TIMEOUT = aiohttp.ClientTimeout(total=10)
# The API server ends a watch after this long; a connection that is silent for longer is dead.
_WATCH_SECONDS = 240
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_WATCH_SECONDS + 30)


class Kube(kube_api.Api):
    """One API server. Made by `connect`; `close` it in the same event loop. Calls end within 10 s."""

    def __init__(self, configuration: Configuration, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        super().__init__(sleep)
        # As Go's clients: the CAs of many clusters lack fields that OpenSSL's strict mode (Python 3.13) wants.
        configuration.disable_strict_ssl_verification = True
        self._client: Any = ApiClient(configuration)
        self._client.user_agent = kube_api.FIELD_MANAGER

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        service_account: Path = SERVICE_ACCOUNT,
        environment: Mapping[str, str] = os.environ,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> Kube:
        """The cluster of `kubeconfig`; without one that of the pod we run in, else of KUBECONFIG or ~/.kube/config.

        Nothing is sent yet. Raises Unconfigured.
        """
        configuration = Configuration()
        try:
            if kubeconfig is None and context is None and (service_account / "token").is_file():
                _load_service_account(configuration, service_account, environment)
            else:
                path = kubeconfig or environment.get("KUBECONFIG") or "~/.kube/config"
                _require_a_file(path, service_account)
                await _load_kube_config(path, context, configuration, persist_config=False)
            return cls(configuration, sleep)
        except Exception as error:  # the loader of kubeconfigs lets out whatever a malformed file provokes
            reason = " ".join(str(error).split())  # YAML's complaints have many lines
            raise Unconfigured(f"no way to a cluster: {reason}; check --kubeconfig and --context") from error

    async def close(self) -> None:
        """Ends all connections."""
        await self._client.close()

    async def request(
        self, call: kube_calls.Call, query: Mapping[str, str], body: Object | None, content_type: str
    ) -> Object:
        """Sends one call and returns the answer. Raises Failure."""
        with _translated(call):
            response = await self._open(call, query, body, content_type, _TIMEOUT)
            answer: Object = json.loads(await response.read())
            return answer

    async def stream(self, call: kube_calls.Call, query: Mapping[str, str]) -> AsyncGenerator[Object, None]:
        """Sends a watch and yields its events (type, object) until the API server ends it. Raises Failure."""
        limited = {**query, "timeoutSeconds": str(_WATCH_SECONDS)}
        with _translated(call):
            response = await self._open(call, limited, None, kube_api.JSON, _WATCH_TIMEOUT)
            try:
                async for line in response.content:
                    yield json.loads(line)
            finally:
                response.close()

    async def _open(
        self,
        call: kube_calls.Call,
        query: Mapping[str, str],
        body: Object | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """The answer, its body still to be read. Raises Failure for one that is no success."""
        method, url, headers, content, _ = await self._client.param_serialize(
            call.method,
            call.path,
            query_params=[(key, value) for key, value in query.items() if value],
            header_params={"Accept": kube_api.JSON, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(method, url, headers, content, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        if response.status >= 300:
            raise kube_calls.failure(call, response.status, await response.read())
        return response


@contextlib.contextmanager
def _translated(call: kube_calls.Call) -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError, ValueError, config_exception.ConfigException) as error:
        raise kube_calls.unreachable(call, error) from error


def _load_service_account(configuration: Configuration, account: Path, environment: Mapping[str, str]) -> None:
    token, authority = str(account / "token"), str(account / "ca.crt")
    loader = _InClusterConfigLoader(token, authority, environ=environment)
    loader.load_and_set(configuration)


def _require_a_file(paths: str, service_account: Path) -> None:
    """KUBECONFIG may name several files; those that do not exist are passed over, but one is needed."""
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        raise FileNotFoundError(f"there is no kubeconfig at {paths}, and no service account at {service_account}")
