"""`carpool-sidecar drain`: a hook that costs little, returns when the sidecar has drained, and says what went wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from http import server
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from carpool_sidecar import config
from carpool_sidecar.app import cli, drain_command
from tests import loopback
from tests.app.fake_predictor import FakePredictor

DRAINED = '{"phase": "drained", "active": 0}'
# Prints what a drain loads, apart from what the interpreter loads by itself.
LOADED = """
import argparse, sys
argparse.ArgumentParser().parse_args([])  # newer Pythons bring modules of their own with it
before = set(sys.modules)
from carpool_sidecar.app import cli
try:
    cli.main(["drain", "--admin-port", "{port}"])
except SystemExit as end:
    print(end.code, *sorted(set(sys.modules) - before))
"""


class AdminPort(server.ThreadingHTTPServer):
    """Answers POSTs with the given status and text, and remembers what was asked."""

    def __init__(self, status: int, text: str, host: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), _Handler)
        self.answer = status, text.encode()
        self.asked: list[str] = []


class _Handler(server.BaseHTTPRequestHandler):
    server: AdminPort

    def do_POST(self) -> None:
        self.server.asked.append(self.requestline)
        status, body = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def admin_port() -> Iterator[Callable[..., AdminPort]]:
    """Starts an admin port that answers as told."""
    started: list[tuple[AdminPort, threading.Thread]] = []

    def start(status: int = 200, text: str = DRAINED, host: str = "127.0.0.1") -> AdminPort:
        port = AdminPort(status, text, host)
        thread = threading.Thread(target=port.serve_forever, args=(0.01,))
        thread.start()
        started.append((port, thread))
        return port

    yield start
    for port, thread in started:
        port.shutdown()
        thread.join()
        port.server_close()


def drain(*argv: object, **environment: str) -> int:
    return drain_command.main(list(map(str, argv)), environment)


def test_a_drain_is_asked_for_once_and_succeeds_when_the_sidecar_says_drained(admin_port, capsys) -> None:
    port = admin_port()
    assert drain("--admin-port", port.server_port) == 0
    assert port.asked == ["POST /drain HTTP/1.1"]
    assert capsys.readouterr() == ("", "")


def test_the_port_of_the_containers_environment_is_used_and_a_flag_wins(admin_port) -> None:
    port = admin_port()
    assert drain(CARPOOL_ADMIN_PORT=str(port.server_port)) == 0
    assert drain("--admin-port", port.server_port, CARPOOL_ADMIN_PORT="1") == 0
    assert len(port.asked) == 2


def test_defaults_are_those_of_the_sidecar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CARPOOL_ADMIN_PORT", raising=False)
    defaults = config.Settings()
    for environment in ({}, {"CARPOOL_ADMIN_PORT": "tcp://10.0.0.7:80"}):
        chosen = drain_command._parser(environment).parse_args([])
        assert (chosen.admin_host, chosen.admin_port) == (defaults.admin_host, defaults.admin_port)
        assert chosen.timeout is None


def test_a_sidecar_that_listens_on_ipv6_only_is_found_over_loopback(admin_port) -> None:
    try:
        port = admin_port(host="::1")
    except OSError:
        pytest.skip("this machine has no IPv6 loopback address")
    assert drain("--admin-port", port.server_port, CARPOOL_ADMIN_HOST="::1") == 0
    assert drain("--admin-port", port.server_port, "--admin-host", "::1") == 0


def test_a_sidecar_that_listens_on_all_addresses_is_found_over_loopback(admin_port) -> None:
    port = admin_port()
    for host in ("::", "0.0.0.0", ""):
        assert drain("--admin-port", port.server_port, "--admin-host", host) == 0


@pytest.mark.parametrize(
    ("status", "text", "complaint"),
    [
        (403, "changes are allowed from inside the pod only\n", "answered 403: changes are allowed from inside the"),
        (404, "", "answered 404: nothing"),
        (200, "<html>\n welcome", "does not answer as a sidecar's does: <html> welcome"),
        (200, "[1]", "does not answer as a sidecar's does: [1]"),
        (200, '{"phase": "drained"}', "does not answer as a sidecar's does: "),
        (200, '{"phase": "refusing", "active": 3}', "requests and streams still open: 3 (phase refusing)"),
        (500, "x" * 100_000, "answered 500: xxx"),
    ],
)
def test_any_other_answer_is_told_in_one_line(admin_port, capsys, status, text, complaint) -> None:
    port = admin_port(status, text)
    assert drain("--admin-port", port.server_port) == 1
    told = capsys.readouterr().err
    assert complaint in told
    assert told.startswith(f"carpool-sidecar drain: error: the admin port 127.0.0.1:{port.server_port} ")
    assert told.count("\n") == 1
    assert len(told) < 400


def test_a_sidecar_that_is_not_there_is_told_in_one_line(capsys) -> None:
    port = loopback.free_port()
    assert drain("--admin-port", port) == 1
    told = capsys.readouterr().err
    assert f"the admin port 127.0.0.1:{port} cannot be reached: Connection refused; are --admin-host and" in told
    assert told.count("\n") == 1
    for host in ("a..b", "a b", "a\nb", "\x00"):
        assert drain("--admin-port", port, "--admin-host", host) == 1
        assert capsys.readouterr().err.count("cannot be reached: ") == 1


def test_a_sidecar_that_hangs_up_is_told_in_one_line(capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        assert drain("--admin-port", listener.getsockname()[1]) == 1
        thread.join()
    assert capsys.readouterr().err.count("\n") == 1


def test_after_the_timeout_nobody_waits_any_longer(capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert drain("--admin-port", silent.getsockname()[1], "--timeout", "0.001") == 1
    assert "did not answer within 0.001 s; a drain that has begun goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--admin-port", "0"], "--admin-port: (CARPOOL_ADMIN_PORT) got '0': must be a port from 1 to 65535"),
        (["--admin-port", "http"], "got 'http'"),
        (["--admin-port", "٩٠٨٢"], "must be a port"),
        (["--timeout", "0"], "--timeout: got '0': must be a number of seconds from 0.001 to 86400"),
        (["--timeout", "nan"], "got 'nan'"),
        (["--timeout", "soon"], "got 'soon'"),
        (["--quiet-period", "1"], "unrecognized arguments: --quiet-period 1"),
    ],
)
def test_bad_arguments_are_told_in_one_line_and_exit_2(argv, complaint, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["drain", *argv])
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert complaint in told
    assert told.startswith("carpool-sidecar drain: error: ")
    assert told.count("\n") == 1


def test_help_tells_how_it_is_used(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["drain", "--help"])
    assert caught.value.code == 0
    page = capsys.readouterr().out
    assert "(9082)" in page
    assert "preStop: {exec: {command: [carpool-sidecar, drain]}}" in page


def test_a_drain_loads_nothing_of_the_serving_process_and_no_event_loop(admin_port) -> None:
    script = LOADED.replace("{port}", str(admin_port().server_port))
    status, *loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout.split()
    modules = {name.decode() for name in loaded}
    assert status == b"0"
    assert {name for name in modules if name.startswith("carpool")} == {
        "carpool",
        "carpool.compiled",
        "carpool.program",
        "carpool.program.signals",
        "carpool_sidecar",
        "carpool_sidecar.admin_client",
        "carpool_sidecar.app",
        "carpool_sidecar.app.cli",
        "carpool_sidecar.app.drain_command",
    }
    assert {name.partition(".")[0] for name in modules} - sys.stdlib_module_names == {"carpool", "carpool_sidecar"}
    assert modules.isdisjoint({"asyncio", "logging", "concurrent", "inspect", "dataclasses"})


class Program:
    """A running `carpool-sidecar` and what it logged."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.messages: list[str] = []

    async def log(self, start: str) -> None:
        """Read the log until a message starts so."""
        while not (self.messages and self.messages[-1].startswith(start)):
            await self._read()

    async def end(self) -> int:
        """Read the rest of the log and return the exit status."""
        assert self.process.stderr
        while not self.process.stderr.at_eof():
            await self._read()
        return await self.process.wait()

    async def _read(self) -> None:
        assert self.process.stderr
        line = await self.process.stderr.readline()
        self.messages.append(json.loads(line)["message"] if line else "the log ended")


