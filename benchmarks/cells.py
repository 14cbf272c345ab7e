"""The cells of the benchmark: which body, which predictor, which sidecar settings, which target.

Sidecar settings are the same for all body sizes: batches of 32, 10 ms patience, two batches in flight. The adaptive
policy is told the batch size and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks import mix
from benchmarks.sim import cells as sim_cells

CONNECTIONS = 64
BATCH = 32
SERIAL_FIXED_MS, SERIAL_PER_INSTANCE_MS = 10.0, 0.1
SERIAL_LIMIT = BATCH / (SERIAL_FIXED_MS + BATCH * SERIAL_PER_INSTANCE_MS) * 1000
"""Requests/s of a predictor that does one full batch after another without a pause: 2,424."""

# Milliseconds around each batch that the predictor does not work on it: HTTP, JSON, and the sidecar's own part.
ADAPTIVE_OVERHEAD_MS = 1.0
ADAPTIVE_CALLERS = (8, 64)
SCENE_CALLERS, SCENE_TARGET = 5, 440.0


@dataclass(frozen=True)
class Cell:
    """One row of the table.

    `size` is the body's size in bytes, `answer` what the echo predictor gives back for an instance (`instance`
    itself or its `length`), `sidecar` its flags or None to load the predictor directly. `target` is in requests/s
    (None: for orientation), `limit` the highest rate that is possible (None: unknown). `load_beside` names whose
    core the load generator shares. `system` is the predictor as the simulator knows it, for cells that are
    simulated too (None: is not). `mix` says which of the requests of `mix` are sent (None: all are alike).
    """

    name: str
    title: str
    size: int
    answer: str
    predictor: tuple[str, ...]
    sidecar: tuple[str, ...] | None
    target: float | None = None
    limit: float | None = None
    load_beside: str = "predictor"
    connections: int = CONNECTIONS
    system: sim_cells.System | None = None
    mix: mix.Kind | None = None

    @property
    def predictor_arguments(self) -> list[str]:
        return ["--models", "echo", "--echo-answer", self.answer, *self.predictor]


@dataclass(frozen=True)
class Scene:
    """What one client sends, one after the other, beside small requests: bodies of so many bytes (0: nothing).

    `kind` is what they are made of (see `lag_traffic`), and `has_peers` says that others can do the same.
    """

    title: str
    size: int = 0
    instances: int = 1
    kind: str = "numbers"

    @property
    def has_peers(self) -> bool:
        """Whether KServe's batcher takes the same requests."""
        return self.kind == "numbers"


def _settings(in_flight: int | None) -> tuple[str, ...]:
    at_once = () if in_flight is None else ("--max-in-flight", str(in_flight))
    return ("--max-batch-size", str(BATCH), "--max-latency", "10", *at_once)


def _pair(name: str, title: str, size: int, answer: str, target: float | None) -> list[Cell]:
    """A body size through the sidecar, and straight to the predictor."""
    free = ("--echo-fixed-ms", "0", "--echo-per-instance-ms", "0")
    return [
        Cell(name, title, size, answer, free, _settings(2), target),
        Cell(f"{name}-direct", f"{title}, direct", size, answer, free, None),
    ]


def _service(fixed_ms: float, per_instance_ms: float) -> tuple[str, ...]:
    return ("--echo-fixed-ms", str(fixed_ms), "--echo-per-instance-ms", str(per_instance_ms))


def _serial(name: str, title: str, settings: tuple[str, ...], target: float | None) -> Cell:
    service = _service(SERIAL_FIXED_MS, SERIAL_PER_INSTANCE_MS)
    title = f"serial 10 + 0.1 ms, {title}"
    # This predictor stands for a GPU, which no load generator delays; the sidecar has time to spare here.
    return Cell(name, title, 37, "instance", service, settings, target, SERIAL_LIMIT, load_beside="sidecar")


def _adaptive(name: str, title: str, system: sim_cells.System, callers: int, target: float | None = None) -> Cell:
    flags = ("--policy", "adaptive", "--max-batch-size", str(system.size))
    return Cell(
        name,
        f"{title}{system.fixed:g} + {system.per_row:g} ms, {callers} callers",
        37,
        "instance",
        _service(system.fixed, system.per_row),
        flags,
        target,
        load_beside="sidecar",  # as for the serial cells
        connections=callers,
        system=system,
    )


