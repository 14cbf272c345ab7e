"""A real Chromium: where it is, and how its pages are opened and watched."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from e2e.cluster import binaries

if TYPE_CHECKING:
    from playwright import async_api

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def find() -> str:
    """The program that CHROMIUM names, else the first on PATH. Raises `binaries.Unavailable`."""
    named = os.environ.get("CHROMIUM")
    found = named or next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise binaries.Unavailable("no Chromium: install Debian's package chromium, or set CHROMIUM to the path of one")
    return found


@contextlib.asynccontextmanager
async def launched() -> AsyncIterator[async_api.Browser]:
    """A browser without a window. Raises `binaries.Unavailable`."""
    program = find()
    try:
        from playwright import async_api
    except ModuleNotFoundError:
        raise binaries.Unavailable("playwright is not installed: make e2e-page does that") from None
    # Root has no sandbox of Chromium's; it opens nothing but loopback here.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_api.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=program, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


class Watched:
    """A page and what went wrong on it: lines of the console, errors, requests to anywhere else."""

    def __init__(self, page: Any, origin: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.strangers: list[str] = []
        page.on(
            "console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda asked: self.strangers.append(asked.url) if _is_elsewhere(asked.url, origin) else None)


def _is_elsewhere(url: str, origin: str) -> bool:
    return not url.startswith((origin + "/", "data:"))


async def open_page(
    browser: async_api.Browser, url: str, width: int = 1280, height: int = 800, **options: Any
) -> Watched:
    """The live page in a window of this size, once it shows something."""
    page = await browser.new_page(viewport={"width": width, "height": height}, **options)
    watched = Watched(page, url)
    await page.goto(url + "/", wait_until="domcontentloaded")
    await page.locator("#state[data-state=live]").wait_for(timeout=15_000)
    return watched
