"""How many embeddings a second the sidecar can do on one core, and that the client could take more.

The predictor is a stub that answers each sentence with one embedding of MiniLM's size at once, on a core of its own, so
the sidecar is what limits. The client is asked first: stubs on several cores, without a sidecar.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import processes
from benchmarks.gpu import measuring, stub, systems
from tests import loopback

CALLERS = (32, 128, 512)
QUICK_CALLERS = (128,)
TARGET = 20_000.0  # embeddings/s on one core
_PATH = "/v1/models/stub:predict"
_READY_SECONDS = 30.0


def seconds(bench: measuring.Bench) -> float:
    """About how long `measure` takes."""
    return 6 + (1 + len(QUICK_CALLERS if bench.quick else CALLERS)) * (bench.seconds + bench.warm_up)


def measure(bench: measuring.Bench) -> dict[str, Any]:
    """The client's own ceiling, and the sidecar's for each number of callers."""
    cores = bench.cores
    rows = []
    setup = bench.setup(systems.MODELS[systems.MINILM], "float32")
    bodies = systems.bodies(setup.model)
    # The worker's cores are free here: nothing computes.
    with _stubs([{core} for core in sorted(cores.worker or ())] or [None], bodies) as stubs:
        row = bench.closed("the client alone", stubs, max(CALLERS))
        rows.append(row | {"stubs": len(cores.worker or (0,))})
    with _stubs([cores.server], bodies) as only, systems.Sidecar().before(only, setup) as running:
        for count in QUICK_CALLERS if bench.quick else CALLERS:
            row = bench.closed("the sidecar", running, count)
            rows.append(row)
    return {"answer_bytes": len(stub.vector()), "max_batch": setup.max_batch, "rows": rows}


@contextlib.contextmanager
def _stubs(places: Sequence[systems.Core], bodies: Sequence[bytes]) -> Iterator[systems.Running]:
    """A stub on each of these places, all on one port."""
    (port,) = loopback.free_ports(1)
    with contextlib.ExitStack() as stack:
        pids = {}
        for number, place in enumerate(places, 1):
            child = stack.enter_context(processes.running("stub", stub.command(sys.executable, port), place))
            child.wait_until_ready(f"http://{processes.HOST}:{port}/", _READY_SECONDS)
            pids["stub" if len(places) == 1 else f"stub {number}"] = child.pid
        url = f"http://{processes.HOST}:{port}{_PATH}"
        yield systems.Running(url, bodies, systems.MODELS[systems.MINILM].first, pids)
