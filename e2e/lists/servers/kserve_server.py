"""KServe's Python server with an OpenAI embedding model: POST /openai/v1/embeddings.

As in KServe's HuggingFace runtime calls run on the event loop, one after another. The model is the predictor's MiniLM.

    python e2e/lists/servers/kserve_server.py PORT
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import Any

import kserve
import pybase64
import torch
from kserve.protocol.rest import openai
from kserve.protocol.rest.openai import errors, types

from carpool_predictor.models import minilm

MODEL = "all-MiniLM-L6-v2"


class Embedder(openai.OpenAIEncoderModel):  # type: ignore[misc]
    """Strings to vectors, as floats or base64."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        self._model = minilm.MiniLM("cpu", 1)
        self._model.load()
        self._model.warm_up()

    async def create_embedding(self, request: Any, raw_request: Any = None, context: Any = None) -> Any:
        """Refuses whatever is no string, and a string that is empty, with KServe's error object."""
        given = getattr(request, "input", None)
        texts = [given] if isinstance(given, str) else given
        if not texts or not all(isinstance(text, str) and text for text in texts):
            return errors.create_error_response("input must be a string or a list of them, none empty", param="input")
        if any("make the model fail" in text for text in texts):
            words = "a text is marked"
            return errors.create_error_response(words, "InternalServerError", "", HTTPStatus.INTERNAL_SERVER_ERROR)
        data = [
            types.EmbeddingResponseData(index=place, embedding=self._encoded(vector, request.encoding_format))
            for place, vector in enumerate(self._model.predict(texts).tolist())
        ]
        tokens = sum(len(text.split()) + 2 for text in texts)
        usage = types.UsageInfo(prompt_tokens=tokens, total_tokens=tokens)
        return types.Embedding(model=MODEL, data=data, usage=usage)

    async def create_rerank(self, request: Any, raw_request: Any = None, context: Any = None) -> Any:
        """It has no reranker."""
        return errors.create_error_response("no reranker", status_code=HTTPStatus.NOT_IMPLEMENTED)

    @staticmethod
    def _encoded(vector: list[float], how: str) -> list[float] | str:
        if how == "float":
            return vector
        return pybase64.b64encode(torch.tensor(vector).numpy().tobytes()).decode()


if __name__ == "__main__":
    kserve.ModelServer(http_port=int(sys.argv[1]), enable_grpc=False, workers=1).start([Embedder()])
