"""Who is measured: each system in each of its forms, in which environment, and the settings that it is tried with."""

from __future__ import annotations

import pathlib
import sys
from typing import NamedTuple

from benchmarks.peers import environments

WAITS = (0.0, 0.001, 0.005)
"""Seconds that a system may wait for company; of these it is given the best for each cell and figure."""

OURS = "carpool"
FORMS = ("def", "async def")


class System(NamedTuple):
    """One form of one system. `adapter` is its name inside; `peer` its environment and package, `carpool` is ours.

    The floor is no system at all: what the event loop, or the threads, cost by themselves.
    """

    name: str
    adapter: str
    peer: str
    form: str
    on_loop: bool = True
    in_threads: bool = False
    waits: tuple[float, ...] = WAITS
    queues: tuple[int, ...] = ()
    in_flight: tuple[int | None, ...] = (None,)
    own_process: bool = True
    package: str | None = None
    is_floor: bool = False

    @property
    def is_ours(self) -> bool:
        return self.peer == OURS and not self.is_floor

    @property
    def is_peer(self) -> bool:
        return self.peer != OURS

    @property
    def title(self) -> str:
        """Its name without the form."""
        return self.name.partition(" (")[0]

    @property
    def slug(self) -> str:
        """How it is named on the command line."""
        return self.adapter.replace("_", "-")

    def python(self, cache: pathlib.Path) -> pathlib.Path:
        """The interpreter of its environment."""
        return pathlib.Path(sys.executable) if not self.is_peer else environments.program(cache, self.peer)


QUEUES = (96, 160)
"""Items that a system with a bounded queue may hold in overload: about 40 and 66 ms of the function's time."""

NO_WAIT = (0.0,)  # it finds the time itself: there is nothing to set

SYSTEMS = (
    System("nothing but the loop or threads", "bare", OURS, "both", in_threads=True, waits=NO_WAIT, is_floor=True),
    System("Carpool (def)", "carpool_def", OURS, "def", in_threads=True, waits=NO_WAIT),
    System(
        "Carpool (async def)", "carpool_async", OURS, "async def", in_threads=True, waits=NO_WAIT, in_flight=(None, 1)
    ),
    System("batched (def)", "batched_sync", "batched", "def", in_threads=True),
    System("batched.aio (def)", "batched_aio_def", "batched", "def"),
    System("batched.aio (async def)", "batched_aio_async", "batched", "async def"),
    System("async-batcher (def)", "async_batcher_def", "async_batcher", "def", queues=QUEUES),
    System("async-batcher (async def)", "async_batcher_async", "async_batcher", "async def", queues=QUEUES),
    System(
        "FastDynamicBatcher (def)",
        "fast_dynamic_batcher",
        "fast_dynamic_batcher",
        "def",
        queues=QUEUES,
        own_process=False,
    ),
    System(
        "service-streamer (def)",
        "service_streamer",
        "service_streamer",
        "def",
        on_loop=False,
        in_threads=True,
        waits=(0.001, 0.005),
    ),
    System("Ray Serve (async def)", "ray_serve", "ray_serve", "async def", package="ray", waits=(0.0, 0.005, 0.015)),
    System("BentoML (def)", "bentoml_def", "bentoml", "def", waits=NO_WAIT),
    System("BentoML (async def)", "bentoml_async", "bentoml", "async def", waits=NO_WAIT),
)
"""`waits` of service-streamer: with 0 a batch ends with its first item. Of BentoML: it learns how long to wait.
Ray Serve closes a batch while another is out, so only a wait of about the function's time fills batches. `in_flight` of
Carpool: all others have one batch out at a time, which is theirs by design."""


def version(system: System) -> str:
    """The version that is measured: the pinned one, or of this checkout."""
    if not system.is_peer:
        return "this checkout"
    return environments.pinned_version(system.peer, system.package)


def select(names: list[str]) -> list[System]:
    """The systems of these names, in their own order; all of them for an empty list.

    A name is a system's, `batched-aio-def`, or a peer's, `batched`: all of its forms. Raises `ValueError` for others.
    """
    known = {each.slug for each in SYSTEMS} | {each.peer.replace("_", "-") for each in SYSTEMS}
    if unknown := sorted(set(names) - known):
        raise ValueError(f"unknown system {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return [each for each in SYSTEMS if not names or {each.slug, each.peer.replace("_", "-")} & set(names)]
