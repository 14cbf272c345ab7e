"""Tools that nobody here wrote, against the gRPC port: h2spec, and the interop cases of grpc-go.

Both are built from their Go modules, as `tools/go.mod` pins them.
"""

from __future__ import annotations

import contextlib
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple
from xml.etree import ElementTree

from benchmarks import golang, processes
from tests import loopback

TOOLS = pathlib.Path(__file__).with_name("tools")
H2SPEC, INTEROP = "h2spec", "interop"
NAMES = (H2SPEC, INTEROP)

EXPECTED = "Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE"
"""h2spec takes 16 KiB for the largest frame in this test of 4.2, though the server allows more."""

CASES = (
    "empty_unary", "large_unary", "client_streaming", "server_streaming", "ping_pong", "empty_stream",
    "timeout_on_sleeping_server", "cancel_after_begin", "cancel_after_first_response", "status_code_and_message",
    "special_status_message", "custom_metadata", "unimplemented_method", "unimplemented_service",
)  # fmt: skip

_UP_SECONDS = 30.0
_CASE_SECONDS = 60.0
_H2SPEC_SECONDS = 240.0

Say = Callable[[str], None]


class Check(NamedTuple):
    """One check of a tool, and what it said."""

    tool: str
    name: str
    has_passed: bool
    words: str = ""


def h2spec(cache: pathlib.Path, say: Say) -> list[Check]:
    """All of h2spec against the server of HTTP/2. Raises `OSError` when it cannot be built."""
    program = _program(cache, H2SPEC, "github.com/summerwind/h2spec/cmd/h2spec")
    program.prepare(say)
    port = loopback.free_port()
    with processes.running("echo", [sys.executable, "-m", "tests.server.http2.echo", str(port)]) as server:
        _wait_for(server, port)
        say("h2spec")
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder, "report.xml")
            command = [str(program.built), "generic", "http2", "hpack", "-h", loopback.HOST, "-p", str(port)]
            output = _output([*command, "-P", "/late", "-j", str(report)], _H2SPEC_SECONDS)
            if not report.is_file():
                return [Check(H2SPEC, "report", False, output[-500:])]
            return read_report(report.read_text())


def read_report(text: str) -> list[Check]:
    """One check for all of h2spec's cases, which the expected failure does not fail, and one for each that failed."""
    cases = [
        (suite.get("package") or suite.get("name") or "", case)
        for suite in ElementTree.fromstring(text).iter("testsuite")
        for case in suite.findall("testcase")
    ]
    failed = [
        (where, case) for where, case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    unexpected = [(where, case) for where, case in failed if case.get("classname") != EXPECTED]
    expected = len(failed) - len(unexpected)
    words = f"{len(cases) - len(failed)} of {len(cases)} passed, {expected} failed as expected"
    summary = Check(H2SPEC, "all", bool(cases) and not unexpected, words)
    return [summary, *(Check(H2SPEC, f"{where}: {case.get('classname')}", False) for where, case in unexpected)]


def interop(cache: pathlib.Path, say: Say) -> list[Check]:
    """grpc-go's client, the sidecar, grpc-go's server. Raises `OSError` when they cannot be built."""
    client = _program(cache, "client", "google.golang.org/grpc/interop/client")
    server = _program(cache, "server", "google.golang.org/grpc/interop/server")
    for each in (client, server):
        each.prepare(say)
    behind, port, grpc_port, admin_port = loopback.free_ports(4)
    flags = ["--grpc-port", str(grpc_port), "--component-grpc-port", str(behind), "--host", loopback.HOST]
    command = processes.sidecar_command(port, behind, admin_port, flags)
    with (
        processes.running("interop-server", [str(server.built), "--port", str(behind)]) as child,
        processes.running("sidecar", command) as sidecar,
    ):
        _wait_for(child, behind)
        sidecar.wait_until_ready(processes.ready_url(admin_port), _UP_SECONDS)
        return [_case(client, grpc_port, name, say) for name in CASES]


def _case(client: golang.Program, port: int, name: str, say: Say) -> Check:
    say(f"interop: {name}")
    where = ["--server_host", loopback.HOST, "--server_port", str(port), "--use_tls=false"]
    try:
        _output([str(client.built), *where, "--test_case", name], _CASE_SECONDS, must_succeed=True)
    except ValueError as error:
        return Check(INTEROP, name, False, str(error)[-500:])
    return Check(INTEROP, name, True)


def _output(command: list[str], seconds: float, must_succeed: bool = False) -> str:
    """What it printed. Raises `ValueError` with that if it failed though it must not, or took too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise ValueError(f"not done after {seconds:.0f} s") from None
    output = done.stdout + done.stderr
    if must_succeed and done.returncode:
        raise ValueError(output.strip())
    return output


def _program(cache: pathlib.Path, name: str, package: str) -> golang.Program:
    return golang.Program(TOOLS, cache.resolve() / name / name, package, package)


def _wait_for(child: processes.Child, port: int) -> None:
    """Until somebody listens. Raises `processes.ChildFailed`."""
    deadline = time.monotonic() + _UP_SECONDS
    while time.monotonic() < deadline and child.is_running():
        with contextlib.suppress(OSError), socket.create_connection((loopback.HOST, port), timeout=1):
            return
        time.sleep(0.05)
    raise processes.ChildFailed(f"the {child.name} does not listen", child.log_tail())
