"""Callers: plain HTTP with all requests at once, and programs that run clients in environments of their own."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp

from e2e.lists import answers, peers

PROGRAM_SECONDS = 200.0
Results = list[dict[str, Any]]
JSON = {"content-type": "application/json"}


class Question(NamedTuple):
    """A request that some caller sends."""

    path: str
    body: bytes
    headers: Mapping[str, str] = JSON

    def __str__(self) -> str:
        text = self.body.decode(errors="replace")
        return f"{self.path} {text if len(text) < 120 else text[:117] + '...'}"


def question(path: str, value: Any, **headers: str) -> Question:
    """One with a value as JSON. Names of headers have `_` for `-`."""
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return Question(path, json.dumps(value).encode(), {**JSON, **more})


async def one_by_one(address: str, questions: Sequence[Question]) -> list[answers.Answer]:
    """Ask each when the one before it is answered, on a connection of its own: servers close theirs after a failure."""
    async with _session(force_close=True) as session:
        return [await _ask(session, address, each) for each in questions]


async def at_once(address: str, questions: Sequence[Question]) -> list[answers.Answer]:
    """Ask all at the same time; answers come in the order of the questions."""
    async with _session() as session:
        return await asyncio.gather(*(_ask(session, address, each) for each in questions))


def batches(found: Iterable[answers.Answer]) -> list[int]:
    """How many requests were in each batch that answers tell of."""
    return list(collections.Counter(each.batch for each in found if each.batch).values())


async def run_program(
    environment: peers.Environment, program: str, asked: Mapping[str, Any], variables: Mapping[str, str]
) -> list[Results]:
    """The results of a program in `programs/`, for each address that it calls, one for each call."""
    return await asyncio.to_thread(_run_program, environment, program, asked, variables)


def _run_program(
    environment: peers.Environment, program: str, asked: Mapping[str, Any], variables: Mapping[str, str]
) -> list[Results]:
    proxies = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    inherited = {name: value for name, value in os.environ.items() if name not in proxies}
    done = subprocess.run(
        [str(environment.program()), str(peers.PROGRAMS / program)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        env={**inherited, **peers.BYTECODE, **variables},
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def _session(*, force_close: bool = False) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=force_close))


async def _ask(session: aiohttp.ClientSession, address: str, asked: Question) -> answers.Answer:
    async with session.post(f"http://{address}{asked.path}", data=asked.body, headers=asked.headers) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return answers.Answer(response.status, headers, await response.read())
