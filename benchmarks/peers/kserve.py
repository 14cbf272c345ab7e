"""KServe's batcher, the sidecar that Carpool replaces: KServe's own Go code, built here from a pinned release.

`benchmarks/kserve` holds the program around it, with its pins in `go.mod` and `go.sum`.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable

from benchmarks import golang, processes
from benchmarks.peers import peer, python_servers

PROGRAM = pathlib.Path(__file__).parents[1] / "kserve"
_MODULE = "github.com/kserve/kserve"


class KServe:
    """A `peer.Peer`; see there for what each method promises."""

    name = "KServe batcher"
    role = peer.SIDECAR

    def missing(self) -> str | None:
        return golang.missing()

    def prepare(self, cache: pathlib.Path, say: Callable[[str], None]) -> None:
        _program(cache).prepare(say)

    def version(self, cache: pathlib.Path) -> str:
        return f"{pinned_version()} (Go {_program(cache).compiler()})"

    def launch(self, cache: pathlib.Path, model: peer.Model, port: int, component_port: int) -> peer.Launch:
        latency = max(1, round(model.wait_ms))  # whole milliseconds above zero; the agent takes no others
        where = ["--port", str(port), "--component-port", str(component_port)]
        batches = ["--max-batchsize", str(model.max_batch), "--max-latency", str(latency)]
        return peer.Launch(
            argv=[str(_program(cache).built), *where, *batches],
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


def _program(cache: pathlib.Path) -> golang.Program:
    return golang.Program(PROGRAM, cache.resolve() / "kserve" / "kserve-agent", f"KServe's batcher {pinned_version()}")


PEER: peer.Peer = KServe()
