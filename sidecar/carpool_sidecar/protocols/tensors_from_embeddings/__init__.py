"""OpenAI's embeddings for predictors that speak only v2: texts become a tensor, and a tensor's rows embeddings.

Like `tensors_from_v1` it decodes what callers send, with numpy and orjson, and is only imported where `--lists
openai-embeddings` meets `--upstream triton-http` or `triton-grpc`.

Format: https://platform.openai.com/docs/api-reference/embeddings.
"""

from carpool_sidecar.protocols.tensors_from_embeddings.front import Codec
from carpool_sidecar.protocols.tensors_from_embeddings.refusals import render_error
from carpool_sidecar.protocols.tensors_from_embeddings.requests import read_model

__all__ = ["Codec", "read_model", "render_error"]
