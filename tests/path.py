"""The functions that one small v1 request crosses, in their order. `python -m tests.path` lists them.

A real sidecar on loopback, warm, answers two clients whose requests make one batch. What is
recorded is all that runs in Carpool's own packages from the moment the first request's bytes come to the moment both
clients have their answers. The scheduler counts by the functions that others call; what it calls itself is counted
apart. The table is of a window, in which both always share a batch; with the adaptive policy, which is the default, the
first may leave alone, and what all of its requests cross is told beside it. The command also brings the table in
docs/request-path.md up to date; a test holds the table, and its length, to the code.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import functools
import pathlib
import re
import sys
import types
from typing import NamedTuple

import uvloop

from carpool_sidecar import config
from carpool_sidecar.app import wiring
from tests import loopback, marks

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "request-path.md"
MOST_FUNCTIONS, MOST_FILES = 49, 16
MOST_LEARNING = 25  # functions more, of the scheduler, that the adaptive policy calls for each batch

_PACKAGES = ("carpool", "sidecar")
_SCHEDULER = pathlib.Path("carpool", "scheduling")
_BODY = b'{"instances":[[1,2]]}'
_REQUEST = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
_ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{"predictions":[%b]}'
_WARM_UP, _ROUNDS = 10, 30
# These functions begin a turn of the event loop.
_TURNS = {"data_received": "a client's bytes came", "get_buffer": "the predictor's bytes came"}
# For those that say what they do nowhere else.
_BY_NAME = {"__init__": "makes the object"}


class Function(NamedTuple):
    """One function: its file from the repository's root, its line, its name with its class, and what it does.

    `is_inner` is whether the scheduler calls it itself.
    """

    file: str
    line: int
    name: str
    purpose: str
    is_inner: bool


class Path(NamedTuple):
    """The functions of one request, each once, in the order in which they are first called."""

    functions: list[Function]

    @property
    def outer(self) -> list[Function]:
        """All but what the scheduler calls itself."""
        return [function for function in self.functions if not function.is_inner]

    @property
    def counts(self) -> tuple[int, int]:
        """How many of those there are, and in how many files."""
        return len(self.outer), len({function.file for function in self.outer})

    def table(self) -> str:
        """The path in Markdown."""
        functions, files = self.counts
        inner = len(self.functions) - functions
        rows = [
            # By what it learned meanwhile it may be a few more or fewer.
            f"{functions} functions in {files} files, and about {round(inner, -1)} more that the scheduler calls to "
            "decide:",
            "",
        ]
        file = ""
        for number, function in enumerate(self.outer, 1):
            if begins := _TURNS.get(function.name.rpartition(".")[2]):
                rows.append(f"**A turn of the event loop begins:** {begins}.\n")
                file = ""
            if function.file != file:
                file = function.file
                rows.append(f"`{file}`\n")
            rows.append(f"{number}. `{function.name}`: {function.purpose}")
        return re.sub(r"(?m)^(\d.*)\n(?=[`*])", r"\1\n\n", "\n".join(rows))

    def written(self, page: str) -> str:
        """The page with the table brought up to date."""
        return marks.renewed(page, "path of a request", "python -m tests.path", self.table())


def recorded(policy: str = "window") -> Path:
    """Send the requests, and return their path."""
    rounds = uvloop.run(_rounds(policy))
    # A timer that runs by chance in the midst of a request is none of its functions.
    always = set(rounds[0]).intersection(*rounds)
    return Path([_described(code, is_inner) for code, is_inner in rounds[-1].items() if code in always])


# --- one request, recorded ---------------------------------------------------------------------------------------


class _Predictor(asyncio.Protocol):
    """Answers every batch with its own instances."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        rows = b",".join([b"[1,2]"] * data.count(b"[1,2]"))
        self._transport.write(_ANSWER % (len(rows) + 18, rows))  # type: ignore[attr-defined]


