"""The guard of conftest.py, tried on tests that leak: a guard that never complains guards nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PYPROJECT = HERE.parent / "pyproject.toml"

SAMPLES = """
import asyncio
import pytest
from aiohttp import web

async def forever():
    await asyncio.Event().wait()

async def test_leaves_a_task():
    test_leaves_a_task.kept = asyncio.create_task(forever(), name="the forgotten one")

@pytest.mark.uvloop
async def test_leaves_a_task_on_uvloop():
    assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    test_leaves_a_task.kept = asyncio.create_task(forever(), name="the other forgotten one")

@pytest.mark.looptime
async def test_leaves_a_task_in_virtual_time(looptime):
    test_leaves_a_task.kept = asyncio.create_task(forever(), name="the third forgotten one")
    await asyncio.sleep(30)
    assert looptime == 30

async def test_cancels_its_task():
    task = asyncio.create_task(forever())
    await asyncio.sleep(0)
    task.cancel()

async def test_uses_a_server_and_a_client(aiohttp_client):
    async def hello(request):
        return web.Response(text="hello")
    app = web.Application()
    app.router.add_get("/", hello)
    client = await aiohttp_client(app)
    assert await (await client.get("/")).text() == "hello"

def test_runs_without_a_loop(request):
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    assert "no_task_outlives_the_test" not in request.node.funcargs
"""


def outcomes_of(samples: str, folder: Path) -> str:
    """What pytest prints for these samples, run apart with this project's configuration and conftest.py."""
    (folder / "tests").mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT.read_text())
    for name in ("conftest.py", "examples.py"):
        (folder / "tests" / name).write_text((HERE / name).read_text())
    (folder / "tests" / "test_samples.py").write_text(samples)
    command = [sys.executable, "-m", "pytest", "-rEfp", "-p", "no:cacheprovider", "--color=no", "tests"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> str:
    return outcomes_of(SAMPLES, tmp_path_factory.mktemp("samples"))


@pytest.mark.parametrize("name", ["the forgotten one", "the other forgotten one", "the third forgotten one"])
def test_a_pending_task_fails_its_test_and_is_named(outcomes: str, name: str) -> None:
    assert f"tasks still pending after the test: {name} (" in outcomes


def test_only_the_leaking_tests_fail(outcomes: str) -> None:
    assert "6 passed, 3 errors" in outcomes
