"""How fast the webhook answers, on one core over TLS: `python -m tests.injector.bench_admission [seconds]`.

The server is the real one, in a process of its own on the last core; the API server in memory and the callers share the
first. Callers keep their connections, as API servers do. Latency is measured at a fixed rate from the moment a review
was due (so a stall counts for all that wait behind it), throughput with as many callers as connections.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from tests.injector import fake_api, pods, reviews

CONNECTIONS = 16
HOST = "carpool-injector.carpool-system.svc"
_FLAGS = ("--host=127.0.0.1", "--port=0", "--metrics-port=", "--log-format=json", "--quiet-period=0")
P99, RATE, RSS = 10.0, 1000.0, 80.0  # the goals: milliseconds, reviews a second, megabytes


def pod(containers: int = 10, variables: int = 20, length: int = 40) -> dict[str, Any]:
    """A predictor with that many containers, each with variables, mounts and probes."""
    made = pods.kserve(pods.sklearn(), annotations={"carpool.dev/max-batch-size": "16"})
    for number in range(1, containers):
        made["spec"]["containers"].append(_beside(number, variables, length))
    mounts = [{"name": f"volume-{number}", "emptyDir": {}} for number in range(containers)]
    made["spec"] |= {"volumes": mounts, "serviceAccountName": "default", "schedulerName": "default-scheduler"}
    return made


def _beside(number: int, variables: int, length: int) -> dict[str, Any]:
    reference = {"secretKeyRef": {"name": "credentials", "key": "token", "optional": True}}
    env: list[dict[str, Any]] = [
        {"name": f"SETTING_{index}", "value": f"{index}".ljust(length, "x")} for index in range(variables - 1)
    ]
    probe = {"httpGet": {"path": "/health", "port": "http", "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 1}
    return {
        "name": f"helper-{number}",
        "image": f"registry.example/team/helper-{number}@sha256:{number:064x}",
        "args": ["--verbose", f"--port={7000 + number}"],
        "ports": [{"name": f"http-{number}", "containerPort": 7000 + number, "protocol": "TCP"}],
        "env": [*env, {"name": "TOKEN", "valueFrom": reference}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        "livenessProbe": probe,
        "readinessProbe": probe,
        "volumeMounts": [{"name": f"volume-{number}", "mountPath": f"/data/{number}", "readOnly": True}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }


class Target(NamedTuple):
    """A server process that is ready."""

    pid: int
    port: int
    tls: ssl.SSLContext

    def memory(self, field: str = "VmRSS") -> float:
        """Megabytes (10^6)."""
        found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return int(found[1]) * 1024 / 1e6 if found else 0.0

    def cpu(self) -> float:
        """Seconds of CPU time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Caller:
    """One connection that is kept; a small HTTP client, so that the measuring costs little."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, target: Target) -> Caller:
        return cls(*await asyncio.open_connection("127.0.0.1", target.port, ssl=target.tls, server_hostname=HOST))

    async def send(self, request: bytes) -> bytes:
        """The body of the answer; raises RuntimeError unless that is 200."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        body = await self._reader.readexactly(int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]))
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head[:80]!r} {body[:300]!r}")
        return body

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await self._writer.wait_closed()


def request(path: str, body: bytes = b"") -> bytes:
    """A whole HTTP request, as Go's client writes it."""
    method = "POST" if body else "GET"
    headers = {"Host": f"{HOST}:443", "Content-Type": "application/json", "Content-Length": len(body)}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + body


@contextlib.asynccontextmanager
async def target(core: int) -> AsyncIterator[Target]:
    """The server, ready to be called, on a core of its own."""
    api = fake_api.FakeApi()
    with tempfile.TemporaryDirectory() as folder:
        async with api.serving(Path(folder)) as kubeconfig:
            command = [sys.executable, "-m", "carpool_injector", "serve", f"--kubeconfig={kubeconfig}", *_FLAGS]
            log = Path(folder, "log")
            process = _start(command, log)
            os.sched_setaffinity(process.pid, {core})
            try:
                await reviews.until(lambda: bool(_port(log) and api.ca_bundle()), 0.1)
                tls = ssl.create_default_context(cadata=base64.b64decode(api.ca_bundle()).decode())
                await asyncio.sleep(1)
                yield Target(process.pid, _port(log), tls)
            finally:
                process.terminate()
                if await asyncio.to_thread(process.wait, 30):
                    raise RuntimeError(f"the server ended with {process.returncode}")


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as errors:  # a file: a pipe that nobody reads would stop the server
        return subprocess.Popen(command, env=_environment(), stderr=errors)


def _environment() -> dict[str, str]:
    """With compiled modules kept, as in an image: compiling them at each start would count as memory of the server."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir(), "carpool-bench-pycache"))}


def _port(log: Path) -> int:
    """Where the server says that it listens; 0 while it does not."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return next((int(line["port"]) for line in lines if line["message"] == "serving"), 0)


async def throughput(callers: list[Caller], request: bytes, seconds: float) -> float:
    """Answers a second while each caller asks again at once."""
    start = time.perf_counter()
    answered = 0

    async def ask(caller: Caller) -> None:
        nonlocal answered
        while time.perf_counter() - start < seconds:
            await caller.send(request)
            answered += 1

    await asyncio.gather(*map(ask, callers))
    return answered / (time.perf_counter() - start)


