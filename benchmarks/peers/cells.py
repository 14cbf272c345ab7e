"""What is measured of a peer: which model, which load, which body. The figures are the same for everybody."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers import peer

BATCH, WAIT_MS = 32, 5.0
CONNECTIONS = 64
FREE = peer.Model(0.0, 0.0, BATCH, WAIT_MS)
SERIAL = peer.Model(10.0, 0.1, BATCH, WAIT_MS)
FREE_8 = peer.Model(0.0, 0.0, 8, WAIT_MS)

LOADS = (0.05, 0.50, 0.80, 0.95)
MOST_OUTSTANDING = 600
"""Unanswered requests at which an open-loop run counts as saturated: a quarter of a second's work for the model, and
several times what the waiting line of one that keeps up ever holds at 95 %."""


@dataclass(frozen=True)
class Cell:
    """One measurement. `load` is a share of the model's limit, sent open-loop; None: a closed loop.

    `size` is the body's, in bytes; None: the peer's own body, of one row. `longer` says how many times as long it
    takes as others.
    """

    name: str
    title: str
    model: peer.Model
    load: float | None = None
    connections: int = CONNECTIONS
    size: int | None = None
    longer: float = 1.0

    @property
    def offered(self) -> float:
        """Requests/s sent open-loop."""
        return self.model.limit * (self.load or 0.0)


FREE_CLOSED = Cell("free", "zero-cost model", FREE)
SERIAL_CLOSED = Cell("serial", "10 ms + 0.1 ms a row", SERIAL)
OPEN = tuple(Cell(f"open-{load * 100:g}", f"{load:.0%} load", SERIAL, load) for load in LOADS)
SERVER_CELLS = (FREE_CLOSED, SERIAL_CLOSED, *OPEN)

# KServe's agent answers two dozen of the largest a second: in the time of the other cells it would be three rounds of
# callers, of which the last is not counted.
SIDECAR_CELLS = (
    Cell("sidecar-37B", "37 B", FREE, size=37),
    Cell("sidecar-8kB", "8 kB", FREE, size=8_000),
    Cell("sidecar-1.5MB", "1.5 MB, 16 connections, batches of 8", FREE_8, connections=16, size=1_500_000, longer=4.0),
    Cell("sidecar-serial", "10 ms + 0.1 ms a row", SERIAL),
)


def by_model(cells: tuple[Cell, ...]) -> list[tuple[peer.Model, list[Cell]]]:
    """The cells grouped by model, in order: a peer is started once for each."""
    models = dict.fromkeys(cell.model for cell in cells)
    return [(model, [cell for cell in cells if cell.model == model]) for model in models]
