"""tritonclient's four clients, called in one way so that each test can use all of them, and loads of many callers.

The clients are unchanged. Each caller of a load checks that the answer is the one to its own question.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import numpy as np
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

Refused = InferenceServerException
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


Asks = Callable[[Client, random.Random], Awaitable[None]]


async def busy(asks: Asks, connected: Sequence[Client], callers: int, questions: int) -> None:
    """`callers` of each client ask so many questions, one after another. Raises what the first to fail raises."""
    async with asyncio.TaskGroup() as group:
        for number, client in enumerate(connected):
            for caller in range(callers):
                group.create_task(_caller(asks, client, random.Random(1000 * number + caller), questions))


async def ask_identity(client: Client, chance: random.Random) -> None:
    """A few rows of a width that some others have as well, in the form that the client likes."""
    rows = _rows(chance, chance.choice([1, 3]))
    answer = await client.infer("identity", {"rows": rows}, request_id=str(chance.random()))
    np.testing.assert_array_equal(answer.as_numpy("rows_out"), rows)


async def ask_add_sub(client: Client, chance: random.Random) -> None:
    """One or both outputs, in JSON or binary."""
    a, b = _rows(chance, 2), _rows(chance, 2)
    b = np.resize(b, a.shape)
    wanted = chance.choice([["sum"], ["difference"], ["sum", "difference"]])
    form = {"binary_data": chance.random() < 0.5} if client.is_http else {}
    outputs = [client.output(name, **form) for name in wanted]
    inputs = [client.input("a", a, **form), client.input("b", b)]
    answer = await client("infer", "add_sub", inputs, outputs=outputs, request_id="x")
    expected = {"sum": a + b, "difference": a - b}
    for name, array in expected.items():
        given = answer.as_numpy(name)
        assert (given is not None) == (name in wanted)
        if given is not None:
            np.testing.assert_array_equal(given, array)


async def ask_strings(client: Client, chance: random.Random) -> None:
    """Strings of different lengths, so that no two have their bytes in the same place."""
    text = [[chance.randbytes(chance.randrange(20))] for _ in range(chance.randrange(1, 4))]
    answer = await client.infer("strings", {"text": np.array([*text, [None]], np.object_)[:-1]})
    assert answer.as_numpy("upper").tolist() == [[each.upper()] for (each,) in text]


async def ask_scaled(client: Client, chance: random.Random) -> None:
    """A parameter that must not become that of others."""
    rows, factor = _rows(chance, 2), chance.choice([1, 2, 3])
    answer = await client.infer("scaled", {"rows": rows}, parameters={"factor": factor})
    np.testing.assert_array_equal(answer.as_numpy("rows_out"), rows * factor)


def _rows(chance: random.Random, columns: int) -> np.ndarray:
    count = chance.randrange(1, 5)
    return np.array([[chance.uniform(-1e6, 1e6) for _ in range(columns)] for _ in range(count)], np.float32)


async def _caller(asks: Asks, client: Client, chance: random.Random, questions: int) -> None:
    for _ in range(questions):
        await asks(client, chance)
