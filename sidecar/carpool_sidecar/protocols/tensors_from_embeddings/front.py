"""OpenAI's embeddings requests, and embeddings, for a predictor that speaks only v2.

Whether a caller wants numbers or base64 is no part of the batch key: both forms are written from the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from carpool.scheduling import messages
from carpool_sidecar import errors
from carpool_sidecar.protocols import models, steps
from carpool_sidecar.protocols.tensors_from_embeddings import answers, requests, signatures
from carpool_sidecar.protocols.tensors_from_v1 import codec, values

RULE = "openai-embeddings"


class Codec(codec.Codec[signatures.Signature]):
    """See `codec.Codec`; `output` is the name of the output to take, of models that have one of that name."""

    list_name = b"data"

    def __init__(
        self,
        name: models.ModelName,
        info: models.ModelInfo,
        transport: codec.Transport,
        output: str = "",
        on_part: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(name, info, transport, on_part)
        self._wanted = output

    def understand(self, info: models.ModelInfo, has_rows: bool) -> signatures.Signature:
        """Raises `errors.BadMember` if the model cannot make embeddings."""
        return signatures.read(info, has_rows, self._wanted)

    def read(self, body: bytes, max_rows: int) -> steps.Steps[codec.Asked]:
        """One column, of texts or of token ids."""
        asked = yield from requests.read(body, max_rows)
        signature = self.model
        found = signature.tokens if asked.are_tokens else signature.texts
        if isinstance(found, str):
            raise errors.BadMember(found, "input")
        column = yield from values.read(requests.Items(found.spec, found.shape, asked.rows, asked.text))
        outputs = () if signature.output is None else (signature.output,)
        form = answers.Form(msgspec.json.encode(asked.model), asked.is_base64)
        return codec.Asked((column,), outputs, found.before, form, RULE)

    def write(
        self, tensors: Sequence[models.Tensor], asked: Sequence[str], rows: int | None, shares: codec.Shares
    ) -> steps.Steps[messages.Rows]:
        """Embeddings, written for each of those who want them."""
        found = answers.Rows(answers.read(tensors, asked[0] if asked else None, rows), 0, {})
        yield from answers.write(found, shares)
        return found
