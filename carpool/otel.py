"""Batched functions in the traces of their callers.

```python
carpool.otel.instrument()  # once opentelemetry.trace has its tracer provider
```
Needs the package opentelemetry-api, which nothing else in the library does; spans go where the application's own go.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable
from typing import Any, cast

from carpool.functions import batcher, calls
from carpool.functions import errors as failures
from carpool.scheduling import messages

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
except ModuleNotFoundError as error:
    raise ImportError(
        "carpool.otel needs the package opentelemetry-api: pip install 'carpool[otel]'", name=error.name
    ) from error

import carpool
from carpool import errors
from carpool.runtime import spans


def instrument(tracer_provider: Any = None) -> None:
    """Make spans of all batched functions of this process, of those that are decorated later, too.

    A batch's span `carpool.batch` is the current one in the function, and links to the spans in which its items were
    called for. Each call that was made in a span that is sampled gets a child of that, `carpool.wait`, from the call
    until its first batch left. `tracer_provider` is OpenTelemetry's global one by default, which has to be set before.
    Calling it again puts another provider in force.
    """
    provider = tracer_provider or trace.get_tracer_provider()
    tracer = provider.get_tracer("carpool", carpool.__version__)
    batcher.trace_all(lambda made: _Spans(tracer, made.name, made.clock))


def uninstrument() -> None:
    """Make no more spans; those of batches that are out end."""
    batcher.trace_all(None)


class _Spans(spans.Spans):
    def __init__(self, tracer: Any, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(tracer, _Calls(name), clock)

    def enter(self, batch: messages.Batch, context: contextvars.Context) -> None:
        """Implements `stats.Tracing`."""
        span = self.span(batch)
        if span is not None:
            context.run(contexts.attach, trace.set_span_in_context(span, contexts.Context()))


class _Calls(spans.Source):
    """Calls of a batched function, which keep the context variables of their callers."""

    def __init__(self, name: str) -> None:
        self._told = {"code.function.name": name}

    def caller(self, request: messages.Request) -> Any:
        """Implements `spans.Source`."""
        # In a copy, as the parts of one call may be looked at by several threads; copying is cheap.
        context = cast(calls.Call, request).contexts[0].copy()
        found = context.run(trace.get_current_span).get_span_context()
        return found if found.is_valid else None

    def of_wait(self, request: messages.Request) -> spans.Attributes:
        """Implements `spans.Source`."""
        return self._told

    def of_batch(self, batch: messages.Batch) -> spans.Attributes:
        """Implements `spans.Source`."""
        return self._told

    def of_failure(self, error: errors.CarpoolError) -> spans.Attributes:
        """Implements `spans.Source`."""
        if not isinstance(error, failures.Raised):
            return {}
        kind = type(error.original)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return {"error.type": name}
