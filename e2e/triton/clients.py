"""tritonclient's four clients behind one manner of calling, so that one test asks all of them. They are unchanged."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import numpy as np
from tritonclient.utils import InferenceServerException as Refused
from tritonclient.utils import np_to_triton_dtype

__all__ = ("KINDS", "Client", "Refused", "Target", "connected")

KINDS = ("http", "http.aio", "grpc", "grpc.aio")


class Target(Protocol):
    """Where clients go: a server, or the sidecar in front of it."""

    http: str
    grpc: str


class Client:
    """One of the four. `infer` and all the others are called alike: `await client("infer", …)`.

    `callers` is how many can use it at once; those of HTTP need a connection each.
    """

    def __init__(self, kind: str, target: Target, callers: int = 1) -> None:
        protocol = kind.partition(".")[0]
        self.is_http = protocol == "http"
        self._tensors = importlib.import_module(f"tritonclient.{protocol}")
        client = importlib.import_module(f"tritonclient.{kind}").InferenceServerClient
        limits = {"http": {"concurrency": callers}, "http.aio": {"conn_limit": callers}}.get(kind, {})
        self.raw = client(getattr(target, protocol), **limits)

    async def __call__(self, method: str, *positional: Any, **named: Any) -> Any:
        answer = getattr(self.raw, method)(*positional, **named)
        return await answer if inspect.isawaitable(answer) else answer

    async def infer(self, model: str, tensors: dict[str, np.ndarray], **options: Any) -> Any:
        """Send tensors as this client does by itself: in binary."""
        return await self("infer", model, [self.input(name, array) for name, array in tensors.items()], **options)

    def input(self, name: str, array: np.ndarray, **options: Any) -> Any:
        """An `InferInput`; `binary_data=False` sends JSON, over HTTP."""
        tensor = self._tensors.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        return tensor.set_data_from_numpy(array, **options)

    def empty_input(self, name: str, shape: Sequence[int], datatype: str) -> Any:
        """An `InferInput` without data."""
        return self._tensors.InferInput(name, list(shape), datatype)

    def output(self, name: str, **options: Any) -> Any:
        """An `InferRequestedOutput`; `binary_data=False` asks for JSON, over HTTP."""
        return self._tensors.InferRequestedOutput(name, **options)

    async def close(self) -> None:
        await self("close")


@contextlib.asynccontextmanager
async def connected(kind: str, target: Target, callers: int = 1) -> AsyncIterator[Client]:
    """One client for the length of a block."""
    client = Client(kind, target, callers)
    try:
        yield client
    finally:
        await client.close()
