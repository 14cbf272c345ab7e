"""What the gRPC door needs of the rest of the sidecar."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from carpool_sidecar.batching import calls
from carpool_sidecar.protocols import models


class Waiting(Protocol):
    """Somebody who waits to be told of a model."""

    def cancel(self) -> None:
        """The callback is never called after this."""
        ...


class Catalog(Protocol):
    """What is known of the predictor's models."""

    def get(self, name: models.ModelName) -> Any | None:
        """The model, or None while nobody has asked about it."""
        ...

    def when_known(self, name: models.ModelName, callback: Callable[[Any], None]) -> Waiting:
        """Ask about it; calls back once, later, from the event loop."""
        ...


class Models(Protocol):
    """How calls for a model travel. The codecs are `rpc.codec.Codec`s."""

    @property
    def catalog(self) -> Catalog: ...

    def route(self, model: Any) -> calls.Route:
        """Raises `errors.Unbatchable` if a model's calls must not be batched now."""
        ...


class Driver(Protocol):
    """Takes calls, answers each exactly once."""

    def submit(self, call: calls.Call) -> None: ...

    def cancel(self, call: calls.Call) -> None: ...


class Room(Protocol):
    """The memory for what is on its way in; `read_timeout` is in seconds, for one message to arrive."""

    buffered_bytes: int
    max_body_bytes: int
    read_timeout: float

    @property
    def on_large_body(self) -> Callable[[], None]:
        """To be called when a large message is kept no longer."""
        ...

    def has_room(self, size: int) -> bool: ...


class Life(Protocol):
    """Knows whether new calls are taken, and how many there are."""

    def check_open(self) -> None:
        """Raises `errors.Draining`."""
        ...

    def enter(self) -> None: ...

    def leave(self) -> None: ...


class Count(Protocol):
    """A metric that counts."""

    def inc(self) -> None: ...


class Counts(Protocol):
    """Such metrics by a label."""

    def labels(self, *values: Any) -> Count: ...


class Seconds(Protocol):
    """A histogram."""

    def observe_all(self, values: Collection[float]) -> None: ...


class Counters(Protocol):
    """The metrics."""

    @property
    def refused(self) -> Counts: ...

    @property
    def internal_errors(self) -> Any: ...

    @property
    def request_seconds(self) -> Seconds: ...

    def unbatched(self, reason: str) -> None: ...

    def rpc_answered(self, lane: Any, code: int, times: int = 1) -> None: ...