class _Client(asyncio.Protocol):
    """`answered` is done when an answer came."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self) -> asyncio.Future[bytes]:
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._transport.write(_REQUEST)  # type: ignore[attr-defined]
        return self.answered

    def data_received(self, data: bytes) -> None:
        self.answered.set_result(data)


# The code of functions, and whether the scheduler called it.
_Crossed = dict[types.CodeType, bool]


async def _rounds(policy: str) -> list[_Crossed]:
    loop = asyncio.get_running_loop()
    port, admin_port, component_port = loopback.free_ports(3)
    predictor = await loop.create_server(_Predictor, loopback.HOST, component_port)
    settings = config.Settings(
        host=loopback.HOST, admin_host=loopback.HOST, port=port, admin_port=admin_port, component_port=component_port,
        policy=policy, max_batch_size=2, max_latency=1000, timeout=5.0,
    )  # fmt: skip
    sidecar = wiring.Sidecar(settings, ())
    await sidecar.start()
    clients = [(await loop.create_connection(_Client, loopback.HOST, port))[1] for _ in range(2)]
    try:
        return [await _round(clients) for _ in range(_WARM_UP + _ROUNDS)][_WARM_UP:]
    finally:
        await sidecar.stop()
        predictor.close()


async def _round(clients: list[_Client]) -> _Crossed:
    crossed: _Crossed = {}

    def note(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and _is_ours(frame.f_code):
            is_inner = frame.f_back is not None and _is_schedulers(frame.f_back.f_code)
            crossed[frame.f_code] = crossed.get(frame.f_code, True) and is_inner and _is_schedulers(frame.f_code)

    sys.setprofile(note)
    try:
        async with asyncio.timeout(5):
            answers = await asyncio.gather(*(client.send() for client in clients))
    finally:
        sys.setprofile(None)
    if not all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers):
        raise AssertionError(f"not answered: {answers}")
    return crossed


@functools.cache
def _is_ours(code: types.CodeType) -> bool:
    """Whether this is a function of the product; comprehensions are none."""
    path = pathlib.Path(code.co_filename)
    if code.co_name.endswith("comp>") or code.co_name == "<genexpr>" or not path.is_relative_to(ROOT):
        return False
    return path.relative_to(ROOT).parts[0] in _PACKAGES


def _is_schedulers(code: types.CodeType) -> bool:
    return pathlib.Path(code.co_filename).is_relative_to(ROOT / _SCHEDULER)


# --- what functions do -------------------------------------------------------------------------------------------


def _described(code: types.CodeType, is_inner: bool) -> Function:
    file = pathlib.Path(code.co_filename).relative_to(ROOT)
    name, text = _definitions(ROOT / file).get(code.co_firstlineno, (code.co_name, ""))
    return Function(str(file), code.co_firstlineno, name, text or _BY_NAME.get(code.co_name, ""), is_inner)


@functools.cache
def _definitions(path: pathlib.Path) -> dict[int, tuple[str, str]]:
    """The functions of a file by their first line: name, and the first sentence of the docstring."""
    found: dict[int, tuple[str, str]] = {}

    def look(node: ast.AST, within: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                name = f"{within}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    line = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                    found[line] = (name, _first_sentence(ast.get_docstring(child) or ""))
                look(child, f"{name}.")
            else:
                look(child, within)

    look(ast.parse(path.read_text()), "")
    return found


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.;:]) ", paragraph)[0].rstrip(".;:").replace("|", "/")


def _listed(path: Path) -> str:
    lines = [f"{'    ' * one.is_inner}{one.file}:{one.line} {one.name}: {one.purpose}" for one in path.functions]
    functions, files = path.counts
    return "\n".join(
        [*lines, f"{functions} functions in {files} files, those that the scheduler calls itself left out\n"]
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description="Write the path of a request into its page.").parse_args()
    sys.stdout.write("With the adaptive policy:\n" + _listed(recorded("adaptive")) + "With a window:\n")
    found = recorded()
    sys.stdout.write(_listed(found))
    PAGE.write_text(found.written(PAGE.read_text()))