_MIXES: tuple[tuple[mix.Kind, str], ...] = (
    ("repeated", "37 B, eleven headers"),
    ("varied", "the same, headers vary"),
    ("mixed", "these, 11 % others"),
)

IDLE = "idle"
"""The name, for `--only`, of the pause in which idle CPU and memory are measured."""

LAG = "lag"
"""The name, for `--only`, of all scenes in which small requests meet large ones."""

BODY_CELLS: tuple[Cell, ...] = (
    *_pair("37B", "37 B", 37, "instance", 15_000),
    *_pair("8kB", "8 kB", 8_000, "length", 8_000),
    *_pair("100kB", "100 kB", 100_000, "length", None),
    *_pair("1.5MB", "1.5 MB", 1_500_000, "length", 150),
)
MIX_CELLS: tuple[Cell, ...] = tuple(
    Cell(f"mix-{kind}", title, 37, "instance", _service(0, 0), _settings(2), connections=128, mix=kind)
    for kind, title in _MIXES
)
SERIAL_CELLS: tuple[Cell, ...] = (
    _serial("serial-1", "1 in flight", _settings(1), None),
    _serial("serial-window", "window, in flight as learned", _settings(None), 0.99 * SERIAL_LIMIT),
    _serial("serial-adaptive", "adaptive", ("--max-batch-size", str(BATCH)), 0.99 * SERIAL_LIMIT),
)
# The predictors of the simulator's grid, and the scene of KServe's documentation: `hey -c 5`.
ADAPTIVE_CELLS: tuple[Cell, ...] = (
    *(
        _adaptive(f"adaptive-{fixed:g}-{callers}", "", system, callers)
        for fixed, per_row, size in sim_cells.MODELS
        for system in [sim_cells.System(fixed, per_row, size, ADAPTIVE_OVERHEAD_MS)]
        for callers in ADAPTIVE_CALLERS
    ),
    _adaptive(
        "scene", "KServe's scene: ", sim_cells.System(10, 0.1, 32, ADAPTIVE_OVERHEAD_MS), SCENE_CALLERS, SCENE_TARGET
    ),
)

LAG_SCENES: tuple[Scene, ...] = (
    Scene("nothing"),
    Scene("1.5 MB", 1_500_000),
    Scene("16 MB", 16_000_000),
    Scene(f"16 MB, {BATCH} instances", 16_000_000, BATCH),
    Scene("4 MB of strings", 4_000_000, kind="strings"),
    Scene("4 MB of objects", 4_000_000, kind="objects"),
    Scene("gzip, to 32 MB", 32_000_000, kind="gzip"),
    Scene("answers of 4 MB", 4_000_000, kind="answers"),
    Scene("4 MB of floats to Triton", 4_000_000, kind="tensors"),
    Scene("4 MB of strings by gRPC", 3_960_000, kind="rpc"),
)

NAMES = (
    *(cell.name for cell in (*BODY_CELLS, *MIX_CELLS)),
    IDLE,
    *(cell.name for cell in (*SERIAL_CELLS, *ADAPTIVE_CELLS)),
    LAG,
)


class Selection(NamedTuple):
    """What to run. `idle`: whether to measure the sidecar at rest."""

    bodies: list[Cell]
    idle: bool
    serial: list[Cell]
    adaptive: list[Cell]
    lag: list[Scene]

    @property
    def loaded(self) -> list[Cell]:
        """All cells."""
        return [*self.bodies, *self.serial, *self.adaptive]

    @property
    def steps(self) -> int:
        """How many there are, `lag` aside."""
        return len(self.loaded) + self.idle


def select(only: Sequence[str]) -> Selection:
    """The cells of these names; everything when `only` is empty.

    Raises `ValueError` for a name that does not exist.
    """
    unknown = [name for name in only if name not in NAMES]
    if unknown:
        raise ValueError(f"unknown cell {unknown[0]!r}; there are {', '.join(NAMES)}")
    wanted = set(only or NAMES)
    bodies, serial, adaptive = (
        [cell for cell in group if cell.name in wanted]
        for group in ((*BODY_CELLS, *MIX_CELLS), SERIAL_CELLS, ADAPTIVE_CELLS)
    )
    return Selection(bodies, IDLE in wanted, serial, adaptive, list(LAG_SCENES) if LAG in wanted else [])
