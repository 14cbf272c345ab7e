"""Many callers at once, each of whom checks that the answer is to its own question."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from e2e.triton import clients

Asks = Callable[[clients.Client, random.Random], Awaitable[None]]


async def busy(asks: Asks, connected: Sequence[clients.Client], callers: int, questions: int) -> None:
    """`callers` of each client ask so many questions, one after another. Raises what the first to fail raises."""
    async with asyncio.TaskGroup() as group:
        for number, client in enumerate(connected):
            for caller in range(callers):
                group.create_task(_caller(asks, client, random.Random(1000 * number + caller), questions))


async def ask_identity(client: clients.Client, chance: random.Random) -> None:
    """A few rows of a width that some others have as well, in the form that the client likes."""
    rows = _rows(chance, chance.choice([1, 3]))
    answer = await client.infer("identity", {"rows": rows}, request_id=str(chance.random()))
    np.testing.assert_array_equal(answer.as_numpy("rows_out"), rows)


async def ask_add_sub(client: clients.Client, chance: random.Random) -> None:
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


async def ask_strings(client: clients.Client, chance: random.Random) -> None:
    """Strings of different lengths, so that no two have their bytes in the same place."""
    text = [[chance.randbytes(chance.randrange(20))] for _ in range(chance.randrange(1, 4))]
    answer = await client.infer("strings", {"text": np.array([*text, [None]], np.object_)[:-1]})
    assert answer.as_numpy("upper").tolist() == [[each.upper()] for (each,) in text]


async def ask_scaled(client: clients.Client, chance: random.Random) -> None:
    """A parameter that must not become that of others."""
    rows, factor = _rows(chance, 2), chance.choice([1, 2, 3])
    answer = await client.infer("scaled", {"rows": rows}, parameters={"factor": factor})
    np.testing.assert_array_equal(answer.as_numpy("rows_out"), rows * factor)


def _rows(chance: random.Random, columns: int) -> np.ndarray:
    count = chance.randrange(1, 5)
    return np.array([[chance.uniform(-1e6, 1e6) for _ in range(columns)] for _ in range(count)], np.float32)


async def _caller(asks: Asks, client: clients.Client, chance: random.Random, questions: int) -> None:
    for _ in range(questions):
        await asks(client, chance)