async def latencies(callers: list[Caller], request: bytes, rate: float, seconds: float) -> list[float]:
    """Milliseconds from when each review was due, at so many a second; each caller takes the next one that is due."""
    start, found = time.perf_counter(), list[float]()  # the loop's clock has milliseconds only
    due = iter([start + number / rate for number in range(int(rate * seconds))])

    async def ask(caller: Caller) -> None:
        for moment in due:
            await asyncio.sleep(max(0.0, moment - time.perf_counter()))
            await caller.send(request)
            found.append((time.perf_counter() - moment) * 1000)

    await asyncio.gather(*map(ask, callers))
    return sorted(found)


def percentile(values: list[float], share: float) -> float:
    """Of ascending values."""
    return values[min(len(values) - 1, int(len(values) * share))]


class Table:
    """What was measured, row by row, and whether the goals were met."""

    def __init__(self, on: Target) -> None:
        self._on = on
        self._rows: list[tuple[str, str]] = []
        self.met = True

    def add(self, name: str, value: str, goal: str = "", met: bool = True) -> None:
        """A row; with a goal it says whether that was met."""
        self._rows.append((name, f"{value}   (goal {goal}: {'met' if met else 'MISSED'})" if goal else value))
        self.met = self.met and met

    async def throughput(self, name: str, callers: list[Caller], asked: bytes, seconds: float, goal: float = 0) -> None:
        """All connections busy for so many seconds."""
        used = self._on.cpu()
        rate = await throughput(callers, asked, seconds)
        used = (self._on.cpu() - used) / (rate * seconds) * 1e6
        self.add(name, f"{rate:,.0f}/s, {used:.0f} µs of CPU each", f"{goal:,.0f}/s" if goal else "", rate >= goal)

    async def latency(self, name: str, callers: list[Caller], asked: bytes, rate: float, seconds: float) -> None:
        """At a fixed rate for so many seconds."""
        found = await latencies(callers, asked, rate, seconds)
        shown = ", ".join(f"p{share * 100:g} {percentile(found, share):.2f}" for share in (0.5, 0.9, 0.99))
        self.add(name, f"{shown}, max {found[-1]:.2f} ms", f"p99 < {P99:.0f} ms", percentile(found, 0.99) < P99)

    def show(self) -> None:
        """Prints all rows."""
        width = max(len(name) for name, _ in self._rows)
        for name, value in self._rows:
            _tell(f"{name:<{width}}  {value}")


async def measure(seconds: float, core: int) -> bool:
    """Prints the table; says whether all goals were met. The server runs on `core`."""
    small, large = (json.dumps(reviews.asking(made)).encode() for made in (pod(), pod(variables=1200, length=80)))
    asked, asked_large = request("/mutate?timeout=10s", small), request("/mutate?timeout=10s", large)
    async with target(core) as on:
        table = Table(on)
        ready = on.memory()
        callers = [await Caller.connect(on) for _ in range(CONNECTIONS)]
        patch = reviews.patch(reviews.response(await callers[0].send(asked)))
        _tell(f"{len(small) / 1024:.1f} KiB a review of 10 containers, {len(large) / 1024:.0f} KiB the large one;")
        _tell(f"{len(patch)} patch operations; {CONNECTIONS} TLS connections that are kept.")
        await table.throughput("reviews, all connections busy", callers, asked, seconds, RATE)
        await table.throughput("GET /livez: the HTTP server alone", callers, request("/livez"), seconds / 2)
        await table.latency("latency at 500 reviews/s", callers, asked, 500, seconds)
        await table.latency("latency at 50 reviews/s, one connection", callers[:1], asked, 50, seconds)
        rested = on.memory()
        table.add(
            "memory (RSS): ready, after the run", f"{ready:.1f} MB, {rested:.1f} MB", f"< {RSS:.0f} MB", rested < RSS
        )
        await _beside_large(table, callers, asked, asked_large)
        await asyncio.sleep(2)
        table.add("memory after large pods: at most, 2 s later", f"{on.memory('VmHWM'):.1f} MB, {on.memory():.1f} MB")
        await asyncio.gather(*(caller.close() for caller in callers))
    table.show()
    return table.met


async def _beside_large(table: Table, callers: list[Caller], asked: bytes, asked_large: bytes) -> None:
    """The large pod alone, and what ten of them, one after the other, do to the others."""
    alone = sorted([await _timed(lambda: callers[0].send(asked_large)) for _ in range(20)])
    table.add("the large pod, one at a time", f"p50 {statistics.median(alone):.1f} ms, max {alone[-1]:.1f} ms")

    async def send_large() -> None:
        for _ in range(10):
            await callers[0].send(asked_large)
            await asyncio.sleep(0.2)

    sending = asyncio.create_task(send_large())
    await table.latency("latency at 200 reviews/s beside large pods", callers[1:], asked, 200, 2)
    await sending


async def _timed(call: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await call()
    return (time.perf_counter() - start) * 1000


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """0 when all goals were met."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    return 0 if uvloop.run(measure(float(arguments[0]) if arguments else 5.0, cores[-1])) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
