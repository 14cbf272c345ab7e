"""A sentence encoder as a runtime of MLServer."""

from __future__ import annotations

import numpy as np
import sentences
from mlserver import MLModel, types
from mlserver.codecs import NumpyCodec, StringCodec


class Sentences(MLModel):
    """Texts to vectors."""

    async def load(self) -> bool:
        self._model = sentences.load()
        return True

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        vectors = np.array(sentences.embed(self._model, StringCodec.decode_input(payload.inputs[0])), np.float32)
        return types.InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("vectors", vectors)])
