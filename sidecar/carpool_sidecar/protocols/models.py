"""What a predictor tells of a model, as far as it decides whether and how its requests can be batched.

Sources: v2's model metadata (Open Inference Protocol, "Model Metadata") and Triton's model configuration extension,
which alone tells of `max_batch_size`, sequences and decoupled answers.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from carpool_sidecar import errors

ANY = -1
"""A dimension of any size."""


LONGEST_NAME = 256
"""Characters of a model's name in a body: names are remembered, and no predictor has longer ones."""


def check_name(name: str) -> str:
    """The name of a model that a body gives; raises `errors.ModelNotFound` for one that no model has."""
    if len(name) > LONGEST_NAME or name in (".", "..") or not name.isprintable():
        shown = name if len(name) <= 40 else name[:37] + "..."
        raise errors.ModelNotFound(f"the model {shown!r} does not exist")
    return name


class ModelName(NamedTuple):
    """A model, and a version of it if one was asked for; percent-encoded where they come from a path."""

    name: str
    version: str = ""

    @property
    def path(self) -> str:
        """Where the v2 protocol has it over HTTP."""
        return f"/v2/models/{self.name}" + (f"/versions/{self.version}" if self.version else "")


class TensorSpec(NamedTuple):
    """A tensor by the model's metadata: `shape` has the batch dimension where the model has one.

    An input that `is_optional` may be left out of a request.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    is_optional: bool = False


class Tensor(NamedTuple):
    """A tensor's values in v2's binary form: row-major, little-endian, BYTES elements each after their length."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


class ModelInfo(NamedTuple):
    """`max_batch_size` is Triton's: 0 if there is no batch dimension; None if the predictor does not tell.

    Without any `inputs` the predictor does not tell of those either.
    """

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    max_batch_size: int | None = None
    is_stateful: bool = False
    is_decoupled: bool = False

    def objection(self, batches_unknown: bool = True) -> errors.NotBatched | None:
        """Why requests must not be batched, or None if they may.

        `batches_unknown` is the answer for a model of which nothing is told.
        """
        if self.is_stateful:
            return errors.NotBatched.SEQUENCE
        if self.is_decoupled:
            return errors.NotBatched.DECOUPLED
        if self.max_batch_size is not None:
            return None if self.max_batch_size else errors.NotBatched.NO_BATCH_DIMENSION
        shapes = [spec.shape for spec in self.inputs + self.outputs]
        if not shapes:
            return None if batches_unknown else errors.NotBatched.UNKNOWN_MODEL
        return None if all(shape and shape[0] == ANY for shape in shapes) else errors.NotBatched.NO_BATCH_DIMENSION

    @property
    def most_rows(self) -> int:
        """Rows that one call may carry; `sys.maxsize` where nothing is told."""
        return self.max_batch_size or sys.maxsize
