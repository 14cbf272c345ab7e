"""Which build of torch the set-up takes, and what of the pinned requirements goes with it."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from aiohttp import web
from pytest_aiohttp import AiohttpServer

SCRIPT = Path(__file__).parent.parent / ".ci" / "predictor_packages.py"


@pytest.fixture(scope="module")
def packages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("predictor_packages", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("wanted", "linux", "gpu", "answers", "build"),
    [
        ("auto", True, False, True, "cpu"),
        ("auto", True, False, False, "default"),
        ("auto", True, True, True, "default"),
        ("auto", False, False, True, "default"),
        ("cpu", True, True, False, "cpu"),
        ("cuda", True, False, True, "default"),
    ],
)
def test_the_build_follows_the_wish_then_the_machine_then_the_network(
    packages: ModuleType, wanted: str, linux: bool, gpu: bool, answers: bool, build: str
) -> None:
    assert packages.choose(wanted, linux=linux, gpu=gpu, cpu_index_answers=answers)[0] == build


def test_a_cpu_build_needs_none_of_the_cuda_packages_and_keeps_the_rest_hashed(packages: ModuleType) -> None:
    requirements = (
        "# made by a tool\n"
        "nvidia-cublas==1 ; sys_platform == 'linux' \\\n    --hash=sha256:aa\n"
        "sympy==1.14.0 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
        "torch==2.15.0 ; sys_platform == 'linux' \\\n    --hash=sha256:dd\n"
        "torchmetrics==1 \\\n    --hash=sha256:ee\n"
        "triton==3 \\\n    --hash=sha256:ff\n"
    )
    assert packages.torch_version(requirements) == "2.15.0"
    assert packages.without_torch(requirements) == (
        "# made by a tool\n"
        "sympy==1.14.0 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
        "torchmetrics==1 \\\n    --hash=sha256:ee\n"
    )


def test_the_pinned_requirements_lead_to_a_cpu_build_of_the_pinned_version(packages: ModuleType) -> None:
    requirements = (SCRIPT.parent.parent / packages.REQUIREMENTS).read_text()
    rest = packages.without_torch(requirements)
    assert packages.torch_version(requirements)[0].isdigit()
    assert "\nsafetensors==" in rest
    assert "nvidia" not in rest


async def test_an_index_that_serves_its_torch_page_answers(packages: ModuleType, aiohttp_server: AiohttpServer) -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(text="torch-2.15.0%2Bcpu")

    app = web.Application()
    app.router.add_get("/cpu/torch/", page)
    server = await aiohttp_server(app)
    for path, answer in {"/cpu": True, "/elsewhere": False}.items():
        assert await asyncio.to_thread(packages.answers, str(server.make_url(path)), 5.0) is answer


@pytest.fixture
def silent_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_an_index_that_accepts_and_says_nothing_is_given_up(packages: ModuleType, silent_server: str) -> None:
    assert packages.answers(silent_server, 0.05) is False
