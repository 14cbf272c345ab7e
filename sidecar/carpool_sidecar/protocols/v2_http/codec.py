"""The v2 protocol over HTTP as the core's batches need it: JSON, and Triton's binary tensor data extension.

Sources: Open Inference Protocol, "Inference", and Triton's `extension_binary_data.md`. One object for each model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from carpool.scheduling import messages
from carpool_sidecar.protocols import interface, models
from carpool_sidecar.protocols.v2_http import answers, binary, merging, requests, splitting


class Memory:
    """What is remembered of messages; models that share it share its limits, as callers choose models' names."""

    def __init__(self) -> None:
        self.requests = requests.Reader()
        self.answers: splitting.Cache[answers.Layout] = splitting.Cache("outputs", answers.learn)


class Codec:
    """One model's requests. `info` is what its predictor tells of it and may be replaced at any time."""

    def __init__(self, info: models.ModelInfo, on_uneven: Callable[[], None], memory: Memory | None = None) -> None:
        """`on_uneven` is told of outputs whose first dimension is not the batch's: the model cannot be batched."""
        self.info = info
        memory = memory or Memory()
        self._answers = answers.Reader(on_uneven, memory.answers)
        self.parse = memory.requests.parse

    @property
    def info(self) -> models.ModelInfo:
        """See the class."""
        return self._info

    @info.setter
    def info(self, told: models.ModelInfo) -> None:
        self._info = told
        self.max_batch_size = told.most_rows  # every request asks for it

    def merge(self, batch_id: str, target: str, parts: Sequence[messages.Part]) -> interface.UpstreamRequest:
        """As `codec.Codec.merge`."""
        if len(parts) == 1:
            request, start, stop = parts[0]
            payload: requests.Payload = request.payload
            if stop - start == payload.row_count:
                read = functools.partial(answers.read_verbatim, payload.row_count)
                return interface.UpstreamRequest(target, binary.headers(payload.json_size), (payload.body,), read)
        call = merging.merge(batch_id, parts)
        return interface.UpstreamRequest(
            target, call.headers, call.body, functools.partial(self._answers.read, call.slots)
        )
