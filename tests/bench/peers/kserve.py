"""KServe's batcher, the sidecar that Carpool replaces: KServe's own Go code, built here from a pinned release.

`tests/bench/kserve` holds the program around it, with its pins in `go.mod` and `go.sum`.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable

from tests.bench import processes
from tests.bench.peers import peer, python_servers

PROGRAM = pathlib.Path(__file__).parents[1] / "kserve"
_SOURCES = ("go.mod", "go.sum", "main.go")
_MODULE = "github.com/kserve/kserve"


class KServe:
    """A `peer.Peer`; see there for what each method promises."""

    name = "KServe batcher"
    role = peer.SIDECAR

    def missing(self) -> str | None:
        return None if shutil.which("go") else "no Go toolchain on PATH"

    def prepare(self, cache: pathlib.Path, say: Callable[[str], None]) -> None:
        stamp, wanted = _folder(cache) / "built", _fingerprint()
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        say(f"building {self.name} {pinned_version()}; the first time, this downloads and compiles for a minute or two")
        _folder(cache).mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        # Only what go.sum names, and nothing taken from a workspace, a vendor folder or the checkout's history.
        settings = {"GOWORK": "off", "GOFLAGS": "-mod=readonly -buildvcs=false -trimpath"}
        _go("build", "-o", str(_agent(cache)), ".", settings=settings)
        stamp.write_text(wanted)

    def version(self, cache: pathlib.Path) -> str:
        compiler = _go("version", str(_agent(cache))).rpartition(": go")[2].strip()
        return f"{pinned_version()} (Go {compiler})"

    def launch(self, cache: pathlib.Path, model: peer.Model, port: int, component_port: int) -> peer.Launch:
        latency = max(1, round(model.wait_ms))  # whole milliseconds above zero; the agent takes no others
        where = ["--port", str(port), "--component-port", str(component_port)]
        return peer.Launch(
            argv=[str(_agent(cache)), *where, "--max-batchsize", str(model.max_batch), "--max-latency", str(latency)],
            env={},
            ready_url=processes.ready_url(port),  # it passes the predictor's on
            predict_url=f"http://{processes.HOST}:{port}/v1/models/echo:predict",
            body=python_servers.BODY,
            check=_is_right,
            needs_predictor=True,
        )


def pinned_version() -> str:
    """The release of KServe that go.mod asks for, such as "v0.20.0".

    Raises `LookupError` if it asks for none.
    """
    found = re.search(rf"(?m)^\s*(?:require )?{re.escape(_MODULE)} (v\S+)", (PROGRAM / "go.mod").read_text())
    if found is None:
        raise LookupError(f"go.mod does not require {_MODULE}")
    return found[1]


def _is_right(answer: bytes) -> bool:
    """The row, and no message: KServe's batcher tells failures with status 200."""
    try:
        decoded = json.loads(answer)
    except ValueError:
        return False
    return (
        isinstance(decoded, dict)
        and decoded.get("message") == ""
        and decoded.get("predictions") == [python_servers.ROW]
    )


def _folder(cache: pathlib.Path) -> pathlib.Path:
    return cache.resolve() / "kserve"  # go runs in another folder


def _agent(cache: pathlib.Path) -> pathlib.Path:
    return _folder(cache) / "kserve-agent"


def _fingerprint() -> str:
    """Changes with the program, its pins and the compiler."""
    sources = b"".join((PROGRAM / name).read_bytes() for name in _SOURCES)
    return f"{hashlib.sha256(sources).hexdigest()} {_go('env', 'GOVERSION', 'GOARCH').split()}\n"


def _go(*arguments: str, settings: dict[str, str] | None = None) -> str:
    """What a go command prints. Raises `OSError` with its complaint if it fails."""
    command, env = ["go", *arguments], os.environ | (settings or {})
    result = subprocess.run(command, cwd=PROGRAM, env=env, capture_output=True, text=True, check=False)
    if result.returncode:
        raise OSError(f"go {arguments[0]} failed:\n{result.stderr.strip()}")
    return result.stdout


PEER: peer.Peer = KServe()
