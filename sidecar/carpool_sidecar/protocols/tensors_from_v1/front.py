"""v1's requests and predictions for a predictor that speaks only v2."""

from __future__ import annotations

from collections.abc import Sequence

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import models, steps, v2
from carpool_sidecar.protocols.tensors_from_v1 import codec, columns, outputs, requests, values


class Codec(codec.Codec[requests.Reader]):
    """See `codec.Codec`."""

    list_name = b"predictions"

    def understand(self, info: models.ModelInfo, has_rows: bool) -> requests.Reader:
        """Raises `errors.BadRequest` if v1 requests cannot be made into calls of this model."""
        if info.is_stateful or info.is_decoupled:
            what = "keeps state between requests" if info.is_stateful else "answers in streams"
            raise errors.BadRequest(f"the model {what}, which the v1 protocol cannot ask for; use the v2 protocol")
        if not info.inputs:
            raise errors.BadRequest("the predictor does not tell of the model's inputs; use the v2 protocol")
        for spec in info.inputs:
            if spec.datatype not in v2.DATATYPES:
                raise errors.BadRequest(f"input {spec.name!r} has the datatype {spec.datatype}, which JSON cannot say")
        return requests.Reader(info.inputs, has_rows)

    def read(self, body: bytes, max_rows: int) -> steps.Steps[codec.Asked]:
        """A column for each input that the request has."""
        given = yield from self.model.read(body, max_rows)
        found: tuple[columns.Column, ...] = ()
        for each in given:
            found += ((yield from values.read(each)),)
        return codec.Asked(found)

    def write(
        self, tensors: Sequence[models.Tensor], asked: Sequence[str], rows: int | None, shares: codec.Shares
    ) -> steps.Steps[messages.Rows]:
        """Predictions, which callers get as they are."""
        return (yield from outputs.predictions(tensors, rows))
