"""The model repositories of the end-to-end tests: what Triton and MLServer find in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.triton import repository


def test_every_model_has_a_configuration_and_a_program_for_each_version(tmp_path: Path) -> None:
    repository.write(tmp_path)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    expected = {f"{model.name}/config.pbtxt" for model in repository.MODELS}
    expected |= {f"{each.name}/{n + 1}/model.py" for each in repository.MODELS for n in range(each.versions)}
    assert found == expected


def test_a_configuration_tells_batch_size_and_tensors() -> None:
    (model,) = (model for model in repository.MODELS if model.name == "strings")
    lines = repository.configuration(model).splitlines()
    assert "max_batch_size: 32" in lines
    assert 'input [{ name: "text" data_type: TYPE_STRING dims: [1] }]' in lines
    assert 'output [{ name: "length" data_type: TYPE_INT32 dims: [1] }]' in lines


def test_the_slow_models_differ_in_nothing_but_tritons_batcher() -> None:
    slow, dynamic = (model for model in repository.MODELS if model.program == "slow")
    assert dynamic._replace(name="slow", more="") == slow
    assert "dynamic_batching" in dynamic.more


@pytest.mark.parametrize("model", repository.MODELS, ids=lambda model: model.name)
def test_every_program_is_there(model: repository.Model) -> None:
    assert (repository.PROGRAMS / f"{model.program}.py").is_file()


def test_mlserver_finds_its_settings_and_its_models(tmp_path: Path) -> None:
    repository.write_for_mlserver(tmp_path, {"http_port": 7})
    assert json.loads((tmp_path / "settings.json").read_text())["http_port"] == 7
    for model in ("identity", "add"):
        settings = json.loads((tmp_path / model / "model-settings.json").read_text())
        module, _, runtime = settings["implementation"].partition(".")
        assert f"class {runtime}(" in (tmp_path / model / f"{module}.py").read_text()