@asynccontextmanager
async def program(*arguments: object) -> AsyncIterator[Program]:
    """`carpool-sidecar` with these arguments, ended at the end."""
    command = [sys.executable, "-m", "carpool_sidecar", *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@asynccontextmanager
async def served(predictor: Any) -> AsyncIterator[int]:
    """The port of a fake predictor."""
    runner = web.ServerRunner(web.Server(predictor.handle), shutdown_timeout=0.1)
    await runner.setup()
    port = loopback.free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield port
    predictor.gate.set()
    await runner.cleanup()


async def test_the_hook_returns_when_all_is_answered_and_sigterm_then_ends_the_sidecar_without_a_second_drain() -> None:
    predictor, (port, admin) = FakePredictor(), loopback.free_ports(2)
    predictor.gate.clear()
    own = ("--host", "127.0.0.1", "--admin-host", "127.0.0.1", "--port", port, "--admin-port", admin)
    async with (
        served(predictor) as component_port,
        program(*own, "--component-port", component_port, "--quiet-period", "0", "--log-format", "json") as sidecar,
        aiohttp.ClientSession() as client,
    ):
        await sidecar.log("serving")
        url = f"http://127.0.0.1:{port}/v1/models/m:predict"
        accepted = asyncio.ensure_future(client.post(url, json={"instances": [1]}))
        await predictor.received(1)
        async with program("drain", "--admin-port", admin) as hook:
            await sidecar.log("draining: refusing new requests, 1 still to answer")
            assert hook.process.returncode is None
            predictor.gate.set()
            assert (await hook.end(), (await accepted).status) == (0, 200)
        assert sidecar.process.returncode is None
        async with client.get(f"http://127.0.0.1:{admin}/drained") as response:
            assert (response.status, await response.text()) == (200, "drained\n")
        sidecar.process.terminate()
        assert await sidecar.end() == 0
    assert len([message for message in sidecar.messages if message.startswith("draining: not ready")]) == 1
