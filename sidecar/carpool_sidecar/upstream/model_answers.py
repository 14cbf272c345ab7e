"""Reads what a predictor tells of its models, and says it in the v1 protocol's words.

Sources: the Open Inference Protocol ("Model Metadata"), Triton's extensions for the model configuration
(https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_configuration.md) and the
model repository (extension_model_repository.md, beside it), and KServe's `GET /v2/models`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import models

_LARGEST_DIMENSION = 2**63 - 1


class _Tensor(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class _Metadata(msgspec.Struct):
    inputs: list[_Tensor] | None = None
    outputs: list[_Tensor] | None = None


class _ConfiguredInput(msgspec.Struct):
    name: str = ""
    optional: bool = False
    is_shape_tensor: bool = False


class _TransactionPolicy(msgspec.Struct):
    decoupled: bool = False


class _Config(msgspec.Struct):
    """Protocol buffers as JSON: what is not set is left out, or null."""

    max_batch_size: int = 0
    input: list[_ConfiguredInput] | None = None
    sequence_batching: dict[str, Any] | None = None
    model_transaction_policy: _TransactionPolicy | None = None


class _Indexed(msgspec.Struct):
    name: str
    state: str | None = None


class _Names(msgspec.Struct):
    models: list[str]


# Numbers may come as strings: 64-bit ones do in the JSON of protocol buffers.
_METADATA = msgspec.json.Decoder(_Metadata, strict=False)
_CONFIG = msgspec.json.Decoder(_Config, strict=False)
_INDEX = msgspec.json.Decoder(list[_Indexed])
_NAMES = msgspec.json.Decoder(_Names)


def model_info(metadata: bytes, config: bytes | None = None) -> models.ModelInfo:
    """What the JSON of a model's metadata, and of Triton's configuration if there is one, tell.

    Shapes are the metadata's: the configuration's lack the batch dimension. A model with shape tensors (TensorRT's
    inputs that hold one shape for all of a batch) counts as one without a batch dimension, as joined requests would
    have several. Raises `errors.UpstreamBroken` for anything that is not as the protocol has it.
    """
    told: _Metadata = _decode(_METADATA, metadata, "metadata")
    configured: _Config | None = None if config is None else _decode(_CONFIG, config, "configuration")
    inputs, outputs = told.inputs or [], told.outputs or []
    if configured is None:
        return models.ModelInfo(_specs(inputs), _specs(outputs))
    if configured.max_batch_size < 0:
        raise errors.UpstreamBroken(f"the model's max_batch_size is {configured.max_batch_size}")
    optional = frozenset(each.name for each in configured.input or () if each.optional)
    has_shape_tensors = any(each.is_shape_tensor for each in configured.input or ())
    policy = configured.model_transaction_policy
    return models.ModelInfo(
        _specs(inputs, optional),
        _specs(outputs),
        max_batch_size=0 if has_shape_tensors else configured.max_batch_size,
        is_stateful=configured.sequence_batching is not None,
        is_decoupled=policy is not None and policy.decoupled,
    )


def indexed_models(body: bytes) -> list[str]:
    """Names of the models that are ready, each once, by the JSON of Triton's repository index."""
    index: list[_Indexed] = _decode(_INDEX, body, "repository index")
    return list(dict.fromkeys(each.name for each in index if each.state in (None, "", "READY")))


def listed_models(body: bytes) -> list[str]:
    """Names of the models by the JSON of KServe's `GET /v2/models`."""
    names: _Names = _decode(_NAMES, body, "list of models")
    return names.models


def v1_models(names: Sequence[str]) -> bytes:
    """The body of the v1 protocol's answer to `GET /v1/models`."""
    return msgspec.json.encode({"models": names})


def v1_model(name: str, ready: bool) -> tuple[int, bytes]:
    """Status and body of the v1 protocol's answer to `GET /v1/models/NAME`."""
    return 200 if ready else 503, msgspec.json.encode({"name": name, "ready": ready})


def _specs(tensors: Sequence[_Tensor], optional: frozenset[str] = frozenset()) -> tuple[models.TensorSpec, ...]:
    for tensor in tensors:
        if any(not models.ANY <= dimension <= _LARGEST_DIMENSION for dimension in tensor.shape):
            raise errors.UpstreamBroken(f"the model's tensor {tensor.name!r} has the shape {tensor.shape}")
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise errors.UpstreamBroken("two of the model's tensors have the same name")
    return tuple(
        models.TensorSpec(each.name, each.datatype, tuple(each.shape), each.name in optional) for each in tensors
    )


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes, what: str) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise errors.UpstreamBroken(f"the model's {what} cannot be read: {error}") from None
