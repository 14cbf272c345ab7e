"""Triton as a peer of the benchmark: its model repository, its model, how it is started, which answers count."""

from __future__ import annotations

import json
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import environments, peer, python_servers, triton

MODEL = peer.Model(fixed_ms=0, per_row_ms=0, max_batch=16, wait_ms=2.5)


def test_the_model_repository_has_what_triton_looks_for(tmp_path: Path) -> None:
    triton.write_repository(tmp_path, MODEL)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"echo/config.pbtxt", "echo/1/model.py", "echo/1/sleep_model.py"}


def test_the_dynamic_batcher_gets_the_models_batch_size_and_wait(tmp_path: Path) -> None:
    triton.write_repository(tmp_path, peer.Model(fixed_ms=10, per_row_ms=0.1, max_batch=32, wait_ms=5))
    triton.write_repository(tmp_path, MODEL)
    config = (tmp_path / "echo" / "config.pbtxt").read_text()
    assert "max_batch_size: 16\n" in config
    assert "max_queue_delay_microseconds: 2500 " in config
    assert "$" not in config


def test_triton_is_pinned() -> None:
    assert environments.pinned_version("nvidia_pytriton") in triton.PEER.version(Path("/cache"))


def test_it_serves_the_repository_on_its_port_and_tells_the_model_its_times(tmp_path: Path) -> None:
    launch = triton.PEER.launch(tmp_path, peer.Model(10, 0.1, 32, 5), port=9001, component_port=9002)
    (repository,) = [each.partition("=")[2] for each in launch.argv if each.startswith("--model-repository=")]
    assert Path(repository, "echo", "config.pbtxt").is_file()
    assert "--http-port=9001" in launch.argv
    assert (launch.env["PEER_FIXED_MS"], launch.env["PEER_PER_ROW_MS"], launch.env["PEER_MAX_BATCH"]) == (
        "10",
        "0.1",
        "32",
    )


def test_only_the_row_is_a_right_answer(tmp_path: Path) -> None:
    check = triton.PEER.launch(tmp_path, MODEL, 9001, 9002).check
    assert check(json.dumps({"outputs": [{"name": "predictions", "data": python_servers.ROW}]}).encode())
    assert not check(json.dumps({"outputs": [{"name": "predictions", "data": [1.0, 2.0, 3.0, 4.0]}]}).encode())
    assert not check(b'{"error": "model is not ready"}')
    assert not check(b"[]")
    assert not check(b"")


def test_each_request_of_a_batch_gets_its_own_rows_back_after_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    np = pytest.importorskip("numpy")
    waits: list[int] = []
    for fake in (_backend(), _sleep_model(waits)):
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
    program = runpy.run_path(str(Path(triton.__file__).with_name("triton_model") / "model.py"))
    sent = [np.array(rows) for rows in ([[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]], [[7.0, 8.0]])]
    answers = program["TritonPythonModel"]().execute([{"rows": rows} for rows in sent])
    assert [[(name, rows.tolist()) for name, rows in answer] for answer in answers] == [
        [("predictions", rows.tolist())] for rows in sent
    ]
    assert waits == [4]


def _backend() -> types.ModuleType:
    """The part of Triton's module that the model uses: a request is a dict, a tensor a pair, a response a list."""
    fake: Any = types.ModuleType("triton_python_backend_utils")
    fake.get_input_tensor_by_name = lambda request, name: types.SimpleNamespace(as_numpy=lambda: request[name])
    fake.Tensor = lambda name, rows: (name, rows)
    fake.InferenceResponse = list
    return fake  # type: ignore[no-any-return]


def _sleep_model(waits: list[int]) -> types.ModuleType:
    """Notes the size of each batch instead of waiting."""
    fake: Any = types.ModuleType("sleep_model")
    fake.predict = lambda rows: waits.append(len(rows))
    return fake  # type: ignore[no-any-return]
