"""What a predictor that speaks gRPC tells of its models, and whether it is ready.

Triton's ModelConfig alone tells of the batch size; ModelMetadata and ServerReady are the v2 protocol's.
"""

from __future__ import annotations

from typing import Any

import grpc.aio
from google.protobuf import message as protobuf
from tritonclient.grpc import service_pb2

from carpool_sidecar import errors
from carpool_sidecar.protocols import models
from carpool_sidecar.protocols.v2_grpc import statuses, tensors
from carpool_sidecar.upstream import grpc_channel

_PATIENCE = 5.0  # seconds for each question
_UNTOLD = (statuses.UNIMPLEMENTED, statuses.NOT_FOUND)
# What servers say of a name that they do not know; Triton's way is the last.
_NO_SUCH_MODEL = (statuses.NOT_FOUND, statuses.INVALID_ARGUMENT, statuses.UNAVAILABLE)


async def model_info(channel: Any, name: models.ModelName) -> models.ModelInfo:
    """What the predictor tells of a model; raises `errors.UpstreamError`."""
    words = {"name": name.name, "version": name.version}
    metadata = service_pb2.ModelMetadataRequest(**words)
    told = await _ask(channel, "ModelMetadata", metadata, service_pb2.ModelMetadataResponse)
    info = models.ModelInfo(_specs(told.inputs), _specs(told.outputs))
    try:
        request = service_pb2.ModelConfigRequest(**words)
        answer = await _ask(channel, "ModelConfig", request, service_pb2.ModelConfigResponse)
    except errors.UpstreamRpcStatus as error:
        if error.code in _UNTOLD:
            return info
        raise
    config = answer.config
    # TensorRT's inputs that hold one shape for all of a batch: joined requests would have several.
    has_shape_tensors = any(each.is_shape_tensor for each in config.input)
    optional = {each.name for each in config.input if each.optional}
    return info._replace(
        inputs=tuple([spec._replace(is_optional=spec.name in optional) for spec in info.inputs]),
        max_batch_size=0 if has_shape_tensors else max(0, config.max_batch_size),
        is_stateful=config.HasField("sequence_batching"),
        is_decoupled=config.model_transaction_policy.decoupled,
    )


async def is_ready(channel: Any) -> bool:
    """Whether the predictor takes requests; False also if it cannot be asked."""
    try:
        answer = await _ask(channel, "ServerReady", service_pb2.ServerReadyRequest(), service_pb2.ServerReadyResponse)
    except errors.UpstreamError:
        return False
    return bool(answer.ready)


async def model_ready(channel: Any, name: models.ModelName) -> bool:
    """Whether a model takes requests now; no, too, if there is no such model. Raises `errors.UpstreamError`."""
    request = service_pb2.ModelReadyRequest(name=name.name, version=name.version)
    try:
        return bool((await _ask(channel, "ModelReady", request, service_pb2.ModelReadyResponse)).ready)
    except errors.UpstreamRpcStatus as error:
        if error.code in _NO_SUCH_MODEL:
            return False
        raise


async def ready_models(channel: Any) -> list[str]:
    """Names of the models that are ready, each once, by Triton's repository index; raises `errors.UpstreamError`."""
    request = service_pb2.RepositoryIndexRequest(ready=True)
    index = await _ask(channel, "RepositoryIndex", request, service_pb2.RepositoryIndexResponse)
    return list(dict.fromkeys([each.name for each in index.models]))


async def _ask(channel: Any, method: str, request: Any, kind: Any) -> Any:
    try:
        answer = await channel.unary_unary(tensors.SERVICE + method)(request.SerializeToString(), timeout=_PATIENCE)
        return kind.FromString(answer)
    except grpc.aio.AioRpcError as error:
        raise grpc_channel.failure(error, channel) from None
    except protobuf.DecodeError:
        raise errors.UpstreamBroken(f"the predictor's answer to {method} is not a {kind.DESCRIPTOR.name}") from None


def _specs(tensors: Any) -> tuple[models.TensorSpec, ...]:
    return tuple([models.TensorSpec(each.name, each.datatype, tuple(each.shape)) for each in tensors])
