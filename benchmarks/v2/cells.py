"""The cells of the v2 benchmark: what is compared with what, how, and what this project asks of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.peers import peer
from benchmarks.v2 import stub, traffic

CONNECTIONS, BATCH = 64, 32
LARGE_CONNECTIONS, LARGE_BATCH = 16, 8
LARGE = 1_500_000
TENSOR_BYTES = 16
RPC_CONNECTIONS = 4  # which the callers share

RPC_TARGET = 5_000.0
TRITON_MODEL = peer.Model(fixed_ms=10.0, per_row_ms=0.1, max_batch=BATCH, wait_ms=5.0)
TRITON_LOAD = 0.8
"""Of the slower system's closed-loop rate, for the latencies."""


def settings(batch: int = BATCH) -> tuple[str, ...]:
    """The sidecar's, as in the other benchmarks: two batches in flight hide the way there and back."""
    return ("--max-batch-size", str(batch), "--max-latency", "10", "--max-in-flight", "2")


@dataclass(frozen=True)
class Duel:
    """Two formats against each other. The target is in requests/s of the second over those of the first.

    `stub` is the module of the predictor, `flags` are the sidecar's besides those of every duel.
    """

    name: str
    title: str
    first: Callable[[], traffic.Traffic]
    second: Callable[[], traffic.Traffic]
    target: float
    connections: int = CONNECTIONS
    batch: int = BATCH
    stub: str = stub.MODULE
    flags: tuple[str, ...] = ()


def _json(name: str, title: str, size: int, connections: int = CONNECTIONS, batch: int = BATCH) -> Duel:
    return Duel(name, title, lambda: traffic.V1(size), lambda: traffic.V2(size), 0.9, connections, batch)


DUELS = (
    _json("json-100B", "100 B", 100),
    _json("json-8kB", "8 kB", 8_000),
    _json("json-1.5MB", "1.5 MB", LARGE, LARGE_CONNECTIONS, LARGE_BATCH),
    Duel(
        "binary-1.5MB",
        "tensor of 1.5 MB",
        lambda: traffic.V1OfTensor(LARGE),
        lambda: traffic.V2Binary(LARGE),
        2.0,
        LARGE_CONNECTIONS,
        LARGE_BATCH,
    ),
)
RPC, TRITON = "grpc", "triton"
NAMES = (*(duel.name for duel in DUELS), RPC, TRITON)


def select(only: Sequence[str]) -> set[str]:
    """The names of what to run; everything when `only` is empty.

    Raises `ValueError` for a name that does not exist.
    """
    if unknown := [name for name in only if name not in NAMES]:
        raise ValueError(f"unknown cell {unknown[0]!r}; there are {', '.join(NAMES)}")
    return set(only or NAMES)
