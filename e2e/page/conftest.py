"""A browser and a sidecar for each test of the live page."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from e2e import skips
from e2e.page import browser, rig


@pytest.fixture
async def chromium() -> AsyncIterator[object]:
    """A Chromium; skips where there is none."""
    async with contextlib.AsyncExitStack() as stack:
        with skips.where_unavailable():
            launched = await stack.enter_async_context(browser.launched())
        yield launched


@pytest.fixture
async def start(chromium: object) -> AsyncIterator[Callable[..., Awaitable[rig.Rig]]]:
    """Starts a rig with these flags of the sidecar."""
    async with contextlib.AsyncExitStack() as stack:

        async def begin(*settings: str) -> rig.Rig:
            return await stack.enter_async_context(rig.running(*settings))

        yield begin


@pytest.fixture
async def loaded() -> AsyncIterator[Callable[..., None]]:
    """Begins load on a rig, until the test ends."""
    tasks: list[asyncio.Task[None]] = []

    def begin(loaded: rig.Rig, rate: float) -> None:
        tasks.append(asyncio.create_task(loaded.load(rate)))

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
