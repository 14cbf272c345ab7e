"""The other requests of tritonclient's clients (health, metadata, …) are answered as Triton answers them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from e2e.triton import clients, repository


async def as_json(client: clients.Client, method: str, *positional: Any) -> Any:
    """The answer as plain values, over either protocol."""
    options = {} if client.is_http else {"as_json": True}
    return await client(method, *positional, **options)


async def test_the_server_and_its_models_are_live_and_ready(client: clients.Client) -> None:
    assert await client("is_server_live")
    assert await client("is_server_ready")
    assert await client("is_model_ready", "identity")
    assert await client("is_model_ready", "versioned", "1")
    assert not await client("is_model_ready", "nobody")


async def test_the_servers_metadata_is_tritons(client: clients.Client) -> None:
    metadata = await as_json(client, "get_server_metadata")
    assert metadata["name"] == "triton"
    assert "binary_tensor_data" in metadata["extensions"]


async def test_a_models_metadata_tells_its_tensors(client: clients.Client) -> None:
    metadata = await as_json(client, "get_model_metadata", "add_sub")
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["a", "b"]
    assert [[int(size) for size in tensor["shape"]] for tensor in metadata["outputs"]] == [[-1, -1], [-1, -1]]


async def test_a_models_configuration_tells_its_batch_size(client: clients.Client) -> None:
    configuration = await as_json(client, "get_model_config", "small")
    assert configuration.get("config", configuration)["max_batch_size"] == 4


async def test_the_repositorys_index_has_all_models(client: clients.Client) -> None:
    index = await as_json(client, "get_model_repository_index")
    models = index if client.is_http else index["models"]
    assert {model["name"] for model in models} == {model.name for model in repository.MODELS}


async def test_statistics_are_told(client: clients.Client) -> None:
    statistics = await as_json(client, "get_inference_statistics", "identity")
    assert [model["name"] for model in statistics["model_stats"]] == ["identity"]


async def test_the_logs_settings_are_told(client: clients.Client) -> None:
    settings = await as_json(client, "get_log_settings")
    assert settings.get("settings", settings)["log_info"]


async def test_an_unknown_model_is_an_error_in_tritons_words(client: clients.Client) -> None:
    name = f"nobody-{uuid.uuid4()}"
    with pytest.raises(InferenceServerException, match=f"Request for unknown model: '{name}' is not found"):
        await client("get_model_metadata", name)
