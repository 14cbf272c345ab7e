"""Every program of the pages about the library runs, and prints what the page shows."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
import re

import pytest

import carpool
from carpool.functions import options
from tests import tables
from tests.docs import programs

LIBRARY = tables.ROOT / "docs" / "library.md"
MIGRATION = tables.ROOT / "docs" / "migration.md"
RECIPES = tables.ROOT / "docs" / "recipes.md"
PAGES = (tables.ROOT / "README.md", LIBRARY, MIGRATION, tables.ROOT / "docs" / "metrics.md", RECIPES)
PROGRAMS = [program for page in PAGES for program in programs.of(page)]

# What is too large for the tests' environment. `make demo` installs it, and a program that needs it runs then.
LARGE = {"torch", "tokenizers"}

# What a reader does next with a program that only defines something: it has to answer.
_IN_A_CLIENT = """
if __name__ == "__main__":
    from concurrent.futures import ThreadPoolExecutor
    from fastapi.testclient import TestClient

    with TestClient(app) as client, ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda {item}: client.post({request}), {items})
        assert [answer.json() for answer in answers] == {expected}
"""
TRIALS = {
    "In your tests": "",  # it asserts by itself
    "FastDynamicBatcher": _IN_A_CLIENT.format(
        item="number",
        request="'/predict/', params={'number': number}",
        items="range(20)",
        expected="[*range(0, 40, 2)]",
    ),
    "BentoML": _IN_A_CLIENT.format(
        item="text",
        request="'/encode', json=[text, text]",
        items="['a', 'bc']",
        expected="[[row.tolist()] * 2 for row in service.model.encode(['a', 'bc'])]",
    ),
    "LitServe": _IN_A_CLIENT.format(
        item="number",
        request="'/predict', json={'input': number}",
        items="range(20)",
        expected="[{'output': number**2} for number in range(20)]",
    ),
    "Batched functions": """
carpool.batched(lambda items: items, name="mine")(1).result()
assert prometheus_client.REGISTRY.get_sample_value("carpool_batch_size_sum", {"function": "mine"}) == 1
""",
    "A FastAPI app": _IN_A_CLIENT.format(
        item="text",
        request="'/embed', json={'text': text}",
        items="['a', 'b c', ''] * 20",
        expected="[[1, 0], [3, 1], [0, 0]] * 20",
    )
    + """
    @app.get("/error/{name}")
    async def fail(name: str) -> None:
        raise getattr(carpool, name)

    client = TestClient(app)  # it starts and ends nothing
    assert client.post("/spell", json={"text": "carpool"}).text == "carpool"
    refused, late = client.get("/error/Overloaded"), client.get("/error/DeadlineExceeded")
    assert (refused.status_code, refused.headers["Retry-After"], late.status_code) == (429, "1", 504)
    assert embed(" ").exception() is not None  # closed with the app
""",
    "Django": """
import asyncio

assert length(HttpRequest({"text": "four"})).content == b'{"length": 4}'
assert asyncio.run(length_async(HttpRequest({"text": "three"}))).content == b'{"length": 5}'
""",
    "pytest": "\ntest_two_calls_share_a_batch()\n",
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.page.stem}: {program.heading}")
def test_a_program_runs_without_a_warning_and_prints_what_the_page_shows(
    program: programs.Program, tmp_path: pathlib.Path
) -> None:
    missing = {name for name in program.needs if name in LARGE and importlib.util.find_spec(name) is None}
    if missing:
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")
    printed = programs.run(program.source + TRIALS.get(program.heading, ""), tmp_path)
    if program.printed is not None:
        assert programs.is_shown(printed, program.printed), printed


def test_each_program_shows_what_it_prints_or_is_tried_out() -> None:
    assert [each.heading for each in PROGRAMS if each.printed is None and each.source.strip()] == [*TRIALS]


def test_the_list_of_options_names_each_with_its_default() -> None:
    section = LIBRARY.read_text().partition("\n## Options\n")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^- `(\w+)` \(`([^`]+)`\)", section)
    assert rows == [(each.name, repr(each.default)) for each in dataclasses.fields(options.Options)]


def test_the_list_of_errors_names_each_that_the_library_exports() -> None:
    section = LIBRARY.read_text().partition("\n## Errors\n")[2].partition("\n## ")[0]
    exported = {name for name in carpool.__all__ if _is_error(getattr(carpool, name))}
    assert set(re.findall(r"(?m)^- `(\w+)`", section)) == exported - {"CarpoolError"}


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def test_a_program_that_raises_warns_or_prints_something_else_is_found(tmp_path: pathlib.Path) -> None:
    for source in ("1 / 0", "import warnings; warnings.warn('old')", "import sys; print('said', file=sys.stderr)"):
        with pytest.raises(AssertionError):
            programs.run(source, tmp_path)
    assert programs.run("print('said')", tmp_path) == "said\n"
    assert not programs.is_shown("8\n9\n", "8")
    assert programs.is_shown("id 8f3e\n", "id …")
