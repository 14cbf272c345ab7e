"""What is told of exchanges with servers, and where their shapes are from."""

from __future__ import annotations

from typing import NamedTuple


class Exchange(NamedTuple):
    """Requests that share a batch: `merged` is the call's body, `answer` the server's, `shares` the callers'.

    `source` says where the shapes are from. `is_prorated` says that callers are told of shared numbers.
    """

    rule: str
    name: str
    path: str
    source: str
    requests: tuple[bytes, ...]
    merged: bytes
    answer: bytes
    shares: tuple[bytes, ...]
    is_prorated: bool = False


class Alone(NamedTuple):
    """A request that no batch may have, and the reason by which it is counted."""

    rule: str
    name: str
    path: str
    source: str
    body: bytes
    reason: str


class Apart(NamedTuple):
    """Two requests to the same path that no batch may have together."""

    rule: str
    name: str
    one: bytes
    other: bytes


OPENAI = "https://github.com/openai/openai-openapi/blob/f85dbe223d40/openapi.yaml"
VLLM = "https://github.com/vllm-project/vllm/blob/055e47c28003/vllm/frontend/entrypoints/pooling/embed/protocol.py"
KSERVE = (
    "https://github.com/kserve/kserve/blob/aaac4e294dae/python/huggingfaceserver/huggingfaceserver/encoder_model.py"
)
OVMS = "https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/embeddings/embeddings_api.cpp"
TEI = "https://github.com/huggingface/text-embeddings-inference/blob/0d124dc9773b/router/src/http/server.rs"
TOOLKIT = (
    "https://github.com/huggingface/huggingface-inference-toolkit/blob/833b5a2efd70/"
    "src/huggingface_inference_toolkit/handler.py"
)
SENTENCES = TOOLKIT.replace("handler.py", "sentence_transformers_utils.py")
PIPELINES = f"{TOOLKIT}; recorded from pipelines of transformers 4.57.6 around models of random weights"
MLFLOW = (
    "https://github.com/mlflow/mlflow/blob/master/mlflow/pyfunc/scoring_server/__init__.py; recorded from the scoring "
    "server of mlflow 3.17.2 with a model that adds its columns up"
)
TFSERVING = "https://github.com/tensorflow/serving/blob/9d981c5c2708/tensorflow_serving/util/json_tensor.cc"
OLLAMA = "https://github.com/ollama/ollama/blob/fb3076099687/server/routes.go"
