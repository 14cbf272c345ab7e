"""What the predictor tells of its models: read from JSON, which the v2 protocol's HTTP and gRPC both become, and asked
over HTTP.

Sources: the Open Inference Protocol ("Model Metadata"), Triton's extensions for the model configuration
(https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_configuration.md) and the
model repository (extension_model_repository.md, beside it), and KServe's `GET /v2/models`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from carpool_sidecar import errors
from carpool_sidecar.protocols import models
from carpool_sidecar.upstream import predictor

TIMEOUT = 5.0
"""Seconds for one question: requests wait for the answer when a model is first used."""

MOST_BYTES = 4 * 1024 * 1024
"""Bytes of an answer; a model's configuration takes some kilobytes."""

HEADERS: Final = (("Accept", "application/json"), ("Accept-Encoding", "identity"), ("User-Agent", "carpool"))
"""Of each question."""

_LARGEST_DIMENSION = 2**63 - 1

_PATH = re.compile(r"[^\x00-\x20\x7f?#]*")

# How servers without an extension refuse it; Triton answers 400 for models that it does not have.
_NOT_OFFERED = frozenset({400, 404, 405, 501})
_NOT_READY = _NOT_OFFERED | {503}


# --- what is told --------------------------------------------------------------------------------------------------


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


def model_info(metadata: bytes | str, config: bytes | str | None = None) -> models.ModelInfo:
    """What the JSON of a model's metadata, and of Triton's configuration if there is one, tell.

    Shapes are the metadata's: the configuration's lack the batch dimension. A model with shape tensors (TensorRT's
    inputs that hold one shape for all of a batch) counts as one without a batch dimension, as joined requests would
    have several. Raises `errors.UpstreamBroken` for anything that does not follow the protocol.
    """
    told: _Metadata = _decode(_METADATA, metadata, "model's metadata")
    inputs, outputs = told.inputs or [], told.outputs or []
    if config is None:
        return models.ModelInfo(_specs(inputs), _specs(outputs))
    configured: _Config = _decode(_CONFIG, config, "model's configuration")
    if configured.max_batch_size < 0:
        raise errors.UpstreamBroken(f"the model's max_batch_size is {configured.max_batch_size}")
    configured_inputs, policy = configured.input or (), configured.model_transaction_policy
    has_shape_tensors = any(each.is_shape_tensor for each in configured_inputs)
    return models.ModelInfo(
        _specs(inputs, frozenset(each.name for each in configured_inputs if each.optional)),
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


def _specs(tensors: Sequence[_Tensor], optional: frozenset[str] = frozenset()) -> tuple[models.TensorSpec, ...]:
    for tensor in tensors:
        if any(not models.ANY <= dimension <= _LARGEST_DIMENSION for dimension in tensor.shape):
            raise errors.UpstreamBroken(f"the model's tensor {tensor.name!r} has the shape {tensor.shape}")
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise errors.UpstreamBroken("two of the model's tensors have the same name")
    return tuple(
        models.TensorSpec(each.name, each.datatype, tuple(each.shape), each.name in optional) for each in tensors
    )


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes | str, what: str) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise errors.UpstreamBroken(f"the {what} cannot be read: {error}") from None


# --- asked over HTTP -----------------------------------------------------------------------------------------------


class HttpQuestions:
    """Questions to the predictor at `base`, its scheme, host and port; none takes longer than `timeout` seconds.

    `on_bug` is called when one fails by a bug, which is in the log.

    All raise `errors.UpstreamError` if the predictor cannot be reached, refuses (`errors.UpstreamStatus`) or does not
    follow the protocol, and `errors.BadRequest` for a name that no URL can have.
    """

    def __init__(self, base: str, timeout: float = TIMEOUT, on_bug: Callable[[], None] = lambda: None) -> None:
        self._client = predictor.HttpPredictor(base, timeout, MOST_BYTES, on_bug, is_lenient=True)
        self._timeout = timeout

    async def model_info(self, name: models.ModelName) -> models.ModelInfo:
        """What is told of a model, by its metadata and, where the predictor has that, Triton's configuration."""
        try:
            async with asyncio.timeout(self._timeout):
                metadata = await self._ask("GET", name.path)
                config = await _unless(_NOT_OFFERED, self._ask("GET", f"{name.path}/config"))
        except TimeoutError:
            raise errors.UpstreamTimeout from None
        return model_info(metadata, config)

    async def model_ready(self, name: models.ModelName) -> bool:
        """Whether a model takes requests now; False, too, if there is no such model."""
        return await _unless(_NOT_READY, self._ask("GET", f"{name.path}/ready")) is not None

    async def models(self) -> list[str]:
        """Names of the models that the predictor has ready.

        By Triton's model repository extension, which MLServer has as well, or else by KServe's `GET /v2/models`.
        """
        index = await _unless(_NOT_OFFERED, self._ask("POST", "/v2/repository/index", b'{"ready":true}'))
        return listed_models(await self._ask("GET", "/v2/models")) if index is None else indexed_models(index)

    async def close(self) -> None:
        """Close the connections; questions that are out fail."""
        await self._client.close()

    async def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        if not _PATH.fullmatch(path):
            raise errors.BadRequest("the model's name has characters that a URL does not allow there")
        # MLServer reads no body without a type, which this one has.
        return (await self._client.ask(method, path, HEADERS, self._timeout, body)).body


async def _unless(statuses: frozenset[int], answer: Awaitable[bytes]) -> bytes | None:
    """The answer, or None if the predictor refused with one of these statuses."""
    try:
        return await answer
    except errors.UpstreamStatus as error:
        if error.status not in statuses:
            raise
        return None
