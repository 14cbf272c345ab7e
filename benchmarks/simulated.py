"""A cell of the adaptive policy in the simulator: the production scheduler with callers and a predictor of arithmetic.

What the sidecar reaches of it is what HTTP, JSON, timers and a shared machine leave of the scheduler's decisions.
"""

from __future__ import annotations

from benchmarks import cells
from benchmarks.sim import cells as sim_cells
from benchmarks.sim import contenders, variants
from carpool_sidecar.planning import engine, service_times

# A load generator on loopback asks again after 0.3 ms, mean: the answer's way back, and the next request's way.
LEAST_THINK, MEAN_EXTRA_THINK = 0.0001, 0.0002


def summary(cell: cells.Cell, learning: float, seconds: float) -> engine.Summary:
    """The figures of so many (virtual) seconds, after so many that are not counted. The cell must have a `system`."""
    assert cell.system is not None, cell.name
    closed = sim_cells.Cell(sim_cells.Kind.CLOSED, cell.system, cell.connections)
    # The echo predictor takes exactly as long as it is told.
    predictor = service_times.Predictor(cell.system.affine, cell.system.overhead / 1000, variation=0.0)
    think = variants.network_think(LEAST_THINK, MEAN_EXTRA_THINK)
    callers = variants.Closed(cell.connections, learning + seconds, think, sim_cells.SEED)
    make_scheduler = contenders.make_scheduler(contenders.ADAPTIVE, closed)
    run = engine.simulate(make_scheduler, predictor, callers, seed=sim_cells.SEED)
    return run.summary(warm_up=learning / (learning + seconds))
