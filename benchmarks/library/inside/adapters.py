"""Each system under test behind the same few calls. What is set, and by which advice, stands here.

Modules of the peers are imported by the adapter that needs them: in each environment there is only one of them.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import functions

MAX_BATCH = 32


@dataclasses.dataclass
class Settings:
    """What a cell asks of a system: `wait` in seconds for company, `slo` in seconds, `queue` items and `in_flight`
    batches at most."""

    fixed: float = 0.0
    per_item: float = 0.0
    wait: float = 0.005
    slo: float | None = None
    queue: int | None = None
    in_flight: int | None = None
    callers: int = 64
    fault: str = ""
    by: str = "asyncio"


@dataclasses.dataclass
class System:
    """A system with its function. `call` blocks, `acall` is awaited, `submit` returns what has a `result()`."""

    acall: Callable[[Any], Any] | None = None
    call: Callable[[Any], Any] | None = None
    submit: Callable[[Any], Any] | None = None
    close: Callable[[], Any] | None = None
    closes_on_loop: bool = False  # `close` is called on the loop and what it returns is awaited; else in a thread
    prepare: Callable[[], Any] | None = None  # to be called inside the loop, before the first call


Make = Callable[[Settings, functions.Function, functions.Function], System]


def carpool_def(settings: Settings, function: Any, async_function: Any) -> System:
    return _carpool(settings, function)


def carpool_async(settings: Settings, function: Any, async_function: Any) -> System:
    return _carpool(settings, async_function)


def _carpool(settings: Settings, function: Any) -> System:
    """The batch size, and how many batches may be out where a cell says so; the time that a batch waits is found by
    the adaptive policy."""
    import carpool

    batched = carpool.batched(function, max_batch_size=MAX_BATCH, slo=settings.slo, max_in_flight=settings.in_flight)
    return System(
        acall=batched,
        call=lambda item: batched(item).result(),
        submit=batched,
        close=batched.close,
        closes_on_loop=True,
    )


def bare(settings: Settings, function: Any, async_function: Any) -> System:
    """No batcher: the least that hands items to a function in batches and results back. It shows what is the event
    loop's, or the threads', and nobody can be faster than. It has no faults to try, as it withstands none."""
    import bare_batching

    return System(
        acall=bare_batching.Tasks(async_function, MAX_BATCH).call,
        call=bare_batching.Threads(function, MAX_BATCH).call if settings.by == "threads" else None,
    )


def batched_sync(settings: Settings, function: Any, async_function: Any) -> System:
    import batched

    made = batched.dynamically(function, batch_size=MAX_BATCH, timeout_ms=settings.wait * 1000)
    return System(acall=made.acall, call=made, close=made.shutdown)


def batched_aio_def(settings: Settings, function: Any, async_function: Any) -> System:
    return _batched_aio(settings, function)


def batched_aio_async(settings: Settings, function: Any, async_function: Any) -> System:
    return _batched_aio(settings, async_function)


def _batched_aio(settings: Settings, function: Any) -> System:
    """There is no way to end one: it goes when it is collected."""
    import batched

    return System(acall=batched.aio.dynamically(function, batch_size=MAX_BATCH, timeout_ms=settings.wait * 1000))


def async_batcher_def(settings: Settings, function: Any, async_function: Any) -> System:
    def process_batch(self: Any, batch: list[Any]) -> Any:
        return function(batch)

    return _async_batcher(settings, process_batch)


def async_batcher_async(settings: Settings, function: Any, async_function: Any) -> System:
    async def process_batch(self: Any, batch: list[Any]) -> Any:
        return await async_function(batch)

    return _async_batcher(settings, process_batch)


def _async_batcher(settings: Settings, process_batch: Any) -> System:
    from async_batcher.batcher import AsyncBatcher

    made = type("Batcher", (AsyncBatcher,), {"process_batch": process_batch})(
        max_batch_size=MAX_BATCH, max_queue_time=settings.wait, max_queue_size=settings.queue or -1
    )
    return System(acall=made.process, close=made.stop, closes_on_loop=True)


def fast_dynamic_batcher(settings: Settings, function: Any, async_function: Any) -> System:
    """In a process of its own. Each call waits in a thread of the loop's pool, so the pool is made as wide as it needs
    to be, as the experiment in its documentation does."""
    import asyncio

    import worker_model
    from fast_dynamic_batcher.dyn_batcher import DynBatcher

    os.environ[worker_model.VARIABLE] = f"{settings.fixed},{settings.per_item},{settings.fault}"
    made = DynBatcher(
        worker_model.Model, max_batch_size=MAX_BATCH, max_delay=settings.wait, queue_size=settings.queue or 10_000
    )

    def prepare() -> None:
        pool = concurrent.futures.ThreadPoolExecutor(settings.callers)
        asyncio.get_running_loop().set_default_executor(pool)

    return System(acall=made.process_batched, close=made.stop, prepare=prepare)


def service_streamer(settings: Settings, function: Any, async_function: Any) -> System:
    """Its threaded form. A wait of 0 would end each batch with its first item, or with none."""
    import logging

    import service_streamer as package

    logging.getLogger("service_streamer.service_streamer").setLevel("ERROR")  # it logs each batch
    made = package.ThreadedStreamer(function, batch_size=MAX_BATCH, max_latency=settings.wait)
    return System(
        call=lambda item: made.predict([item])[0],
        submit=lambda item: made.submit([item]),
        close=made.destroy_workers,
    )


def ray_serve(settings: Settings, function: Any, async_function: Any) -> System:
    """`serve.batch` takes coroutines only. It looks at the deployment that it runs in, here one that bounds nothing;
    no cluster is started."""
    from ray import serve
    from ray.serve import context, schema
    from ray.serve._private import common, config

    context._set_internal_replica_context(
        replica_id=common.ReplicaID("bench", common.DeploymentID("bench", "bench")),
        servable_object=None,
        _deployment_config=config.DeploymentConfig(max_ongoing_requests=1_000_000),
        rank=schema.ReplicaRank(rank=0, node_rank=0, local_rank=0),
        world_size=1,
    )
    return System(acall=serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=settings.wait)(async_function))


def bentoml_def(settings: Settings, function: Any, async_function: Any) -> System:
    return _bentoml(settings, function)


def bentoml_async(settings: Settings, function: Any, async_function: Any) -> System:
    return _bentoml(settings, async_function)


def _bentoml(settings: Settings, function: Any) -> System:
    """The dispatcher inside its services, with the options that `@bentoml.api` gives it. It learns how long to wait;
    `max_latency_ms` is its objective: what would miss it gets the fallback, an error of 503 in a service."""
    from bentoml._internal.marshal import dispatcher
    from bentoml.exceptions import ServiceUnavailable

    def overloaded() -> Any:
        raise ServiceUnavailable("process is overloaded")

    made = dispatcher.CorkDispatcher(
        max_latency_in_ms=round((settings.slo or 60) * 1000),
        max_batch_size=MAX_BATCH,
        fallback=overloaded,
        get_batch_size=lambda item: 1,
    )

    async def close() -> None:
        made.shutdown()

    return System(acall=made(function), close=close, closes_on_loop=True)


ADAPTERS: dict[str, Make] = {
    each.__name__: each
    for each in (
        carpool_def,
        carpool_async,
        bare,
        batched_sync,
        batched_aio_def,
        batched_aio_async,
        async_batcher_def,
        async_batcher_async,
        fast_dynamic_batcher,
        service_streamer,
        ray_serve,
        bentoml_def,
        bentoml_async,
    )
}


def build(name: str, settings: Settings) -> System:
    """The system of that name around the function that the settings describe."""
    return ADAPTERS[name](settings, *functions.make(settings.fixed, settings.per_item, settings.fault))
